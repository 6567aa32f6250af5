"""The algorithms of the comparison on real tasks, and their search spaces.

All are searched in the same way, with the same number of draws from comparable ranges.
A rate of y or z and the scale θ of a series are fractions of 1/L, where nine tenths of
a task's batches have a curvature of at most L near y*(x); an upper step is in units of
the task's. The ranges of steps include the value of each method's theory, such as
1/(6L) for the lower step of the paper's algorithms. The theory of a series requires
more terms than any method has here: each term costs a batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from fedbilevel import (
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    FedNest,
    LFedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    ShroFBO,
    SimFBO,
    with_server_optimiser,
)
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.settings import register

Values = Mapping[str, float]
"""A setting: a value for each searched name of a contender."""


class Range(NamedTuple):
    """The range of a number, on a logarithmic scale.

    Attributes:
        low: the smallest.
        high: the largest.
        most: largest value of a neighbour of a draw. Neighbours may be below `low` and
            above `high`, which widens a range whose edge is best.
    """

    low: float
    high: float
    most: float = float("inf")


RANGES = {
    "upper": Range(1.0, 300.0),
    "lower": Range(0.05, 2.0),
    "adjoint": Range(0.05, 2.0),
    "scale": Range(0.1, 1.0, most=2.0),
    "mixing": Range(0.02, 1.0, most=1.0),
    "server": Range(0.3, 3.0),
    "adam": Range(0.001, 0.1),
}
CHOICES = {"final": (0.05, 1.0), "local_steps": (1, 5), "terms": (2, 10)}
"""The final fraction of all rates, steps per exchange, and Q of a series."""


class Scale(NamedTuple):
    """The units of a setting's numbers, and the length of a run.

    Attributes:
        upper: the task's unit of upper steps.
        curvature: L.
        batch_size: size of every batch.
        median_size: number of training examples of the median device.
        rounds: number of rounds.
    """

    upper: float
    curvature: float
    batch_size: int
    median_size: int
    rounds: int


@register
@dataclass(frozen=True)
class Decay:
    """A cosine schedule from 1 to `final`; its numbers are pytree leaves."""

    final: tree.Scalar
    steps: tree.Scalar

    def __call__(self, step: int | Int[Array, ""], /) -> Float[Array, ""]:
        progress = jnp.minimum(jnp.asarray(step, float) / self.steps, 1.0)
        return self.final + (1 - self.final) * 0.5 * (1 + jnp.cos(jnp.pi * progress))


@register
@dataclass(frozen=True)
class DecayingAdam:
    """Adam on the server, with the schedule of the devices' rates."""

    rate: tree.Scalar
    decay: Decay

    def init(self, parameters: PyTree) -> PyTree:
        return optax.scale_by_adam(b1=0.9, b2=0.99).init(parameters)

    def step(
        self, gradient: PyTree, state: PyTree, parameters: PyTree
    ) -> tuple[PyTree, PyTree]:
        direction, new_state = optax.scale_by_adam(b1=0.9, b2=0.99).update(
            gradient, state
        )
        length = self.rate * self.decay(state.count)
        return tree.add_scaled(parameters, -length, direction), new_state


def decay_of(v: Values, of: Scale) -> Decay:
    return Decay(v["final"], float(of.rounds * int(v["local_steps"])))


def series_of(v: Values, of: Scale) -> NeumannSeries:
    return NeumannSeries(int(v["terms"]), v["scale"] / of.curvature)


def common(v: Values, of: Scale) -> dict[str, Any]:
    """Return the settings that all algorithms share."""
    return {
        "learning_rate": decay_of(v, of),
        "upper_rate": v.get("upper", 1.0) * of.upper,
        "lower_rate": v["lower"] / of.curvature,
        "local_steps": int(v["local_steps"]),
        "batch_size": of.batch_size,
    }


