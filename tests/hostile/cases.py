"""Hostile inputs of the Python API, each with a part of its error message.

They run as in a user's program, without the type checks of tests.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fedbilevel
from fedbilevel import BilevelProblem, InMemoryDevices, LocalExamples
from fedbilevel.metrics import diagnose, newton_reference

ACCEPTED = None
"""In place of a message: the input is unusual but valid."""
fb: Any = fedbilevel
nan, inf = np.nan, np.inf


class Case(NamedTuple):
    """An input and its expected answer.

    Attributes:
        name: name of the input.
        call: function that passes the input to the library.
        message: part of the error message; `ACCEPTED` for a valid input.
    """

    name: str
    call: Callable[[], Any]
    message: str | None


def loss(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean((y - x * batch) ** 2)


PROBLEM = BilevelProblem(loss, loss)
ONES = np.ones(4, np.float32)
HELD = LocalExamples(ONES, ONES)
DEVICES = InMemoryDevices([HELD] * 2)
SERIES = fb.NeumannSeries(2, 0.5)


def runs(**options: Any) -> Any:
    """Run a round, with some of the arguments replaced."""
    arguments: dict[str, Any] = {
        "problem": PROBLEM,
        "algorithm": fb.FedBiO(0.1),
        "devices": DEVICES,
        "x": 1.0,
        "y": 0.0,
        "rounds": 1,
        **options,
    }
    return list(fb.run(**arguments))


def each(name: str, values: Iterable[Any], message: str | None) -> list[Case]:
    """Return a case for every value of an argument of `run`."""
    return [Case(f"{name}={v!r}", partial(runs, **{name: v}), message) for v in values]


def made(
    cls: str, settings: Iterable[dict[str, Any]], message: str | None
) -> list[Case]:
    """Return a case for an object with each of the settings."""
    make = getattr(fb, cls)
    return [Case(f"{cls}({s})", partial(make, **s), message) for s in settings]


def arguments() -> list[Case]:
    return [
        *each("rounds", [0, -1, 1.5, "3", None, True, nan, inf, [1]], "at least 1."),
        *each("seed", [2**32, 2**32 + 3, 2**64, -1], "from 0 to 4294967295"),
        *each("seed", [True, 1.0, "1", None, [1]], "Pass a whole number"),
        *each("seed", [2**32 - 1, np.int64(7)], ACCEPTED),
        *each("weights", [[1], [1, 2, 3], 5, [[1, 2]]], "one weight for each device"),
        *each("weights", [[0, 0]], "Set the weight of at least one of them above 0"),
        *each("weights", [[-1, 1], [nan, 1], [inf, 1]], "finite weights of at least 0"),
        *each("weights", [["a", "b"], "ab"], "Pass a number for each of the 2"),
        *each("weights", [{0: 1}], "Correct the name"),
        *each("weights", [[1e308, 1e308], [1.7e308, 1.7e308]], "Divide them by"),
        *each("weights", [[1e-320, 1e-320], [True, False], (1, 2)], ACCEPTED),
        *each("limits", [0, 1e6, "1", None, True, [1], fb.Limits], "Pass Limits(norm="),
        *each("limits", [fb.Limits(norm=1e-320)], "aise the norm limit"),
        *each("limits", [fb.Limits(inf, inf), fb.Limits(np.float32(9))], ACCEPTED),
        *each("engine", [None, "Simulation", fb.Simulation, 3], "Pass Simulation()"),
        *each("devices", [None, [], [HELD], {}, InMemoryDevices, 3], "Wrap the data"),
        *each("problem", [None, "x", 3, BilevelProblem], "Pass BilevelProblem("),
        *each("algorithm", ["auto", None, 0.1, {"name": 3}], "such as AutoFedBiO("),
        *each("algorithm", [fb.FedBiO], "is the class FedBiO"),
    ]


def choices() -> list[Case]:
    def returning(chosen: Any) -> Callable[..., Any]:
        return lambda seed, number, count: chosen

    def case(name: str, chosen: Any, message: str | None) -> Case:
        call = partial(runs, participation=returning(chosen))
        return Case(f"participation that returns {name}", call, message)

    return [
        *each(
            "participation",
            [None, "all", 3, fb.UniformSample],
            "Pass FullParticipation()",
        ),
        case("a list", [0], ACCEPTED),
        case("a stranger", np.array([5]), "numbers from 0 to 1"),
        case("somebody twice", np.array([0, 0]), "returned a device twice"),
        case("nobody", np.array([]), "Return at least one"),
        case("halves", np.array([0.5]), "Return device numbers, which are integers"),
        *made("UniformSample", [{"devices": d} for d in (1.5, "2", None)], "a whole"),
        *(
            Case(
                f"a sample of {count}",
                partial(runs, participation=fb.UniformSample(count)),
                "from 1 to 2",
            )
            for count in (0, -1, 3)
        ),
    ]


def variables() -> list[Case]:
    text, wrong = np.array("a"), jnp.ones((2, 2))
    return [
        *(
            case
            for name in ("x", "y")
            for case in (
                *each(name, [None, [], {}, (), {"a": None}], f"{name} has no arrays"),
                *each(name, ["a", text, [1.0, "b"]], "Pass arrays of numbers"),
                *each(
                    name,
                    [1, True, 1 + 2j, np.arange(2)],
                    "Convert it to floating point",
                ),
                *each(name, [nan, inf, -inf], "Pass finite initial values"),
                Case(
                    f"an object for {name}", partial(runs, **{name: object()}), "Pass"
                ),
                Case(
                    f"another shape of {name}", partial(runs, **{name: wrong}), "batch"
                ),
                *each(name, [0.5, np.float64(2), jnp.ones(())], ACCEPTED),
            )
        )
    ]


def holdings() -> list[Case]:
    def held(name: str, upper: Any, message: str | None) -> Case:
        one = LocalExamples(upper, ONES)
        return Case(f"upper examples: {name}", lambda: InMemoryDevices([one]), message)

    def number(value: int, message: str | None) -> Case:
        one = LocalExamples(np.ones(2), np.array([0, 1]))
        other = LocalExamples(np.ones(2), np.array([0, value]))
        return Case(
            f"the number {value}", lambda: InMemoryDevices([one, other]), message
        )

    wraps = "Device 1: lower examples have the integer"
    masked = np.ma.masked_array(ONES, mask=[True, False, False, False])
    return [
        held("none", np.ones((0, 2)), "Device 0 has no upper examples"),
        held("a number", 1.0, "have a scalar, expected arrays"),
        held("a list", [1.0, 2.0], "have a scalar, expected arrays"),
        held("a word", "abc", "have a scalar, expected arrays"),
        held("nothing", None, "to at least one"),
        held("an empty table", {}, "have no array"),
        held("words", np.array(["spam", "ham"]), "expected real numbers"),
        held("objects", np.array([None, 1]), "expected real numbers"),
        held("days", np.array(["2020-01-01"], "datetime64[D]"), "expected real"),
        held("complex", ONES + 1j, "expected real numbers"),
        held("masked", masked, "Fill masked values"),
        held("rows that differ", (ONES, ONES[:2]), "Pass arrays with one row per"),
        held("truth values", ONES > 0, ACCEPTED),
        held("bytes", ONES.astype(np.uint8), ACCEPTED),
        held("a range", range(4), ACCEPTED),
        *(number(value, wraps) for value in (2**31, -(2**31) - 1, 2**40)),
        *(number(value, ACCEPTED) for value in (2**31 - 1, -(2**31))),
        *(
            Case(
                f"a device that is {w!r}", partial(fb.InMemoryDevices, [w]), "Wrap them"
            )
            for w in ((1.0, 2.0), [1.0], None, {"upper": 1})
        ),
        Case("no device", partial(fb.InMemoryDevices, []), "Pass at least one"),
        *(
            Case(
                f"{count!r} sharing devices",
                partial(fb.InMemoryDevices.sharing, HELD, count),
                "device_count is",
            )
            for count in (0, -1, 1.5, "2", None)
        ),
        Case(
            "examples that are not finite",
            lambda: runs(devices=InMemoryDevices([LocalExamples(ONES * nan, ONES)])),
            "ook for examples that are not finite",
        ),
        Case(
            "examples whose loss is infinite",
            lambda: runs(devices=InMemoryDevices([LocalExamples(ONES * 1e38, ONES)])),
            "upper_loss is not finite at the initial x and y",
        ),
    ]


def loaders() -> list[Case]:
    def case(name: str, message: str | None, **changes: Any) -> Case:
        arguments = {
            "device_count": 2,
            "load": lambda device: HELD,
            "upper_capacity": 4,
            "lower_capacity": 4,
            **changes,
        }
        return Case(
            f"on demand: {name}",
            lambda: runs(devices=fb.OnDemandDevices(**arguments)),
            message,
        )

    return [
        case("as it should be", ACCEPTED),
        *(
            case(f"{count!r} devices", "device_count is", device_count=count)
            for count in (0, -1, 2.5, None)
        ),
        case("no loader", "Pass a function from a device number", load=None),
        case("a loader of nothing", "Wrap them: Local", load=lambda device: None),
        case("no room", "Raise upper_capacity", upper_capacity=0),
        case("too little room", "Raise lower_capacity", lower_capacity=1),
    ]


def settings() -> list[Case]:
    def fedbio(name: str, values: Iterable[Any], message: str) -> list[Case]:
        settings = [{"learning_rate": 0.1, name: value} for value in values]
        return made("FedBiO", settings, message)

    rates = ("lower_rate", "adjoint_rate")
    switches = ["no", "false", 0, 1, None]
    return [
        *fedbio("learning_rate", [0, -1.0], "expected a number or a schedule, above 0"),
        *fedbio("learning_rate", [nan, inf], "expected a finite number"),
        *fedbio("learning_rate", ["0.1", None, True, [0.1], {}], "or a schedule"),
        *fedbio("upper_rate", [-1.0], "0 trains y with x fixed"),
        *fedbio("upper_rate", [nan, inf], "expected a finite number"),
        *(one for name in rates for one in fedbio(name, [0.0, -1.0], "above 0")),
        *(one for name in rates for one in fedbio(name, [nan, inf], "finite")),
        *fedbio("adjoint_radius", [0.0, -1.0], "expected a number, above 0"),
        *fedbio("adjoint_radius", [nan], "adjoint_radius is nan, expected a finite"),
        *fedbio("local_steps", [0, 1.5, True, "3", None], "a whole number, at least 1"),
        *fedbio("batch_size", [0, -1, 2.0, None], "a whole number, at least 1"),
        *fedbio("private_lower", switches, "expected true or false"),
        *made("FedBiO", [{"learning_rate": 0.1, "adjoint_radius": None}], ACCEPTED),
        *made(
            "AutoFedBiO", [{"rounds": n} for n in (1, 0, -3, 2.5, "9")], "at least 2"
        ),
        *made("AutoFedBiO", [{"rounds": 9, "upper_rate": -1.0}], "at least 0"),
        *made("AutoFedBiO", [{"rounds": 9, "upper_rate": nan}], "a finite number"),
        *made(
            "AutoFedBiO", [{"rounds": 9, "momentum": m} for m in (1.0, -0.1)], "below"
        ),
        *made("AutoFedBiO", [{"rounds": 9, "final_rate": 2.0}], "at most 1"),
        *made("AutoFedBiO", [{"rounds": 9, "final_rate": -1.0}], "final_rate is -1.0"),
        *made("AutoFedBiO", [{"rounds": 9, "batch_size": 1.5}], "a whole number, at"),
    ]


def estimators() -> list[Case]:
    def series(name: str, values: Iterable[Any], message: str) -> list[Case]:
        usual = {"terms": 3, "scale": 0.5}
        return made("NeumannSeries", [{**usual, name: v} for v in values], message)

    def bsgm(name: str, values: Iterable[Any], message: str) -> list[Case]:
        usual = {"learning_rate": 1.0, "hypergradient": SERIES}
        return made("LocalBSGM", [{**usual, name: v} for v in values], message)

    warm = [{"learning_rate": 0.1, "exchanges": 0}]
    return [
        *series("terms", [0, -1, 2.5, "3", None], "a whole number, at least 1"),
        *series("scale", [0, -1.0], "a number, above 0 (slightly below 1 / L_1"),
        *series("scale", [nan, inf], "expected a finite number"),
        *series("scale", ["a", None, [0.5]], "expected a number"),
        *bsgm("hypergradient", [None, "series", 3, 0.5], "example, NeumannSeries("),
        *bsgm("hypergradient", [fb.NeumannSeries], "Pass NeumannSeries(...)"),
        *bsgm("upper_mixing", [2.0], "at most 1"),
        *bsgm("upper_mixing", [0.0, -1.0], "expected a number, above 0"),
        *bsgm("lower_mixing", [nan], "lower_mixing is nan, expected a finite number"),
        *made("WarmStart", warm, "exchanges is 0, expected a whole number, at least 1"),
        *made("WarmStart", [{"learning_rate": nan}], "learning_rate is nan, expected"),
        *made("CubeRootDecay", [{"scale": s} for s in (0.0, -1.0)], "number, above 0"),
        *made("CubeRootDecay", [{"scale": nan}], "scale is nan, expected a finite"),
        *(
            Case(
                f"server optimiser {value!r}",
                partial(fb.with_server_optimiser, fb.FedBiO(0.1), value),
                "expected an optimiser of optax",
            )
            for value in (None, "adam", 0.1, 3)
        ),
        Case("an unknown schedule", partial(fb.optax_schedule, "nope"), "optax has no"),
        Case(
            "an unknown optimiser", partial(fb.optax_optimiser, "nope"), "optax has no"
        ),
    ]


def losses() -> list[Case]:
    def case(name: str, lower: Any, message: str) -> Case:
        call = lambda: runs(problem=BilevelProblem(loss, lower))  # noqa: E731
        return Case(f"a lower loss that {name}", call, message)

    return [
        case("is a vector", lambda x, y, b: (y - b) ** 2, "a scalar"),
        case("returns nothing", lambda x, y, b: None, "returned None"),
        case("returns a word", lambda x, y, b: "a", "lower_loss(x, y, batch) failed"),
        case("divides by zero", lambda x, y, b: 1 / 0, "ZeroDivisionError"),
        case("is complex", lambda x, y, b: jnp.mean(y - b) + 1j, "not differentiable"),
        case("is whole", lambda x, y, b: jnp.array(3), "not differentiable"),
        case("is not a number", lambda x, y, b: nan * jnp.mean(y - b), "is not finite"),
        case("is a sum", lambda x, y, b: jnp.sum((y - b) ** 2), "is not a mean"),
        case("takes two", lambda x, y: 0.0, "takes 2 positional arguments"),
        case("uses NumPy", lambda x, y, b: np.mean(np.asarray(b)), "failed on a batch"),
        case(
            "asks for a float", lambda x, y, b: float(jnp.mean(b)), "failed on a batch"
        ),
        case("branches", lambda x, y, b: jnp.mean(b) if y > 0 else 0.0, "failed on"),
        *(
            Case(f"upper_loss={f!r}", partial(fb.BilevelProblem, f, loss), "a function")
            for f in (None, 3, "a")
        ),
    ]


def columns() -> list[Case]:
    def error(x: Any, y: Any, batch: Any) -> Any:
        rows, labels = batch
        return jnp.mean((rows @ y - labels) ** 2) + x * jnp.sum(y**2)

    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    labelled = rows, rows[:, 0]
    arguments = {
        "problem": BilevelProblem(error, error),
        "devices": InMemoryDevices([LocalExamples(labelled, labelled)]),
        "y": np.zeros((3, 1), np.float32),
    }
    return [
        Case(
            "y of shape [3, 1]", partial(runs, **arguments), "broadcast with labels of"
        )
    ]


def questions() -> list[Case]:
    what = PROBLEM, DEVICES, 1.0, 0.0
    run = partial(fb.Run, PROBLEM, fb.FedBiO(0.1), DEVICES, 1.0, 0.0)
    tuned = partial(fb.tune, run(rounds=2))

    def checkpoints(**options: Any) -> Case:
        make = partial(fb.Checkpoints, **options)
        words = "of Checkpoints is" if "best" not in options else "measure is missing"
        return Case(f"Checkpoints({options})", make, words)

    return [
        *(
            Case(
                f"suggest for {n!r} rounds", partial(fb.suggest, *what, rounds=n), "at"
            )
            for n in (0, -1, "3", 1.5)
        ),
        Case(
            "a seed for suggest", partial(fb.suggest, *what, rounds=9, seed=-1), "seed"
        ),
        Case(
            "batches of 0", partial(fb.suggest, *what, rounds=9, batch_size=0), "whole"
        ),
        Case(
            "costs of 0 rounds", partial(fb.predict_costs, run(rounds=0)), "at least 1"
        ),
        *(
            Case(
                f"costs of {n!r} participants",
                partial(fb.predict_costs, run(rounds=1), n),
                "Pass a whole number of devices",
            )
            for n in (0, -1, 1.5, "2")
        ),
        Case("tune for 0 rounds", partial(fb.tune, run(rounds=0)), "at least 1."),
        Case("tune 0 times", partial(tuned, trials=0), "Pass at least 1"),
        Case("tune without seeds", partial(tuned, seeds=[]), "0 seeds"),
        checkpoints(directory=None),
        checkpoints(directory=3),
        checkpoints(directory=""),
        checkpoints(directory="a", every=0),
        checkpoints(directory="a", every=1.5),
        checkpoints(directory="a", keep=0),
        checkpoints(directory="a", best="loss"),
        Case(
            "diagnose nowhere", partial(diagnose, *what[:2], nan, 0.0), "finite initial"
        ),
        Case(
            "a reference of one weight",
            partial(newton_reference, PROBLEM, DEVICES, weights=[1]),
            "one weight for each device",
        ),
        Case(
            "no devices to rescale from",
            lambda: fb.rescale(fb.LocalBSGM(0.1, SERIES), devices_from=0, devices_to=2),
            "devices_from is 0, expected at least 1",
        ),
    ]


CASES = [
    *arguments(),
    *choices(),
    *variables(),
    *holdings(),
    *loaders(),
    *settings(),
    *estimators(),
    *losses(),
    *columns(),
    *questions(),
]
