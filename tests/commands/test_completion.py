"""Completion in shells: bash as a person types, names of options, all subcommands.

`test_completion_shells` has the completions of zsh and fish, where these are installed.
"""

import io
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from fedbilevel import FedBiO
from fedbilevel.__main__ import COMMANDS, main
from fedbilevel.commands.completion import SHELLS, whole_command_line
from fedbilevel.experiments.schema.registry import list_types
from tests.commands.typing_in import QUICK, as_for_users, fedbilevel
from tests.platforms import require_linux
from tests.waiting import HANG

OFFERS = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={position}
$(complete -p fedbilevel | sed 's/.*-F \\([^ ]*\\) .*/\\1/') 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

PRINT_ARGUMENTS = """fedbilevel() { printf '<%s>' "$@"; }\n"""
HOSTILE = (
    "1 a file.toml",
    "2 it's.toml",
    '3 "quoted".toml',
    "4$(touch hacked).toml",
    "5`touch hacked`.toml",
    "6;touch hacked;.toml",
    "7&touch hacked|cat>hacked.toml",
    "8*?[a-z].toml",
    "9$HOME {a,b} ~.toml",
)
"""File names that a shell must quote, each with another first character."""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("completion")
    file = directory / "fedbilevel.bash"
    file.write_text(fedbilevel(directory, "completion bash").stdout)
    return file


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "first.toml").write_text(QUICK)
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs/first").mkdir(parents=True)
    return tmp_path


def offers(script: Path, directory: Path, *words: str) -> set[str]:
    """Return the completions that bash offers for the last of some words."""
    typed = " ".join(map(shlex.quote, ("fedbilevel", *words)))
    program = OFFERS.format(script=script, words=typed, position=len(words))
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_subcommand(shell, tmp_path):
    shown = fedbilevel(tmp_path, f"completion {shell}").stdout
    for name in (*COMMANDS, "algorithm:FedBiOAcc", "--algorithm.learning-rate"):
        assert name.lstrip("-") in shown


@pytest.mark.process
def test_bash_completes_subcommands_and_options(script, here):
    assert offers(script, here, "") >= set(COMMANDS)
    assert offers(script, here, "re") == {"resume"}
    assert offers(script, here, "run", "first.toml", "--algorithm.le") == {
        "--algorithm.learning-rate"
    }
    assert "--trust" in offers(script, here, "plot", "runs/first", "-")
    assert offers(script, here, "completion", "") == set(SHELLS)


@pytest.mark.process
def test_bash_completes_experiment_files_and_run_directories(script, here):
    assert offers(script, here, "run", "") == {"first.toml", "runs"}
    assert offers(script, here, "resume", "") == {"runs"}
    assert offers(script, here, "compare", "runs/first", "f") == {"first.toml"}
    assert offers(script, here, "plot", "runs/first", "--out", "r") == {"runs"}


@pytest.mark.process
def test_bash_completes_directories_after_an_option_for_a_directory(script, here):
    for command in ("run first.toml", "tune first.toml", "federate first.toml"):
        words = (*command.split(), "--directory", "")
        assert offers(script, here, *words) == {"runs"}
    assert offers(script, here, "new", "name", "--directory", "") == {"runs"}
    # Files to write: curves, an experiment file.
    for command in ("compare runs/first", "plan runs/first"):
        assert "notes.txt" in offers(script, here, *command.split(), "--out", "")


@pytest.mark.process
def test_bash_offers_run_directories_and_their_parents(script, here):
    (here / "data").mkdir()
    (here / "runs/notes").mkdir()
    # Without a run, a directory can be anywhere below.
    assert offers(script, here, "resume", "") == {"data", "runs"}
    (here / "runs/first/experiment.toml").write_text(QUICK)
    (here / "runs/$(touch hacked)").mkdir()
    (here / "runs/$(touch hacked)/experiment.toml").write_text(QUICK)
    for command in ("resume", "plot", "plan"):
        assert offers(script, here, command, "") == {"runs"}
        assert offers(script, here, command, "runs/") == {
            "runs/first",
            "runs/$(touch hacked)",
        }
    assert not (here / "hacked").exists()


@pytest.mark.process
def test_bash_offers_hostile_names_as_they_are(script, here):
    for name in HOSTILE:
        (here / name).touch()
    assert offers(script, here, "compare", "") == {"first.toml", "runs", *HOSTILE}
    for name in HOSTILE:
        assert offers(script, here, "compare", name, name[0]) == {name}
    # Names that the user has begun to quote.
    for typed in (r"1\ a\ f", "'1 a f", '"1 a f'):
        assert offers(script, here, "run", typed) == {HOSTILE[0]}
    assert not (here / "hacked").exists()


