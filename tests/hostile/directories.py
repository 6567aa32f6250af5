"""Hostile run directories and problem files, each with a part of its error message.

Every case has its own run directory, damaged in one way, and a command. Beside the
directory is a file of another program, which no command may change.
"""

import io
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

RUN = "r"
"""In place of a path on the command line: the run directory."""
PRECIOUS = "precious"
"""The file of another program beside the run directory."""
PROBLEM = '''"""A scalar problem."""
import jax.numpy as jnp
import numpy as np
from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.problems import Task


def upper_loss(x, y, batch):
    return jnp.mean((y - 1) ** 2 + 0 * batch)


def lower_loss(x, y, batch):
    return jnp.mean(batch * (y - x) ** 2) / 2


def task():
    ones = np.ones(2, np.float32)
    held = [LocalExamples(ones, 2 * ones)] * 2
    start = jnp.array(3.0), jnp.array(4.0)
    metrics = {"size": lambda x, y: METRIC}
    losses = BilevelProblem(upper_loss, lower_loss)
    return Task(losses, InMemoryDevices(held), *start, metrics)
'''
EXPERIMENT = """rounds = 4
[problem]
name = "CustomProblem"
file = "problem.py"
[algorithm]
name = "FedBiO"
learning_rate = 0.1
[evaluation]
every = 1
baseline = false
[checkpoints]
every = 2
"""
LINE = (
    '{"rounds": 4, "seconds": 0.1, "upper_samples": 1, "lower_samples": 1, '
    '"exchanges": 1, "bytes_down": 1, "bytes_up": 1, "metrics": {"loss": 1.0}}'
)


class Case(NamedTuple):
    """A damaged run directory, a command, and its expected outcome.

    Attributes:
        name: name of the damage.
        damage: function that damages a run directory.
        command: arguments of the command line, with `RUN` for the directory.
        message: part of the output.
        code: exit code.
        changes: whether the command may write into the directory.
        root: whether the error also occurs for root, who may read every file.
    """

    name: str
    damage: Callable[[Path], Any]
    command: tuple[str, ...]
    message: str
    code: int = 2
    changes: bool = False
    root: bool = True