def momentum(v: Values) -> dict[str, Any]:
    return {"upper_mixing": v["mixing"], "lower_mixing": v["mixing"]}


def local_bsgm(v: Values, of: Scale) -> LocalBSGM:
    series = series_of(v, of)
    return LocalBSGM(hypergradient=series, **common(v, of), **momentum(v))


def local_bsgvrm(v: Values, of: Scale) -> LocalBSGVRM:
    return LocalBSGVRM(
        hypergradient=series_of(v, of),
        initial_batch_size=4 * of.batch_size,
        **common(v, of),
        **momentum(v),
    )


def fednest(v: Values, of: Scale) -> FedNest:
    steps = int(v["local_steps"])
    return FedNest(series=series_of(v, of), lower_steps=steps, **common(v, of))


def lfednest(v: Values, of: Scale) -> LFedNest:
    steps = int(v["local_steps"])
    return LFedNest(hypergradient=series_of(v, of), lower_steps=steps, **common(v, of))


def fedbio(v: Values, of: Scale) -> FedBiO:
    return FedBiO(adjoint_rate=v["adjoint"] / of.curvature, **common(v, of))


def fedbio_acc(v: Values, of: Scale) -> FedBiOAcc:
    return FedBiOAcc(
        adjoint_rate=v["adjoint"] / of.curvature,
        adjoint_mixing=v["mixing"],
        initial_batch_size=4 * of.batch_size,
        **common(v, of),
        **momentum(v),
    )


def simfbo(v: Values, of: Scale) -> SimFBO:
    rate = v["adjoint"] / of.curvature
    return SimFBO(adjoint_rate=rate, server_rate=v["server"], **common(v, of))


def shrofbo(v: Values, of: Scale) -> ShroFBO:
    # Small devices take fewer local steps than large ones.
    return ShroFBO(
        adjoint_rate=v["adjoint"] / of.curvature,
        server_rate=v["server"],
        examples_per_step=max(1, of.median_size // int(v["local_steps"])),
        **common(v, of),
    )


class Contender(NamedTuple):
    """An algorithm, and the names of its searched settings."""

    make: Callable[[Values, Scale], FederatedAlgorithm]
    names: tuple[str, ...]


def optimised(contender: Contender) -> Contender:
    """Return a contender with Adam on the server for x."""

    def make(v: Values, of: Scale) -> FederatedAlgorithm:
        # Adam normalises steps: only their direction matters.
        optimiser = DecayingAdam(v["adam"], Decay(v["final"], float(of.rounds)))
        return with_server_optimiser(contender.make(v, of), optimiser)

    others = tuple(name for name in contender.names if name != "upper")
    return Contender(make, ("adam", *others))


BASIC = ("upper", "lower", "final", "local_steps")
SERIES = (*BASIC, "scale", "terms")
ADJOINT = (*BASIC, "adjoint")
PUBLISHED = {
    "LocalBSGM": Contender(local_bsgm, (*SERIES, "mixing")),
    "LocalBSGVRM": Contender(local_bsgvrm, (*SERIES, "mixing")),
    "FedNest": Contender(fednest, SERIES),
    "LFedNest": Contender(lfednest, SERIES),
    "FedBiO": Contender(fedbio, ADJOINT),
    "FedBiOAcc": Contender(fedbio_acc, (*ADJOINT, "mixing")),
    "SimFBO": Contender(simfbo, (*ADJOINT, "server")),
    "ShroFBO": Contender(shrofbo, (*ADJOINT, "server")),
}
SEARCHED = PUBLISHED | {
    f"{name} + Adam": optimised(PUBLISHED[name])
    for name in ("LocalBSGM", "LocalBSGVRM", "FedBiO")
}
AUTO = "auto"
"""AutoFedBiO with its defaults: nothing is searched."""
TWO_GRADIENTS = ("LocalBSGVRM", "LocalBSGVRM + Adam", "FedBiOAcc")
"""The algorithms that evaluate each example at two points."""
