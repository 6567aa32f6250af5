"""Completion in shells: bash as a person types, names of options, all subcommands.

`test_completion_shells` has the completions of zsh and fish, where these are installed.
"""

import io
import os
import pty
import re
import select
import shlex
import subprocess
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from fedbilevel.__main__ import COMMANDS, main
from fedbilevel.commands.completion import SHELLS, whole_command_line
from fedbilevel.experiments.schema.registry import list_types
from tests.commands.typing_in import QUICK, as_for_users, fedbilevel
from tests.platforms import require_linux
from tests.waiting import HANG

REPLIES = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={position}
$(complete -p fedbilevel | sed 's/.*-F \\([^ ]*\\) .*/\\1/') 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


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


def replies(script: Path, directory: Path, *words: str) -> set[str]:
    """Return what bash offers for the last of some words."""
    typed = " ".join(map(shlex.quote, ("fedbilevel", *words)))
    program = REPLIES.format(script=script, words=typed, position=len(words))
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_subcommand(shell, tmp_path):
    shown = fedbilevel(tmp_path, f"completion {shell}").stdout
    for name in (*COMMANDS, "algorithm:FedBiOAcc", "--algorithm.learning-rate"):
        assert name.lstrip("-") in shown


@pytest.mark.process
def test_bash_completes_subcommands_and_options(script, here):
    assert replies(script, here, "") >= set(COMMANDS)
    assert replies(script, here, "re") == {"resume"}
    assert replies(script, here, "run", "first.toml", "--algorithm.le") == {
        "--algorithm.learning-rate"
    }
    assert "--trust" in replies(script, here, "plot", "runs/first", "-")
    assert replies(script, here, "completion", "") == set(SHELLS)


@pytest.mark.process
def test_bash_completes_experiment_files_and_run_directories(script, here):
    assert replies(script, here, "run", "") == {"first.toml", "runs"}
    assert replies(script, here, "resume", "") == {"runs"}
    assert replies(script, here, "compare", "runs/first", "f") == {"first.toml"}
    assert replies(script, here, "plot", "runs/first", "--out", "r") == {"runs"}


@pytest.mark.process
def test_bash_completes_types_after_a_colon(script, here):
    run = ("run", "first.toml", "--rounds", "3")
    # As bash breaks algorithm:FedBiOA into words.
    assert replies(script, here, *run, "algorithm", ":", "FedBiOA") == {"FedBiOAcc"}
    assert replies(script, here, *run, "algorithm", ":") == set(list_types("algorithm"))
    assert replies(script, here, *run, "engine", ":") == set(list_types("engine"))
    # And as it does where COMP_WORDBREAKS has no colon.
    assert replies(script, here, *run, "algorithm:Sim") == {"algorithm:SimFBO"}


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
