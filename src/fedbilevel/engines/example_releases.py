"""The noised answers of a phase, counted in the program that devices run."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import jax
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Phase, Private, Server
from fedbilevel.data.examples import DeviceData, RandomKey
from fedbilevel.engines.device_work import DeviceResult, run_device
from fedbilevel.engines.program_text import inner_programs
from fedbilevel.mathematics.chacha import KEY_WORDS
from fedbilevel.transforms.private_batches import (
    BatchName,
    Level,
    Marker,
    Place,
)

RUN_ONCE = frozenset(
    {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "remat2"}
)
"""Primitives that run their inner program exactly once."""


class BatchUse(NamedTuple):
    """The use of a batch in an exchange.

    Attributes:
        level: set of examples.
        batch_size: mean number of examples.
        answers: number of noised answers that read the same batch.
    """

    level: Level
    batch_size: int
    answers: int


def batch_uses(
    phase: Phase, server: Server, private: Private, data: DeviceData, key: RandomKey
) -> Mapping[BatchUse, int]:
    """Return the number of batches of each use, of one device in one exchange.

    The program of a device is read, not its Python code: a function that is traced once
    may run many times, with equal noise at different points. So each draw and each call
    of an oracle must run exactly once in the function that makes it.

    Args:
        phase: phase of an algorithm with `ExampleNoise`.
        server: state of the server, of which only the form matters.
        private: first private state of a device.
        data: data of a device, of which only the form matters.
        key: random key of a device.

    Raises:
        ValueError: if a draw or a call may run more than once.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedbilevel import BilevelProblem, ExampleNoise, FedBiO
        >>> from fedbilevel import with_transforms
        >>> from fedbilevel.data.examples import StoredData, StoredExamples
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> rows = StoredExamples(jnp.arange(6.0), jnp.array(0), jnp.array(6))
        >>> inner = FedBiO(0.1, local_steps=5, batch_size=4)
        >>> algorithm = with_transforms(inner, ExampleNoise(1.0, 1.0))
        >>> problem, one = BilevelProblem(loss, loss), jnp.ones(())
        >>> server, private = algorithm.init(problem, one, one)
        >>> (phase,) = algorithm.phases(problem)
        >>> uses = batch_uses(
        ...     phase, server, private, StoredData(rows, rows), jax.random.key(0)
        ... )
        >>> {(use.level.name, use.answers): count for use, count in uses.items()}
        {('UPPER', 1): 5, ('LOWER', 1): 15}
    """
    server = jax.tree.map(jax.numpy.asarray, server)
    downlink = jax.eval_shape(phase.broadcast, server)

    def work(
        downlink: PyTree, private: Private, data: DeviceData, key: RandomKey
    ) -> DeviceResult:
        return run_device(phase, downlink, private, data, key)

    program = jax.make_jaxpr(work)(downlink, private, data, key)
    counts: Counter[Marker] = Counter()
    _count(phase.name, program.jaxpr, 1, counts)
    answers: Counter[BatchName] = Counter()
    for marker, number in counts.items():
        expected = phase.steps if marker.batch.place == Place.STEP else 1
        if number != expected:
            _refuse(phase.name, "in a loop or a function that JAX traces once")
        answers[marker.batch] += marker.call > 0
    uses: Counter[BatchUse] = Counter()
    for batch, calls in sorted(answers.items()):
        if calls:
            times = phase.steps if batch.place == Place.STEP else 1
            uses[BatchUse(batch.level, batch.batch_size, calls)] += times
    return uses


def _count(phase: str, program: Any, times: int, counts: Counter[Marker]) -> None:
    """Add the draws and calls of a program that runs some number of times."""
    for equation in program.eqns:
        marker = _marker_of(equation)
        if marker is not None:
            counts[marker] += times
            # A draw has the words of a seed, and a call has a scalar.
            expected = (KEY_WORDS,) if marker.call == 0 else ()
            if equation.invars[0].aval.shape != expected:
                _refuse(phase, "under a vmap")
        primitive = equation.primitive.name
        repeats = times
        if primitive == "scan":
            repeats *= equation.params["length"]
        for inner in inner_programs(equation.params):
            if primitive != "scan" and primitive not in RUN_ONCE and _reads(inner):
                _refuse(phase, f"inside {primitive}, as ConjugateGradient does")
            _count(phase, inner, repeats, counts)


def _refuse(phase: str, where: str) -> NoReturn:
    raise ValueError(
        f"ExampleNoise: phase {phase!r} draws batches or calls oracles {where}, so "
        "their number, and ε, is not known, or their noise would be equal. Call them "
        "in Python code that runs once in each step, as NeumannSeries does."
    )


def _reads(program: Any) -> bool:
    """Return whether a program draws batches or calls oracles."""
    return any(
        _marker_of(equation) is not None
        or any(map(_reads, inner_programs(equation.params)))
        for equation in program.eqns
    )


def _marker_of(equation: Any) -> Marker | None:
    name = equation.params.get("name")
    return Marker.of(name) if isinstance(name, str) else None
