"""Mistakes of users of the command line, with expected parts of the messages.

`python -m tests.commands.mistakes` makes all of them in one process, and prints the
messages as JSON.
"""

import contextlib
import io
import json
import os
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ALGORITHM = '[algorithm]\nname = "FedBiO"\nlearning_rate = 0.1\n'
SMALL = "[data]\ntrain_size = 60\nvalidation_size = 40\n"
SERIES = (
    '[algorithm]\nname = "LocalBSGM"\nlearning_rate = 0.1\n[algorithm.hypergradient]\n'
)
OWN = '[problem]\nname = "CustomProblem"\nfile = "own.py"\n' + ALGORITHM
TASK = """
import jax.numpy as jnp
import numpy as np
import fedbilevel as fb
from fedbilevel.problems import LabelledRows, Split, Task, regularisation

def loss(x, y, batch):
    return jnp.mean((batch @ y) ** 2) + jnp.sum(x * x) + jnp.sum(y * y)

def task(upper=loss, lower=loss, x=jnp.zeros(3), y=jnp.zeros(3), rows=None):
    rows = np.ones((5, 3), np.float32) if rows is None else rows
    held = [fb.LocalExamples(rows, rows), fb.LocalExamples(rows, rows)]
    return Task(
        fb.BilevelProblem(upper, lower), fb.InMemoryDevices(held), x, y, {}
    )
"""


class Mistake(NamedTuple):
    """A command line with its files, and expected parts of its message."""

    name: str
    arguments: str
    files: dict[str, str]
    parts: tuple[str, ...]
    before: Callable[[], None] = lambda: None


def of_file(name: str, text: str, *parts: str) -> Mistake:
    return Mistake(name, "run a.toml", {"a.toml": text}, parts)


def of_problem(name: str, code: str, *parts: str) -> Mistake:
    return Mistake(name, "run a.toml", {"a.toml": OWN, "own.py": code}, parts)


def typed(name: str, arguments: str, *parts: str, text: str = ALGORITHM) -> Mistake:
    return Mistake(name, arguments, {"a.toml": text}, parts)


def after_run(
    name: str, arguments: str, *parts: str, before: Callable[[], None] = lambda: None
) -> Mistake:
    """Return a mistake after a run of FedBiO in runs/done with 4 checkpoints."""

    return Mistake(name, arguments, {"done.toml": DONE}, parts, before)


DONE = "rounds = 4\n" + SMALL + ALGORITHM + "[checkpoints]\nevery = 1\n"


def damage_checkpoints() -> None:
    for file in Path("runs/done/checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")


def damage_experiment() -> None:
    Path("runs/done/experiment.toml").write_text("rounds = [")


def forget_measurements() -> None:
    Path("runs/done/metrics.jsonl").unlink()


def make_pipe() -> None:
    os.mkfifo("a.toml")


def make_large_file() -> None:
    # The file is sparse: it needs no space on the disk.
    with open("a.toml", "wb") as file:
        file.truncate(10**9)