def gone(path: Path) -> Path:
    """Delete the file or directory at a path, and return the path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return path


def written(content: bytes, path: Path) -> None:
    gone(path).write_bytes(content)


def halved(path: Path) -> None:
    content = path.read_bytes()
    written(content[: len(content) // 2], path)


def directory(path: Path) -> None:
    gone(path).mkdir()
    (path / "x").write_text("x")


def link(target: str, path: Path) -> None:
    gone(path).symlink_to(target)


def socketed(path: Path) -> None:
    # The path of a socket has at most 107 bytes, and a test's directory has more.
    with socket.socket(socket.AF_UNIX) as opened:
        here = Path.cwd()
        os.chdir(gone(path).parent)
        opened.bind(path.name)
        os.chdir(here)


def forbidden(path: Path) -> None:
    path.chmod(0)


GARBAGE = bytes(range(256)) * 4
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": partial(written, b""),
    "garbage": partial(written, GARBAGE),
    "zeros": partial(written, bytes(1000)),
    "a list": partial(written, b"[]\n"),
    "null": partial(written, b"null\n"),
    "a directory": directory,
    "a link to nowhere": partial(link, "nowhere"),
    "a link to itself": lambda path: link(path.name, path),
    "a pipe": lambda path: os.mkfifo(gone(path)),
    "a socket": socketed,
    "a device": partial(link, "/dev/null"),
}
NO_FILE = {
    "a directory": "is a directory, not a file; ",
    "a link to nowhere": "is a link to a missing file; ",
    "a link to itself": "cannot be read: Too many levels of symbolic links; ",
    "a pipe": "is a pipe, not a file; ",
    "a socket": "cannot be read: No such device or address; ",
    "a device": "is a device, not a file; ",
}
"""Messages about objects that are not regular files."""


def packed(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def bomb(path: Path) -> None:
    """Write a small file that unpacks to 40 MB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (5_000_000,)}
    )
    with zipfile.ZipFile(gone(path), "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header.getvalue() + bytes(20_000_000))


def claims(path: Path) -> None:
    """Write arrays whose headers declare more bytes than there is memory."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)}
    )
    with zipfile.ZipFile(gone(path), "w") as archive:
        for name in ("x.npy", "y.npy"):
            archive.writestr(name, header.getvalue())


def solutions() -> list[Case]:
    def at(
        label: str, damage: Callable[[Path], Any], message: str, **more: Any
    ) -> Case:
        command = ("diagnose", RUN)
        return Case(
            f"solution.npz: {label}",
            lambda run: damage(run / "solution.npz"),
            command,
            message,
            **more,
        )

    again = "write it again with: fedbilevel resume"
    numbers = packed(x=np.zeros(()), y=np.zeros(()))
    damaged = f"solution.npz is damaged; remove it, and {again}"
    objects = packed(x=np.array([{}], object), y=np.zeros(()))
    single = io.BytesIO()
    np.save(single, np.zeros(3))
    return [
        *(
            at(label, damage, NO_FILE.get(label, damaged))
            for label, damage in DAMAGES.items()
        ),
        at("truncated", halved, damaged),
        at("pickled objects", partial(written, objects), damaged),
        at("one array alone", partial(written, single.getvalue()), damaged),
        at("a bomb", bomb, damaged),
        at("a claim of memory", claims, damaged),
        at("cut by a byte", partial(written, numbers[:-1]), damaged),
        at("text", partial(written, b"PK\x03\x04 and so on"), damaged),
        at(
            "no array",
            partial(written, packed()),
            "has the arrays (none), but the variables",
        ),
        at(
            "one missing",
            partial(written, packed(x=np.zeros(()))),
            "has the arrays x, but the",
        ),
        at(
            "another shape",
            partial(written, packed(x=np.zeros(3), y=np.zeros(()))),
            "x of r/solution.npz has shape (3,), but the problem has (). The problem "
            "has changed since the run; run the experiment again",
        ),
        at("missing", gone, "has no solution.npz: the run is not finished; resume it"),
        at("no permission", forbidden, "Permission denied; remove it", root=False),
    ]


def plotted() -> list[Case]:
    """Return objects at the paths of pictures and of the report."""

    def at(
        label: str, name: str, damage: Callable[[Path], Any], message: str, code: int
    ):
        return Case(
            f"{name}: {label}",
            lambda run: damage(run / name),
            ("plot", RUN),
            message,
            code,
            changes=True,
        )

    outside = partial(link, f"../{PRECIOUS}")
    blocked = "Is a directory. Move or rename that directory"
    return [
        at("a link outside", "report.html", outside, "Report: ", 0),
        at("a link outside", "history.svg", outside, "Report: ", 0),
        at("a link", "unfinished-report.html", outside, "Report: ", 0),
        at("a pipe", "report.html", DAMAGES["a pipe"], "Report: ", 0),
        at("a directory", "report.html", directory, blocked, 2),
        at("a directory", "unfinished-history.svg", directory, blocked, 2),
    ]


def records() -> list[Case]:
    def at(
        label: str,
        damage: Callable[[Path], Any],
        message: str,
        command: str = "compare",
        code: int = 2,
    ) -> Case:
        return Case(
            f"metrics.jsonl: {label}, {command}",
            lambda run: damage(run / "metrics.jsonl"),
            (command, RUN),
            message,
            code,
        )

    nothing = "r: the run has no measurements yet; resume it with: fedbilevel"
    wrong: dict[str, Any] = {
        "rounds that are a word": {"rounds": "4"},
        "rounds that are true": {"rounds": True},
        "rounds below zero": {"rounds": -1},
        "half a round": {"rounds": 0.5},
        "no seconds": {"seconds": None},
        "seconds below zero": {"seconds": -1},
        "seconds in a list": {"seconds": [1]},
        "bytes that are a word": {"bytes_up": "1"},
        "metrics in a list": {"metrics": [1.0]},
        "metrics that are words": {"metrics": {"loss": "1"}},
        "metrics that are lists": {"metrics": {"loss": [1.0]}},
        "metrics that are true": {"metrics": {"loss": True}},
        "no metrics": {"metrics": None},
        "exclusions in a list": {"exclusions": [1]},
        "unknown exclusions": {"exclusions": {"who": 1}},
        "exclusions of no devices": {"exclusions": {"devices": [[1]]}},
        "a number of 500 digits": {"metrics": {"loss": 10**500}},
    }
    lines = {
        name: f"{json.dumps({**json.loads(LINE), **changes})}\n".encode()
        for name, changes in wrong.items()
    }
    lines["nested"] = b"[" * 100_000 + b"\n"
    lines["of another version"] = b'{"version": 7, "round": 3}\n'
    return [
        *(
            at(label, damage, NO_FILE.get(label, nothing))
            for label, damage in DAMAGES.items()
        ),
        *(at(label, partial(written, one), nothing) for label, one in lines.items()),
        at("missing", gone, nothing),
        at("missing", gone, nothing, "plot"),
        at("a pipe", DAMAGES["a pipe"], NO_FILE["a pipe"], "plot"),
        at("a pipe", DAMAGES["a pipe"], NO_FILE["a pipe"], "plan"),
        at("a pipe", DAMAGES["a pipe"], NO_FILE["a pipe"], "resume"),
        at("a directory", directory, NO_FILE["a directory"], "resume"),
        at(
            "a damaged line among others",
            lambda file: written(b"{}\n{}\n{}\n" + file.read_bytes(), file),
            "metrics.jsonl: 3 damaged lines are ignored, the first is line 1",
            code=0,
        ),
        at(
            "a torn last line",
            lambda file: written(file.read_bytes()[:-20], file),
            "r stopped after 3 of 4 rounds",
            code=0,
        ),
    ]


def endings() -> list[Case]:
    """Return damage to the small files of a run that has ended."""

    def at(
        name: str, label: str, damage: Callable[[Path], Any], command: str, message: str
    ) -> Case:
        return Case(
            f"{name}: {label}",
            lambda run: damage(run / name),
            (command, RUN),
            message,
        )

    cure = "remove it, and resume the run, which fails again if its numbers diverge"
    contents = {
        "no rounds": b'{"reason": "x"}',
        "rounds that are a word": b'{"rounds": "x", "reason": "x"}',
        "rounds below zero": b'{"rounds": -3, "reason": "x"}',
        "another key": b'{"rounds": 1, "reason": "x", "more": 2}',
        "nested": b"[" * 100_000,
    }
    failures: list[tuple[str, Callable[[Path], Any]]] = [
        *((label, damage) for label, damage in DAMAGES.items()),
        *((label, partial(written, one)) for label, one in contents.items()),
    ]
    baselines: list[tuple[str, Callable[[Path], Any]]] = [
        *DAMAGES.items(),
        ("another version", partial(written, b"{}")),
    ]
    return [
        *(
            at(
                "failure.json",
                label,
                damage,
                "plot",
                NO_FILE.get(label, f"failure.json is damaged; {cure}"),
            )
            for label, damage in failures
        ),
        *(
            at(
                "baseline.json",
                label,
                damage,
                "resume",
                NO_FILE.get(label, "baseline.json is damaged and is ignored; remove"),
            )._replace(code=0)
            for label, damage in baselines
        ),
        *(
            at(
                "cause.txt",
                label,
                DAMAGES[label],
                "resume",
                f"{NO_FILE[label]}remove it",
            )
            for label in NO_FILE
        ),
        at(
            "cause.txt",
            "escapes",
            partial(written, b"\x1b[2Jall is well"),
            "resume",
            "After 4 rounds",
        )._replace(code=0),
    ]


def settings() -> list[Case]:
    def at(label: str, damage: Callable[[Path], Any], message: str, command="plot"):
        return Case(
            f"experiment.toml: {label}, {command}",
            lambda run: damage(run / "experiment.toml"),
            (command, RUN),
            message,
        )

    def text(content: str) -> Callable[[Path], None]:
        return partial(written, content.encode())

    none = "is not a run directory: it has no file experiment.toml; give"
    known = EXPERIMENT.replace('"problem.py"', '"../a/problem.py"')
    return [
        *(
            at(label, DAMAGES[label], none)
            for label in (
                "a directory",
                "a link to nowhere",
                "a link to itself",
                "a pipe",
            )
        ),
        at("a socket", DAMAGES["a socket"], none, "resume"),
        at("a device", DAMAGES["a device"], none, "compare"),
        at("missing", gone, none, "diagnose"),
        at("missing", gone, none, "plan"),
        at("empty", DAMAGES["empty"], "algorithm is missing; add: algorithm"),
        at(
            "garbage",
            DAMAGES["garbage"],
            "is not UTF-8 text (byte 128 is invalid); save",
        ),
        at("zeros", DAMAGES["zeros"], "is not valid TOML"),
        at("no TOML", text("rounds"), "is not valid TOML", "compare"),
        at("nested", text("a=" + "[" * 3000), "is nested too deeply"),
        at("nested tables", text("[" + "a." * 5000 + "a]"), "unknown key a;"),
        at("a mark of order", text("\ufeffrounds = 3"), "is not valid TOML"),
        at(
            "lines of spaces",
            text(" " * 50_000 + "\n" + known.replace("4", "0")),
            "rounds: give a whole number, at least 1",
        ),
        at("a header of spaces", text("[" + " " * 9_000 + "foo]\n"), "unknown key foo"),
        at("a key of spaces", text('"' + " " * 2_000 + '" = 1'), "unknown key  "),
        at("an escape", text('"\\u001b[2J" = 1\n'), r"unknown key \x1b[2J;"),
        at("a mark of direction", text('"\\u202e" = 1'), r"unknown key \u202e;"),
        at(
            "no file",
            text(known.replace("a/problem", "nope")),
            "nope.py does not exist",
        ),
        at("no rounds", text(known.replace("4", "0")), "rounds", "resume"),
        at("another version", text(f"version = 9\n{known}"), "unknown key version"),
    ]


def places() -> list[Case]:
    """Return unusual paths of run directories, and unusual objects in them."""

    def moved(name: str | bytes) -> Callable[[Path], Any]:
        return lambda run: os.rename(run, os.path.join(run.parent, os.fsdecode(name)))

    def named(label: str, name: str | bytes, command: str, message: str) -> Case:
        return Case(
            f"a name with {label}", moved(name), (command, os.fsdecode(name)), message
        )

    more = ("resume", RUN, "--rounds", "5")
    outside = partial(link, f"../{PRECIOUS}")
    return [
        Case(
            "no directory",
            lambda run: None,
            ("plot", "nope\x1b[2J"),
            r"nope\x1b[2J is not",
        ),
        Case("no text", lambda run: None, ("plot", "nope\udcff"), r"nope\xff is not"),
        named("an escape", "\x1b]0;x\x07", "compare", r"\x1b]0;x\x07")._replace(code=0),
        named("a line", "a\nb", "compare", "a")._replace(code=0),
        named("spaces", "a  b", "compare", "a  b")._replace(code=0),
        named("no text", b"a\xff", "compare", "a\\xff")._replace(code=0),
        Case(
            "a name of 300 letters",
            lambda run: None,
            ("run", "../a.toml", "--directory", "x" * 300),
            "File name too long. Give a shorter name",
        ),
        Case(
            "a lock that is a link outside",
            lambda run: outside(run / ".lock"),
            more,
            "cannot be used",
        ),
        Case(
            "a lock that is a directory",
            lambda run: directory(run / ".lock"),
            more,
            "lock",
        ),
        Case(
            "a draft that is a directory",
            lambda run: directory(run / "unfinished-experiment.toml"),
            more,
            "Is a directory. Move or rename that directory",
            changes=True,
        ),
        Case(
            "a draft that is a link outside",
            lambda run: outside(run / "unfinished-experiment.toml"),
            more,
            "After 5 rounds",
            code=0,
            changes=True,
        ),
        Case(
            "another run's name",
            lambda run: (run / "run").write_text("x"),
            more,
            "is the run directory of a federation. Resume it with the",
        ),
    ]


def checkpoints() -> list[Case]:
    def at(label: str, damage: Callable[[Path], Any], message: str, code: int = 2):
        return Case(
            f"checkpoints: {label}",
            lambda run: damage(run / "checkpoints"),
            ("resume", RUN, "--rounds", "5"),
            message,
            code,
            changes=True,
        )

    def inside(name: str, damage: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def damage_both(checkpoints: Path) -> None:
            for number in (2, 4):
                damage(checkpoints / f"round_{number}" / name)

        return damage_both

    def newest(name: str, damage: Callable[[Path], Any]) -> Callable[[Path], Any]:
        return lambda path: damage(path / "round_4" / name)

    gone_all = "has records of a run but no checkpoints, so the run would start again"
    useless = "all checkpoints are damaged, and were renamed to damaged_*; start the"
    skipped = "Skipped the damaged checkpoint"
    return [
        at("missing", gone, gone_all),
        at("empty", lambda path: gone(path).mkdir(), gone_all),
        at("a link to nowhere", DAMAGES["a link to nowhere"], gone_all),
        at("a file", DAMAGES["garbage"], gone_all),
        at("a pipe", DAMAGES["a pipe"], gone_all),
        at("no digests", inside("digests.json", gone), useless),
        at("garbage for digests", inside("digests.json", DAMAGES["garbage"]), useless),
        at("a list of digests", inside("digests.json", DAMAGES["a list"]), useless),
        at("pipes for digests", inside("digests.json", DAMAGES["a pipe"]), useless),
        at("directories for digests", inside("digests.json", directory), useless),
        at("pipes for arrays", inside("state/0.npz", DAMAGES["a pipe"]), useless),
        at("no notes", inside("notes", gone), useless),
        at("links for notes", inside("notes", DAMAGES["a link to itself"]), useless),
        at("the newest truncated", newest("state/0.npz", halved), skipped, 0),
        at("the newest a pipe", newest("state/0.npz", DAMAGES["a pipe"]), skipped, 0),
        at(
            "the newest a file",
            lambda path: written(b"x", path / "round_4"),
            skipped,
            0,
        ),
        at(
            "a number too many",
            lambda path: (path / "round_99999999999999999999").mkdir(),
            "another run has written newer ones",
        ),
        at("names of none", lambda path: (path / "round_x").mkdir(), "After 5", 0),
    ]


def problems() -> list[Case]:
    """Return hostile problem files of an experiment."""

    def problem(label: str, content: str | bytes, message: str) -> Case:
        source = content.encode() if isinstance(content, str) else content

        def damage(run: Path) -> None:
            (run.parent / "problem.py").write_bytes(source)
            (run.parent / "a.toml").write_text(EXPERIMENT)

        return Case(f"a problem: {label}", damage, ("run", "a.toml"), message)

    def metric(label: str, returned: str) -> Case:
        source = PROBLEM.replace("METRIC", returned)
        return problem(label, source, "Metric 'size' returned a")

    silent = "class Silent(Exception):\n    def __str__(self): 1 / 0\nraise Silent"
    return [
        problem("empty", "", "has no function task(); add it, as in the example"),
        problem(
            "no Python", "def", "line 1: SyntaxError: invalid syntax; correct the file"
        ),
        problem("no text", b"x = '\xff'", "problem.py"),
        problem(
            "a zero byte", "x = 1\0", "problem.py: SyntaxError: source code string"
        ),
        problem("a task that is a number", "task = 3", "has no function task()"),
        problem(
            "a task of nothing", "def task(): pass", "returned a NoneType; return a"
        ),
        problem("a task with arguments", "def task(x): pass", "missing 1 required"),
        problem("no such module", "import nope_nope", "line 1: ModuleNotFoundError"),
        problem(
            "escapes", "raise ValueError('\\x1b[2Jfine')", r"ValueError: \x1b[2Jfine"
        ),
        problem(
            "an exit", "raise SystemExit(0)", "line 1 exits the program; return or"
        ),
        problem("a late exit", "def task():\n    exit(0)", "line 2 exits the program"),
        problem(
            "an exit of generators", "raise GeneratorExit", "line 1: GeneratorExit"
        ),
        problem("no message", silent, "Silent: no message, because its __str__ fails"),
        problem("endless recursion", "def f(): f()\nf()", "RecursionError"),
        problem("no memory", "raise MemoryError", "line 1: MemoryError"),
        problem(
            "an error of the system", "open('/nope/x')", "line 1: FileNotFoundError"
        ),
        metric("a metric that is a list", "[1.0, 2.0]"),
        metric("a metric of lists", "[[1.0], [2.0, 3.0]]"),
        metric("a metric that is None", "None"),
        metric("a metric that is a word", "'high'"),
        metric("a metric that is a table", "{}"),
        metric("a metric that is complex", "1j"),
        metric("a metric that is y and x", "(x, y)"),
    ]


def received() -> list[Case]:
    """Return run directories that name a file to be executed."""
    evil = "import pathlib\npathlib.Path('executed').write_text('')\n"

    def names(file: str, place: str) -> Callable[[Path], None]:
        def damage(run: Path) -> None:
            (run.parent / place).write_text(evil + PROBLEM.replace("METRIC", "1.0"))
            text = EXPERIMENT.replace('"problem.py"', json.dumps(file))
            (run / "experiment.toml").write_text(text)

        return damage

    ask = "neither run nor allowed in its current version. Read it, and add --trust"
    inside, beside = names("problem.py", "r/problem.py"), names("../x.py", "x.py")
    return [
        Case("received: plot", inside, ("plot", RUN), ask),
        Case("received: resume", inside, ("resume", RUN, "--rounds", "6"), ask),
        Case("received: diagnose", inside, ("diagnose", RUN), ask),
        Case("received: beside it", beside, ("plot", RUN), ask),
        Case(
            "received: trusted",
            inside,
            ("plot", RUN, "--trust"),
            "Report: ",
            code=0,
            changes=True,
        ),
    ]


CASES = [
    *solutions(),
    *plotted(),
    *records(),
    *endings(),
    *settings(),
    *places(),
    *checkpoints(),
    *problems(),
    *received(),
]
