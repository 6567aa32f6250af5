"""Mistakes in the Python file of a custom problem."""

from tests.commands.mistakes.mistake import OWN, Mistake

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


def of_problem(name: str, code: str, cause: str, place: str, cure: str) -> Mistake:
    files = {"a.toml": OWN, "own.py": code}
    return Mistake(name, "run a.toml", files, cause, place, cure)


MISTAKES = (
    Mistake(
        "no such problem",
        "run a.toml",
        {"a.toml": OWN},
        "own.py does not exist",
        "a.toml, line 3: problem.file:",
        "correct the path.",
    ),
    Mistake(
        "a line break in the path of a problem",
        "run a.toml",
        {"a.toml": OWN.replace("own.py", "a\\nb.py")},
        "a\\nb.py does not exist",
        "a.toml, line 3: problem.file:",
        "correct the path.",
    ),
    Mistake(
        "a problem that is a directory",
        "run a.toml",
        {"a.toml": OWN.replace("own.py", ".")},
        "is not a file",
        "a.toml, line 3: problem.file:",
        "correct the path.",
    ),
    of_problem(
        "no Python",
        "def task(:",
        "SyntaxError: invalid syntax",
        "own.py, line 1:",
        "correct the file.",
    ),
    of_problem(
        "no task",
        "x = 3",
        "has no function task()",
        "problem.file:",
        "add it, as in the example that fedbilevel new writes.",
    ),
    of_problem(
        "a task of nothing",
        "def task():\n    return 3",
        "returned a int",
        "own.py",
        "return a fedbilevel.problems.Task.",
    ),
    of_problem(
        "an unknown name",
        "def task():\n    return nummpy",
        "NameError: name 'nummpy' is not defined",
        "own.py, line 2:",
        "Correct the file; for the traceback, set FEDBILEVEL_DEBUG=1.",
    ),
    of_problem(
        "a missing module",
        "import nosuchmodule\ndef task(): ...",
        "No module named 'nosuchmodule'",
        "own.py, line 1:",
        "Install the module, or correct its name;",
    ),
    of_problem(
        "data with NaN",
        TASK + "make = task\ndef task():\n"
        "    return make(rows=np.full((5, 3), np.nan, np.float32))",
        "has a number that is not finite (nan)",
        "Device 0: row 0 of its upper examples",
        "replace the number, or remove the example.",
    ),
    of_problem(
        "labels out of range",
        TASK + "def task():\n"
        "    table = LabelledRows(np.eye(3), np.array([0, 1, 7]))\n"
        "    rows = [np.arange(3)]\n"
        "    return regularisation(Split(table, table, table, rows, rows, 3))",
        "A label of the training examples is 7, expected 0 to 2 with classes=3",
        "own.py, line 19:",
        "Renumber the labels or raise classes.",
    ),
    of_problem(
        "an empty device",
        TASK + "make = task\ndef task():\n"
        "    return make(rows=np.zeros((0, 3), np.float32))",
        "has no upper examples",
        "Device 0",
        "Remove the device, or assign it at least one example.",
    ),
    of_problem(
        "no device",
        TASK + "def task():\n"
        "    return Task(None, fb.InMemoryDevices([]), 0.0, 0.0, {})",
        "devices is empty",
        "own.py, line 17:",
        "Pass at least one LocalExamples.",
    ),
    of_problem(
        "x of another structure",
        TASK + "make = task\ndef task():\n    return make(x={'penalty': jnp.zeros(3)})",
        "with x {penalty: float32[3]} and y float32[3]",
        "(own.py, line 8):",
        "Let the loss accept arrays of these shapes.",
    ),
    of_problem(
        "y of another shape",
        TASK + "make = task\ndef task():\n    return make(y=jnp.zeros(4))",
        "with x float32[3] and y float32[4]",
        "(own.py, line 8):",
        "Let the loss accept arrays of these shapes.",
    ),
    of_problem(
        "x of whole numbers",
        TASK + "make = task\ndef task():\n    return make(x=jnp.zeros(3, int))",
        "has dtype int32, which is not differentiable",
        "fedbilevel run: x",
        "Convert it to floating point.",
    ),
    of_problem(
        "no x at all",
        TASK + "make = task\ndef task():\n    return make(x=())",
        "has no arrays",
        "fedbilevel run: x",
        "Pass at least one array.",
    ),
    of_problem(
        "a loss for each example",
        TASK + "make = task\ndef task():\n"
        "    return make(lower=lambda x, y, batch: batch @ y)",
        "returned an array of shape (7,) for a batch of 7 examples",
        "lower_loss",
        "Return the mean over the batch, a scalar.",
    ),
    of_problem(
        "a loss that is a variance",
        TASK + "make = task\ndef task():\n"
        "    rows = np.eye(3, dtype=np.float32)\n"
        "    return make(lower=lambda x, y, batch: jnp.var(batch @ y), rows=rows)",
        "is not a mean over its batch: on 3 examples it is 0.",
        "lower_loss",
        "Return the mean over the batch, not a sum.",
    ),
    of_problem(
        "a loss of two arguments",
        TASK + "make = task\ndef task():\n    return make(lower=lambda x, y: 0.0)",
        "takes 2 positional arguments but 3 were given",
        "lower_loss(x, y, batch)",
        "Define the loss with three arguments: x, y, batch.",
    ),
    of_problem(
        "a loss that divides by zero",
        TASK + "make = task\ndef half(y):\n    return y / 0\n"
        "def broken(x, y, batch):\n    return jnp.mean(batch @ y) + half(1)\n"
        "def task():\n    return make(lower=broken)",
        "ZeroDivisionError: division by zero",
        "(own.py, line 18):",
        "Correct the loss.",
    ),
    of_problem(
        "a loss with an unknown key",
        TASK + "make = task\ndef broken(x, y, batch):\n"
        "    return jnp.mean(batch['rows'] @ y['w'])\n"
        "def task():\n"
        "    rows = {'row': np.ones((5, 3), np.float32)}\n"
        "    return make(lower=broken, upper=broken, y={'w': jnp.zeros(3)}, rows=rows)",
        "KeyError: 'rows'",
        "(own.py, line 18):",
        "Use a key that exists: y has 'w'; batch has 'row'.",
    ),
    of_problem(
        "a metric that fails",
        TASK + "make = task\ndef task():\n"
        "    return make()._replace(metrics={'gap': lambda x, y: x['gap']})",
        "Metric 'gap' failed",
        "(own.py, line 18):",
        "Correct the metric; for the traceback, set FEDBILEVEL_DEBUG=1.",
    ),
    of_problem(
        "a list of devices",
        TASK + "def task():\n"
        "    return Task(fb.BilevelProblem(loss, loss), [1, 2], 0.0, 0.0, {})",
        "returned devices of the type list",
        "own.py",
        "return fedbilevel.InMemoryDevices.",
    ),
)
