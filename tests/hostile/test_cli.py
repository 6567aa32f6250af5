"""Hostile arguments and experiment files: an error message, and exit code 2."""

from pathlib import Path

import pytest

from fedbilevel.__main__ import main

AUTO = 'rounds = 2\nalgorithm = "auto"\n'
FEDBIO = 'rounds = 2\n[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n'
FILES = {
    "empty": ("", 'algorithm is missing; add: algorithm = "auto"'),
    "no text": ("\x00\x01", "is not valid TOML"),
    "nested": ("a=" + "[" * 3000 + "]" * 3000, "is nested too deeply"),
    "twice": ("rounds = 1\nrounds = 2", "Cannot overwrite a value"),
    "an unknown key": (f"{AUTO}foo = 1", "unknown key foo; choose one of"),
    "a slip": (f"{AUTO}roundz = 3", "did you mean rounds?"),
    "after many spaces": (
        "rounds =" + " " * 20_000 + '1\nalgorithm = "auto"\nfoo = 1',
        "unknown key foo",
    ),
    "rounds that are a word": ('rounds = "3"', 'give a whole number, not "3"'),
    "rounds that are a half": ("rounds = 3.5", "give a whole number, not 3.5"),
    "rounds that are true": ("rounds = true", "give a whole number, not true"),
    "rounds that are a date": (
        "rounds = 2020-01-01",
        "give a whole number, not 2020-01-01",
    ),
    "rounds that are a table": (
        "rounds = {a = 1}",
        "give a whole number, not {a = 1}",
    ),
    "rounds below zero": (
        AUTO.replace("2", "-3"),
        "at least 1, not -3",
    ),
    "one round of auto": (
        AUTO.replace("2", "1"),
        "at least 2 (the first round only measures), not 1",
    ),
    "too many rounds": (AUTO.replace("2", "9" * 23), "at most 2147483647"),
    "a seed of 33 bits": (f"{AUTO}seed = {2**32}", "at least 0 and at most 4294967295"),
    "a seed below zero": (f"{AUTO}seed = -1", "at least 0 and at most 4294967295"),
    "no algorithm": ("rounds = 2", 'algorithm is missing; add: algorithm = "auto"'),
    "a number for an algorithm": (
        "algorithm = 3",
        "with the settings beside the name, not 3.",
    ),
    "a list for an algorithm": ("algorithm = [1]", "beside the name, not [1]."),
    "a name for an algorithm": ('algorithm = "FedBiO"', '{ name = "FedBiO" }'),
    "an unknown algorithm": ('[algorithm]\nname = "FedBio"', "did you mean FedBiO?"),
    "an algorithm without name": (
        "[algorithm]\nx = 1",
        "algorithm.name: the key is missing",
    ),
    "a rate that is a word": (FEDBIO.replace("0.1", '"a"'), "give a number, not"),
    "a rate below zero": (
        FEDBIO.replace("0.1", "-1"),
        "a schedule, above 0",
    ),
    "a rate that is no number": (
        FEDBIO.replace("0.1", "nan"),
        "give a finite number, not",
    ),
    "an infinite rate": (FEDBIO.replace("0.1", "inf"), "give a finite number, not"),
    "a switch that is a word": (
        f'{FEDBIO}private_lower = "no"',
        "give true or false, not",
    ),
    "an unknown problem": (
        f'{AUTO}[problem]\nname = "x"',
        "unknown name 'x'; choose one of",
    ),
    "no file": (
        f'{AUTO}[problem]\nname = "CustomProblem"',
        "problem.file is missing; add the key to [problem]",
    ),
    "a file that is not there": (
        f'{AUTO}[problem]\nname = "CustomProblem"\nfile = "nope.py"',
        "nope.py does not exist; correct the path",
    ),
    "a layer of a trillion": (
        f'{AUTO}[problem]\nname = "Representation"\nunits = [1000000000000]',
        "Out of memory: ",
    ),
    "no layer": (
        f'{AUTO}[problem]\nname = "Representation"\nunits = []',
        "give at least one layer",
    ),
    "unknown data": (f'{AUTO}[data]\nname = "x"', "unknown name 'x'; choose one of"),
    "more examples than there are": (
        f"{AUTO}[data]\ntrain_size = 100000000",
        "has 1437 examples; reduce",
    ),
    "examples below zero": (
        f"{AUTO}[data]\ntrain_size = -1",
        "whole number, at least 1",
    ),
    "no device": (f"{AUTO}[partition]\ndevices = 0", "whole number, at least 1"),
    "too many devices": (
        f"{AUTO}[partition]\ndevices = 10000",
        "reduce partition.devices",
    ),
    "too many participants": (f"{AUTO}participants = 999", "from 1 to 8"),
    "a limit below zero": (f"{AUTO}norm_limit = -1", "give a number, above 0"),
    "no size": (f"{AUTO}size_limit = 0", "whole number, at least 1"),
    "a directory that is a number": (
        f"{AUTO}directory = 3",
        "give the path of a file or directory, not",
    ),
    "a directory without a name": (
        f'{AUTO}directory = ""',
        "give the path of a file or directory, not",
    ),
    "no checkpoint": (
        f"{AUTO}checkpoints.every = 0",
        "whole number, at least 1",
    ),
    "no timeout": (f"{AUTO}federation.timeout = 0", "give a number, above 0"),
    "a factor below 1": (
        f"{AUTO}federation.straggler_factor = 0.5",
        "give a number, at least 1",
    ),
    "a site twice": (
        f'{AUTO}federation.sites = ["a", "a"]',
        "each name once, not ['a', 'a']",
    ),
    "an unknown optimiser": (
        f'server_optimiser = {{name = "x"}}\n{FEDBIO}',
        "optax has no optimiser 'x'",
    ),
}
ARGUMENTS = {
    "a file that is not there": (("run", "nope.toml"), "cannot be read: No such file"),
    "a directory for a file": (("run", "."), ". is a directory, not a file"),
    "a file for a directory": (
        ("run", "a.toml", "--directory", "a.toml"),
        "cannot be used",
    ),
    "a directory nobody can make": (
        ("run", "a.toml", "--directory", "/proc/x"),
        "cannot be",
    ),
    "an unknown kind": (
        ("run", "a.toml", "algorithm:Nope"),
        "selects an unknown type; choose one of Auto",
    ),
    "no run": (("resume", "nope"), "is not a run directory"),
    "a file for a run": (("plot", "a.toml"), "is a file, not a run directory"),
    "no file to compare": (("compare", "nope"), "nope does not exist"),
    "nothing to diagnose": (("diagnose", "nope"), "cannot be read"),
    "nothing to tune": (("tune", "nope.toml"), "cannot be read"),
    "no trial": (("tune", "a.toml", "--trials", "0"), "is 0. Give at least 1."),
    "no seed": (("compare", "a.toml", "--seeds", "0"), "is 0. Give at least 1."),
    "no job": (("compare", "a.toml", "--jobs", "0"), "is 0. Give at least 1."),
    "nothing to federate": (("federate", "nope.toml"), "cannot be read"),
    "a keyword": (("new", "class"), "is a keyword of Python"),
    "a module": (("new", "json"), "Choose another name"),
    "a path": (("new", "../x", "--ready", "cleaning"), "is not a file name"),
}


def refusal(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(arguments)) == 2
    output = capsys.readouterr().err
    assert "Traceback" not in output
    assert "Errno" not in output
    return output


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(AUTO)


@pytest.mark.slow
@pytest.mark.single_precision
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_answered_in_a_sentence(name, capsys):
    text, message = FILES[name]
    Path("first.toml").write_text(text)
    assert message in refusal(("run", "first.toml"), capsys)
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_answered_in_a_sentence(name, capsys):
    arguments, message = ARGUMENTS[name]
    assert message in refusal(arguments, capsys)


def test_bytes_that_are_no_text_are_reported(capsys):
    Path("first.toml").write_bytes(b"rounds=\xff\xfe")
    assert "is not UTF-8 text (byte 7 is invalid)" in refusal(
        ("run", "first.toml"), capsys
    )