MISTAKES = (
    # The file itself.
    Mistake("no such file", "run missing.toml", {}, ("missing.toml", "No such file")),
    Mistake("a directory", "run .", {}, ("directory",)),
    Mistake("an empty path", "run ''", {}, ("FILE is empty", "Give a path")),
    Mistake(
        "a pipe", "run a.toml", {}, ("a.toml is a pipe", "experiment file"), make_pipe
    ),
    Mistake("a device", "run /dev/zero", {}, ("/dev/zero is a device", "give the")),
    Mistake(
        "a file of 1 GB",
        "run a.toml",
        {},
        ("a.toml has 1000000000 bytes", "experiment file"),
        make_large_file,
    ),
    Mistake(
        "a Python file to run",
        "run own.py",
        {"own.py": "import jax"},
        ("own.py is a Python file", "fedbilevel new NAME"),
    ),
    Mistake(
        "the Python file of an experiment",
        "run own.py",
        {"own.py": "import jax", "own.toml": OWN},
        ("own.py is a Python file", "give the experiment file own.toml"),
    ),
    of_file("not valid TOML", "rounds = = 3", "a.toml", "line 1"),
    of_file("no algorithm", "rounds = 3", "algorithm", "missing"),
    of_file("an unknown key", "round = 3\n" + ALGORITHM, "line 1", "rounds?"),
    of_file("an unknown table", "[algoritm]\nname = 'x'", "line 1", "algorithm?"),
    # The algorithm.
    of_file(
        "an unknown algorithm",
        '[algorithm]\nname = "FedBio"\nlearning_rate = 0.1',
        "line 2",
        "FedBiO?",
    ),
    of_file("no name", "[algorithm]\nlearning_rate = 0.1", "line 1", "LocalBSGVRM"),
    of_file("no table", 'algorithm = "FedBiO"', "line 1", "a table such as"),
    of_file(
        "an unknown setting", ALGORITHM + "upper_rat = 1.0", "line 4", "upper_rate?"
    ),
    of_file("no rate", '[algorithm]\nname = "FedBiO"', "learning_rate is missing"),
    of_file("a rate as text", ALGORITHM.replace("0.1", '"fast"'), "line 3", '"fast"'),
    of_file("a rate of true", ALGORITHM.replace("0.1", "true"), "line 3", "number"),
    of_file(
        "an algorithm in lower case",
        ALGORITHM.replace("FedBiO", "fedbio"),
        "line 2",
        "did you mean FedBiO?",
    ),
    of_file(
        "another algorithm in lower case",
        ALGORITHM.replace("FedBiO", "localbsgm"),
        "line 2",
        "did you mean LocalBSGM?",
    ),
    of_file(
        "auto with the keys of another algorithm",
        ALGORITHM.replace("FedBiO", "auto") + "lower_rate = 1.0",
        'line 3: unknown key algorithm.learning_rate; "auto" chooses this setting',
        'line 4: unknown key algorithm.lower_rate; "auto" chooses this setting',
        "delete the key",
    ),
    of_file(
        "a list of algorithms",
        ALGORITHM.replace("[algorithm]", "[[algorithm]]"),
        "line 1: algorithm is a list of tables",
        "write a single table, [algorithm].",
    ),
    of_file(
        "a rate of 400 digits",
        ALGORITHM.replace("0.1", "9" * 400),
        "line 3: algorithm.learning_rate: give a number of at most 300 digits, not 9",
    ),
    of_file(
        "a batch of too many examples",
        ALGORITHM + "batch_size = 99999999999999999999",
        "line 4: algorithm.batch_size",
        "at most 2147483647",
    ),
    of_file(
        "an optimiser that is a number",
        "server_optimiser = 3\n" + ALGORITHM,
        "line 1: server_optimiser: give a table such as",
        'name = "adam"',
    ),
    of_file(
        "an optimiser without a name",
        "server_optimiser = {learning_rate = 0.1}\n" + ALGORITHM,
        "line 1: server_optimiser.name: the key is missing; give the name",
    ),
    of_file(
        "an optimiser with a rate as text",
        '[server_optimiser]\nname = "adam"\nlearning_rate = "fast"\n' + ALGORITHM,
        'line 3: server_optimiser.learning_rate: give a number, not "fast".',
    ),
    of_file(
        "an optimiser with a rate of true",
        '[server_optimiser]\nname = "adam"\nlearning_rate = true\n' + ALGORITHM,
        "line 3: server_optimiser.learning_rate: give a number, not true.",
    ),
    of_file("no local steps", ALGORITHM + "local_steps = 0", "local_steps", "1"),
    of_file("half a step", ALGORITHM + "local_steps = 1.5", "line 4", "whole number"),
    of_file("no batch", ALGORITHM + "batch_size = 0", "batch_size", "1"),
    of_file(
        "an unknown estimator",
        SERIES + 'name = "Neuman"\nterms = 3\nscale = 0.1',
        "line 5",
        "NeumannSeries?",
    ),
    of_file(
        "a negative series",
        SERIES + 'name = "NeumannSeries"\nterms = -1\nscale = 0.1',
        "terms",
    ),
    of_file(
        "a series of no scale",
        SERIES + 'name = "NeumannSeries"\nterms = 3\nscale = -0.1',
        "scale",
    ),
    # The run.
    of_file("rounds as text", 'rounds = "many"\n' + ALGORITHM, "line 1", '"many"'),
    of_file("half a round", "rounds = 2.5\n" + ALGORITHM, "line 1", "whole number"),
    of_file("no rounds", "rounds = 0\n" + ALGORITHM + SMALL, "rounds", "at least 1"),
    of_file(
        "too many rounds",
        "rounds = 99999999999999999999\n" + ALGORITHM,
        "line 1: rounds: give a whole number, at most 2147483647",
    ),
    of_file(
        "rounds of 6000 digits",
        "rounds = 0x" + "f" * 5000 + "\n" + ALGORITHM,
        "line 1: rounds: give a number of at most 300 digits",
    ),
    of_file(
        "rounds of 5000 digits",
        "rounds = 1" + "0" * 5000 + "\n" + ALGORITHM,
        "a.toml has a number of more than 4300 digits; shorten",
    ),
    of_file(
        "a key with a line break",
        '"a\\nfedbilevel: finished" = 1\n' + ALGORITHM,
        r"unknown key a\nfedbilevel: finished; there are",
    ),
    of_file("a seed as text", 'seed = "x"\n' + ALGORITHM, "line 1", "whole number"),
    of_file(
        "more participants than devices",
        "participants = 20\n" + ALGORITHM + SMALL,
        "20",
        "8",
    ),
    of_file("no participants", "participants = 0\n" + ALGORITHM + SMALL, "0"),
    of_file(
        "a negative limit", "norm_limit = -1.0\n" + ALGORITHM + SMALL, "norm_limit"
    ),
    of_file(
        "nothing measured", ALGORITHM + "[evaluation]\nevery = 0", "every", "at least 1"
    ),
    of_file(
        "nothing kept", ALGORITHM + SMALL + "[checkpoints]\nevery = 0", "every", "1"
    ),
    of_file("an unknown engine", ALGORITHM + '[engine]\nname = "Gpu"', "Simulation"),
    of_file(
        "chunks of nothing",
        ALGORITHM + SMALL + '[engine]\nname = "Simulation"\nchunk_size = 0',
        "chunk_size",
    ),
    of_file(
        "no cores",
        ALGORITHM + SMALL + '[engine]\nname = "Sharded"\ncores = 0',
        "cores",
    ),
    # Problem, data and partition.
    of_file(
        "an unknown problem", ALGORITHM + '[problem]\nname = "Cleanin"', "Cleaning?"
    ),
    of_file(
        "no penalty",
        ALGORITHM + '[problem]\nname = "Regularisation"\npenalty = 0.0',
        "penalty",
        "above 0",
    ),
    of_file(
        "a negative ridge",
        ALGORITHM + '[problem]\nname = "Cleaning"\nridge = -1.0',
        "ridge",
    ),
    of_file(
        "no layers",
        ALGORITHM + '[problem]\nname = "Representation"\nunits = []',
        "units",
    ),
    of_file(
        "layers as text",
        ALGORITHM + '[problem]\nname = "Representation"\nunits = ["big"]',
        "whole number",
    ),
    of_file("unknown data", ALGORITHM + '[data]\nname = "minst"', "line 5", "mnist?"),
    of_file(
        "data as text", 'data = "digits"\n' + ALGORITHM, "line 1: data: give a table"
    ),
    of_file(
        "a list of data sets",
        ALGORITHM + "[[data]]\ntrain_size = 60",
        "line 4: data is a list of tables",
        "[data].",
    ),
    of_file(
        "data to fetch", ALGORITHM + '[data]\nname = "adult"', "adult", "directory"
    ),
    of_file(
        "too many examples", ALGORITHM + "[data]\ntrain_size = 9999", "9999", "1437"
    ),
    of_file(
        "no examples", ALGORITHM + "[data]\ntrain_size = 0", "train_size", "at least"
    ),
    of_file(
        "all labels noisy",
        ALGORITHM + "[data]\nlabel_noise = 1.5",
        "label_noise",
        "1.5",
    ),
    of_file(
        "noise as text", ALGORITHM + '[data]\nlabel_noise = "half"', "line 5", '"half"'
    ),
    of_file("a short tail", ALGORITHM + "[data]\nimbalance = 0.5", "imbalance", "0.5"),
    of_file("no devices", ALGORITHM + "[partition]\ndevices = 0", "devices", "0"),
    of_file(
        "more devices than examples",
        ALGORITHM + SMALL + "[partition]\ndevices = 90",
        "devices",
        "90",
    ),
    of_file(
        "a negative concentration",
        ALGORITHM + "[partition]\nconcentration = -1.0",
        "concentration",
    ),
    of_file(
        "a class without examples",
        ALGORITHM
        + '[problem]\nname = "LossTuning"\n[data]\ntrain_size = 8\nvalidation_size = 8',
        "label",
        "No example has the label 3",
    ),
    # A custom problem.
    Mistake(
        "no such problem", "run a.toml", {"a.toml": OWN}, ("own.py", "does not exist")
    ),
    Mistake(
        "a line break in the path of a problem",
        "run a.toml",
        {"a.toml": OWN.replace("own.py", "a\\nb.py")},
        ("a.toml, line 3: problem.file: ", r"a\nb.py does not exist; correct the path"),
    ),
    Mistake(
        "a problem that is a directory",
        "run a.toml",
        {"a.toml": OWN.replace("own.py", ".")},
        ("a.toml, line 3: problem.file: ", "is not a file; correct the path"),
    ),
    of_problem("no Python", "def task(:", "own.py", "line 1"),
    of_problem("no task", "x = 3", "own.py", "task()"),
    of_problem("a task of nothing", "def task():\n    return 3", "int", "Task"),
    of_problem("an unknown name", "def task():\n    return nummpy", "line 2", "nummpy"),
    of_problem(
        "a missing module", "import nosuchmodule\ndef task(): ...", "line 1", "module"
    ),
    of_problem(
        "data with NaN",
        TASK + "make = task\ndef task():\n"
        "    return make(rows=np.full((5, 3), np.nan, np.float32))",
        "Device 0",
        "not finite",
        "replace the number",
    ),
    of_problem(
        "labels out of range",
        TASK + "def task():\n"
        "    table = LabelledRows(np.eye(3), np.array([0, 1, 7]))\n"
        "    rows = [np.arange(3)]\n"
        "    return regularisation(Split(table, table, table, rows, rows, 3))",
        "7",
        "classes=3",
    ),
    of_problem(
        "an empty device",
        TASK + "make = task\ndef task():\n"
        "    return make(rows=np.zeros((0, 3), np.float32))",
        "Device 0",
        "example",
    ),
    of_problem(
        "no device",
        TASK + "def task():\n"
        "    return Task(None, fb.InMemoryDevices([]), 0.0, 0.0, {})",
        "devices is empty",
    ),
    of_problem(
        "x of another structure",
        TASK + "make = task\ndef task():\n    return make(x={'penalty': jnp.zeros(3)})",
        "upper_loss",
        "penalty",
    ),
    of_problem(
        "y of another shape",
        TASK + "make = task\ndef task():\n    return make(y=jnp.zeros(4))",
        "upper_loss",
        "float32[4]",
    ),
    of_problem(
        "x of whole numbers",
        TASK + "make = task\ndef task():\n    return make(x=jnp.zeros(3, int))",
        "x has dtype int32",
        "floating point",
    ),
    of_problem(
        "no x at all",
        TASK + "make = task\ndef task():\n    return make(x=())",
        "x has no arrays",
    ),
    of_problem(
        "a loss for each example",
        TASK + "make = task\ndef task():\n"
        "    return make(lower=lambda x, y, batch: batch @ y)",
        "lower_loss",
        "mean over the batch",
    ),
    of_problem(
        "a loss that is a variance",
        TASK + "make = task\ndef task():\n"
        "    rows = np.eye(3, dtype=np.float32)\n"
        "    return make(lower=lambda x, y, batch: jnp.var(batch @ y), rows=rows)",
        "lower_loss is not a mean",
        "mean over the batch",
    ),
    of_problem(
        "a loss of two arguments",
        TASK + "make = task\ndef task():\n    return make(lower=lambda x, y: 0.0)",
        "lower_loss",
    ),
    of_problem(
        "a loss that divides by zero",
        TASK + "make = task\ndef half(y):\n    return y / 0\n"
        "def broken(x, y, batch):\n    return jnp.mean(batch @ y) + half(1)\n"
        "def task():\n    return make(lower=broken)",
        "lower_loss(x, y, batch) failed on a batch",
        "own.py, line 18): ZeroDivisionError: division by zero. Correct the loss.",
    ),
    of_problem(
        "a loss with an unknown key",
        TASK + "make = task\ndef broken(x, y, batch):\n"
        "    return jnp.mean(batch['rows'] @ y['w'])\n"
        "def task():\n"
        "    rows = {'row': np.ones((5, 3), np.float32)}\n"
        "    return make(lower=broken, upper=broken, y={'w': jnp.zeros(3)}, rows=rows)",
        "own.py, line 18): KeyError: 'rows'.",
        "Use a key that exists: y has 'w'; batch has 'row'.",
    ),
    of_problem(
        "a metric that fails",
        TASK + "make = task\ndef task():\n"
        "    return make()._replace(metrics={'gap': lambda x, y: x['gap']})",
        "Metric 'gap' of the task failed (",
        "own.py, line 18): ",
        "Correct the metric",
    ),
    of_problem(
        "a list of devices",
        TASK + "def task():\n"
        "    return Task(fb.BilevelProblem(loss, loss), [1, 2], 0.0, 0.0, {})",
        "devices",
        "InMemoryDevices",
    ),
    # Arguments.
    Mistake("an unknown command", "rum a.toml", {}, ("rum", "run")),
    Mistake("no command", "", {}, ("COMMAND",)),
    typed("an unknown option", "run a.toml --round 3", "--round"),
    typed("an option as text", "run a.toml --rounds many", "many", "--rounds"),
    typed("a type as an option", "run a.toml --algorithm.name FedBiO", "algorithm:"),
    typed("an unknown type", "run a.toml algorithm:FedBO", "did you mean FedBiO?"),
    typed("no such run", "resume nowhere", "nowhere", "fedbilevel run"),
    typed("nothing to plot", "plot nowhere", "nowhere", "fedbilevel run"),
    typed("nothing to compare", "compare nowhere", "nowhere"),
    typed("nothing to plan from", "plan nowhere", "nowhere", "fedbilevel run"),
    typed("nothing to diagnose", "diagnose nowhere.toml", "nowhere.toml"),
    typed("a name that is none", "new my-problem", "my-problem", "underscores"),
    typed("a name that is a keyword", "new class", "a keyword", "class_problem"),
    typed("a name that is taken", "new numpy", "numpy", "another name"),
    typed("no such ready problem", "new first --ready clean", "cleaning"),
    Mistake(
        "a file that is there",
        "new first",
        {"first.py": ""},
        ("first.py", "already exists"),
    ),
    typed("a file to resume", "resume a.toml", "a.toml is a file", "run a.toml"),
    # A finished run.
    after_run("a run to run", "run runs/done", "a run directory", "resume runs/done"),
    after_run(
        "the file of a run to resume",
        "resume done.toml",
        "done.toml is a file",
        "give the run directory runs/done",
    ),
    after_run("a second run", "run done.toml", "fedbilevel resume", "--directory"),
    after_run(
        "fewer rounds",
        "resume runs/done --rounds 2",
        "rounds is 2",
        "rounds to at least 4",
    ),
    after_run(
        "another rate",
        "resume runs/done --algorithm.learning-rate 0.2 --rounds 6",
        "runs/done cannot be resumed with other settings",
        "algorithm.learning_rate 0.1 → 0.2. Omit these options",
    ),
    after_run(
        "other data",
        "resume runs/done --data.train-size 50 --rounds 6",
        "(run → now): data.train_size 60 → 50. Omit these options",
    ),
    after_run(
        "another number of participants",
        "resume runs/done --participants 3 --rounds 6",
        "(run → now): participants unset → 3. Omit these options",
    ),
    after_run(
        "unreadable checkpoints",
        "resume runs/done --rounds 6",
        "damaged",
        before=damage_checkpoints,
    ),
    after_run(
        "a damaged experiment file",
        "plot runs/done",
        "not valid TOML",
        before=damage_experiment,
    ),
    after_run(
        "measurements lost",
        "plot runs/done",
        "no measurements yet",
        "fedbilevel resume",
        before=forget_measurements,
    ),
    after_run("no such metric", "compare runs/done --metric los", "los", "accuracy"),
    after_run("a plan for FedBiO", "plan runs/done", "FedBiO", "LocalBSGVRM"),
)


def answer(mistake: Mistake, finished_run: Path) -> dict[str, object]:
    """Make a mistake in a temporary directory; return exit code and message."""
    import shutil

    from fedbilevel.__main__ import main

    out, err = io.StringIO(), io.StringIO()
    origin = Path.cwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for name, text in mistake.files.items():
            Path(name).write_text(text)
        if "done.toml" in mistake.files:
            shutil.copytree(finished_run, "runs/done")
        mistake.before()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code: object = main(shlex.split(mistake.arguments))
        except SystemExit as stopped:
            code = stopped.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
        finally:
            os.chdir(origin)
    return {
        "name": mistake.name,
        "code": code,
        "message": err.getvalue() + out.getvalue(),
    }


def program() -> None:
    from fedbilevel.__main__ import main

    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "done.toml"
        file.write_text(DONE)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main(["run", str(file), "--json"]) == 0
        finished_run = Path(directory) / "runs" / "done"
        for mistake in MISTAKES:
            print(json.dumps(answer(mistake, finished_run)), flush=True)


if __name__ == "__main__":
    program()