@pytest.mark.process
def test_tab_quotes_hostile_names_in_an_interactive_bash(script, here):
    for name in HOSTILE:
        (here / name).touch()
    start = here / "start.bash"
    start.write_text(f"source {script}\n{PRINT_ARGUMENTS}PS1=ready\n")
    line = "fedbilevel compare " + "".join(f"{name[0]}\t" for name in HOSTILE)
    shown = type_in_shell(["bash", "--rcfile", str(start), "-i"], here, line)
    assert "".join(f"<{name}>" for name in ("compare", *HOSTILE)) in shown
    assert not (here / "hacked").exists()


@pytest.mark.process
@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_quotes_the_names_of_plug_ins(shell, monkeypatch, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    name = "Evil$(touch hacked)(touch hacked)"
    types = {name: FedBiO}
    monkeypatch.setattr("fedbilevel.commands.completion.list_types", lambda _: types)
    file = tmp_path / "script"
    file.write_text(fedbilevel(tmp_path, f"completion {shell}").stdout)
    assert name in file.read_text()
    programs = {
        "bash": "source ./script; _fedbilevel_types algorithm:",
        "zsh": "compdef() {}; compadd() { print -rl -- $names }; source ./script; "
        "_fedbilevel_types",
        "fish": "source ./script; complete -C 'fedbilevel run a.toml algorithm:'",
    }
    done = subprocess.run(
        [shell, "-c", programs[shell]], cwd=tmp_path, capture_output=True, text=True
    )
    assert f"algorithm:{name}" in done.stdout
    assert not (tmp_path / "hacked").exists()


@pytest.mark.process
def test_bash_completes_types_after_a_colon(script, here):
    run = ("run", "first.toml", "--rounds", "3")
    # As bash breaks algorithm:FedBiOA into words.
    assert offers(script, here, *run, "algorithm", ":", "FedBiOA") == {"FedBiOAcc"}
    assert offers(script, here, *run, "algorithm", ":") == set(list_types("algorithm"))
    assert offers(script, here, *run, "engine", ":") == set(list_types("engine"))
    # And as it does where COMP_WORDBREAKS has no colon.
    assert offers(script, here, *run, "algorithm:Sim") == {"algorithm:SimFBO"}


@pytest.mark.process
def test_tab_completes_a_type_in_an_interactive_bash(script, here):
    start = here / "start.bash"
    start.write_text(f"source {script}\nfedbilevel() {{ echo got $*; }}\nPS1=ready\n")
    line = "fedbilevel run fir\talgorithm:FedN\t--rou\t3"
    shown = type_in_shell(["bash", "--rcfile", str(start), "-i"], here, line)
    assert "got run first.toml algorithm:FedNest --rounds 3" in shown


def type_in_shell(command: list[str], directory: Path, line: str) -> str:
    """Type a line in a shell with the prompt "ready"; return what it showed."""
    require_linux()  # macOS has no setsid.
    # Not pty.fork: JAX warns of a fork in a process with threads.
    terminal, inner = pty.openpty()
    settings = {"TERM": "dumb", "INPUTRC": "/dev/null", "ZDOTDIR": str(directory)}
    shell = subprocess.Popen(
        ["setsid", "--ctty", *command],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=directory,
        env=os.environ | settings,
    )
    os.close(inner)
    shown = read_until(terminal, "ready")
    os.write(terminal, line.encode() + b"\n")
    shown += read_until(terminal, "ready")
    os.write(terminal, b"exit\n")
    shell.wait(HANG)
    os.close(terminal)
    return shown


def read_until(terminal: int, awaited: str) -> str:
    shown = ""
    while awaited not in shown:
        assert select.select([terminal], [], [], HANG)[0], shown
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def test_the_options_of_run_are_those_of_its_help(here, monkeypatch):
    monkeypatch.chdir(here)
    printed = io.StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit), as_for_users():
        main(["run", "first.toml", "--help"])
    listed = set(re.findall(r"--[a-z][a-z0-9.-]*", printed.getvalue()))
    offered = options("run")
    assert "--partition.no-natural" in listed
    assert listed <= offered
    # Those of other types are offered too, for use after a word like engine:Sharded.
    others = {"--json", "--dry-run", "-h", *listed}
    tables = ("--algorithm.", "--problem.", "--engine.")
    assert {name for name in offered - others if not name.startswith(tables)} == set()


def options(name: str) -> set[str]:
    for action in whole_command_line()._actions:
        if isinstance(action.choices, dict):
            actions = action.choices[name]._actions
            return {option for one in actions for option in one.option_strings}
    raise AssertionError(name)
