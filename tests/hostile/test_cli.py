"""Hostile words on the command line and in experiment files: a sentence, and code 2."""

from pathlib import Path

import pytest

from fedbilevel.__main__ import main

AUTO = 'rounds = 2\nalgorithm = "auto"\n'
FEDBIO = 'rounds = 2\n[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n'
FILES = {
    "empty": ("", "algorithm is missing"),
    "no text": ("\x00\x01", "is no TOML"),
    "nested": ("a=" + "[" * 3000 + "]" * 3000, "is nested too deeply"),
    "twice": ("rounds = 1\nrounds = 2", "Cannot overwrite a value"),
    "an unknown key": (f"{AUTO}foo = 1", "foo is not known; there are"),
    "a slip": (f"{AUTO}roundz = 3", "did you mean rounds?"),
    "after many spaces": (
        "rounds =" + " " * 20_000 + '1\nalgorithm = "auto"\nfoo = 1',
        "foo is not known",
    ),
    "rounds that are a word": ('rounds = "3"', "a whole number is needed"),
    "rounds that are a half": ("rounds = 3.5", "a whole number is needed"),
    "rounds that are true": ("rounds = true", "a whole number is needed"),
    "rounds that are a date": ("rounds = 2020-01-01", "a whole number is needed"),
    "rounds that are a table": ("rounds = {a = 1}", "a whole number is needed"),
    "rounds below zero": (
        AUTO.replace("2", "-3"),
        "at least 1, not -3",
    ),
    "one round of auto": (AUTO.replace("2", "1"), "give at least 2, not 1"),
    "too many rounds": (AUTO.replace("2", "9" * 23), "32 bits"),
    "a seed of 33 bits": (f"{AUTO}seed = {2**32}", "at least 0 and at most 4294967295"),
    "a seed below zero": (f"{AUTO}seed = -1", "at least 0 and at most 4294967295"),
    "no algorithm": ("rounds = 2", "algorithm is missing"),
    "a number for an algorithm": ("algorithm = 3", 'write { name = "auto" }'),
    "a list for an algorithm": ("algorithm = [1]", 'write { name = "auto" }'),
    "a name for an algorithm": ('algorithm = "FedBiO"', '{ name = "FedBiO" }'),
    "an unknown algorithm": ('[algorithm]\nname = "FedBio"', "did you mean FedBiO?"),
    "an algorithm without name": ("[algorithm]\nx = 1", "its name is missing"),
    "a rate that is a word": (FEDBIO.replace("0.1", '"a"'), "a number is needed"),
    "a rate below zero": (
        FEDBIO.replace("0.1", "-1"),
        "a schedule, above 0",
    ),
    "a rate that is no number": (FEDBIO.replace("0.1", "nan"), "a finite number"),
    "an infinite rate": (FEDBIO.replace("0.1", "inf"), "a finite number"),
    "a switch that is a word": (f'{FEDBIO}private_lower = "no"', "true or false is"),
    "an unknown problem": (f'{AUTO}[problem]\nname = "x"', "which is not known"),
    "no file": (f'{AUTO}[problem]\nname = "CustomProblem"', "problem.file is missing"),
    "a file that is not there": (
        f'{AUTO}[problem]\nname = "CustomProblem"\nfile = "nope.py"',
        "problem.file: there is no",
    ),
    "a layer of a trillion": (
        f'{AUTO}[problem]\nname = "Representation"\nunits = [1000000000000]',
        "Out of memory: ",
    ),
    "no layer": (
        f'{AUTO}[problem]\nname = "Representation"\nunits = []',
        "give at least one layer",
    ),
    "unknown data": (f'{AUTO}[data]\nname = "x"', "which is not known"),
    "more examples than there are": (f"{AUTO}[data]\ntraining = 100000000", "has 1437"),
    "examples below zero": (
        f"{AUTO}[data]\ntraining = -1",
        "whole number, at least 1",
    ),
    "no device": (f"{AUTO}[partition]\ndevices = 0", "whole number, at least 1"),
    "too many devices": (
        f"{AUTO}[partition]\ndevices = 10000",
        "ask for fewer devices",
    ),
    "too many participants": (f"{AUTO}participants = 999", "ask for 1 to 8"),
    "a limit below zero": (f"{AUTO}norm_limit = -1", "give a number, above 0"),
    "no size": (f"{AUTO}size_limit = 0", "whole number, at least 1"),
    "a directory that is a number": (
        f"{AUTO}directory = 3",
        "of a file or directory is needed",
    ),
    "a directory without a name": (
        f'{AUTO}directory = ""',
        "of a file or directory is needed",
    ),
    "no checkpoint": (
        f"{AUTO}checkpoints.every = 0",
        "whole number, at least 1",
    ),
    "no timeout": (f"{AUTO}federation.timeout = 0", "give a number, above 0"),
    "no patience": (
        f"{AUTO}federation.straggler_factor = 0.5",
        "give a number, at least 1",
    ),
    "a site twice": (f'{AUTO}federation.sites = ["a", "a"]', "none twice"),
    "an unknown optimiser": (
        f'server_optimiser = {{name = "x"}}\n{FEDBIO}',
        "optax has no optimiser 'x'",
    ),
}
WORDS = {
    "a file that is not there": (("run", "nope.toml"), "cannot be read: No such file"),
    "a directory for a file": (("run", "."), "cannot be read: Is a directory"),
    "a file for a directory": (
        ("run", "a.toml", "--directory", "a.toml"),
        "cannot be used",
    ),
    "a directory nobody can make": (
        ("run", "a.toml", "--directory", "/proc/x"),
        "cannot be",
    ),
    "an unknown kind": (("run", "a.toml", "algorithm:Nope"), "there are Auto"),
    "no run": (("resume", "nope"), "is no directory of a run"),
    "a file for a run": (("plot", "a.toml"), "is no directory of a run"),
    "no file to compare": (("compare", "nope"), "cannot be read"),
    "nothing to diagnose": (("diagnose", "nope"), "cannot be read"),
    "nothing to tune": (("tune", "nope.toml"), "cannot be read"),
    "no trial": (("tune", "a.toml", "--trials", "0"), "is 0. Give at least 1."),
    "no seed": (("compare", "a.toml", "--seeds", "0"), "is 0. Give at least 1."),
    "no job": (("compare", "a.toml", "--jobs", "0"), "is 0. Give at least 1."),
    "nothing to federate": (("federate", "nope.toml"), "cannot be read"),
    "a keyword": (("new", "class"), "Use letters, digits and underscores"),
    "a module": (("new", "json"), "Choose another name"),
    "a path": (("new", "../x", "--ready", "cleaning"), "is not a file name"),
}


def refusal(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(list(words)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert "Errno" not in said
    return said


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(AUTO)


@pytest.mark.slow
@pytest.mark.single_precision
@pytest.mark.parametrize("what", FILES)
def test_a_file_is_answered_in_a_sentence(what, capsys):
    text, words = FILES[what]
    Path("asked.toml").write_text(text)
    assert words in refusal(("run", "asked.toml"), capsys)
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("what", WORDS)
def test_words_are_answered_in_a_sentence(what, capsys):
    given, words = WORDS[what]
    assert words in refusal(given, capsys)


def test_bytes_that_are_no_text_are_told(capsys):
    Path("asked.toml").write_bytes(b"rounds=\xff\xfe")
    assert "no text in UTF-8" in refusal(("run", "asked.toml"), capsys)
