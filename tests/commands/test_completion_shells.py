"""Completion in zsh and fish, where they are installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands.test_completion import HOSTILE, PRINT_ARGUMENTS, type_in_shell
from tests.commands.typing_in import fedbilevel

pytestmark = pytest.mark.nightly
START = """
fpath=($ZDOTDIR $fpath)
autoload -U compinit
compinit -u
zstyle ':completion:*' insert-tab false
FUNCTION
PS1=ready
"""


def write_script(directory: Path, shell: str, name: str) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (directory / "first.toml").touch()
    (directory / "runs").mkdir()
    file = directory / name
    file.write_text(fedbilevel(directory, f"completion {shell}").stdout)
    return file


def printed(script: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_fish_completes_files_options_and_types(tmp_path):
    script = write_script(tmp_path, "fish", "fedbilevel.fish")
    printed(script, "fish", "-n", str(script))

    def offered(line: str) -> set[str]:
        program = f"source {script}; complete -C '{line}'"
        lines = printed(script, "fish", "-c", program).splitlines()
        return {one.partition("\t")[0] for one in lines}

    assert "resume" in offered("fedbilevel re")
    assert offered("fedbilevel run f") >= {"first.toml"}
    assert offered("fedbilevel resume r") == {"runs/"}
    run = "fedbilevel run first.toml"
    assert offered(f"{run} --algorithm.le") == {"--algorithm.learning-rate"}
    assert offered(f"{run} algorithm:Sim") == {"algorithm:SimFBO"}


def test_tab_completes_files_types_and_options_in_zsh(tmp_path):
    script = write_script(tmp_path, "zsh", "_fedbilevel")
    printed(script, "zsh", "-n", str(script))
    echo = "fedbilevel() { echo got $*; }"
    (tmp_path / ".zshrc").write_text(START.replace("FUNCTION", echo))
    line = "fedbilevel run fir\talgorithm:FedN\t--rou\t3"
    shown = type_in_shell(["zsh", "-i"], tmp_path, line)
    assert "got run first.toml algorithm:FedNest --rounds 3" in shown


def test_tab_quotes_hostile_names_in_zsh(tmp_path):
    write_script(tmp_path, "zsh", "_fedbilevel")
    for name in HOSTILE:
        (tmp_path / name).touch()
    (tmp_path / ".zshrc").write_text(START.replace("FUNCTION", PRINT_ARGUMENTS))
    line = "fedbilevel compare " + "".join(f"{name[0]}\t" for name in HOSTILE)
    shown = type_in_shell(["zsh", "-i"], tmp_path, line)
    assert "".join(f"<{name}>" for name in ("compare", *HOSTILE)) in shown
    assert not (tmp_path / "hacked").exists()


def test_fish_offers_hostile_names(tmp_path):
    script = write_script(tmp_path, "fish", "fedbilevel.fish")
    for name in HOSTILE:
        (tmp_path / name).touch()
    for name in HOSTILE:
        program = f"source {script}; complete -C 'fedbilevel compare {name[0]}'"
        assert printed(script, "fish", "-c", program).splitlines() == [name]
    assert not (tmp_path / "hacked").exists()
