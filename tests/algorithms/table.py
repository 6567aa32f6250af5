"""All algorithms, for tests of their common properties."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import optax
import pytest

from fedbilevel import (
    F2SA,
    AutoFedBiO,
    ConjugateGradient,
    CubeRootDecay,
    FedBiO,
    FedBiOAcc,
    FederatedAlgorithm,
    FedNest,
    LFedNest,
    LocalBSGM,
    LocalBSGVRM,
    NeumannSeries,
    Phase,
    ShroFBO,
    SimFBO,
    Upload,
    WarmStart,
    optax_optimiser,
    with_server_optimiser,
)

SERIES = NeumannSeries(terms=2, scale=0.15)
SCHEDULE = optax.exponential_decay(0.2, transition_steps=4, decay_rate=0.5)
RATES: dict[str, Any] = {
    "upper_rate": 0.3,
    "lower_rate": 0.5,
    "upper_mixing": 2.0,
    "lower_mixing": 3.0,
    "local_steps": 2,
}

ALGORITHMS: dict[str, Callable[[], FederatedAlgorithm]] = {
    "LocalBSGM": lambda: LocalBSGM(0.2, SERIES, **RATES),
    "LocalBSGM, optax schedule, conjugate gradient": lambda: LocalBSGM(
        SCHEDULE,
        ConjugateGradient(iterations=5),
        **RATES,
        batch_size=2,
    ),
    "LocalBSGVRM": lambda: LocalBSGVRM(0.2, SERIES, **RATES, initial_batch_size=4),
    "LocalBSGVRM, decaying, warm start": lambda: LocalBSGVRM(
        CubeRootDecay(0.3, plateau=3.0),
        SERIES,
        **RATES,
        warm_start=WarmStart(learning_rate=0.1, exchanges=2, local_steps=3),
    ),
    "FedNest": lambda: FedNest(
        0.2, SERIES, upper_rate=0.3, lower_rounds=2, lower_steps=2, local_steps=2
    ),
    "FedNest, drawn products": lambda: FedNest(0.1, SERIES, random_truncation=True),
    "LFedNest": lambda: LFedNest(
        0.2, SERIES, upper_rate=0.3, lower_rounds=2, lower_steps=2, local_steps=2
    ),
    "FedBiO": lambda: FedBiO(0.1, 0.3, 0.5, 0.4, adjoint_radius=1.5, local_steps=2),
    "FedBiO, private lower level": lambda: FedBiO(
        SCHEDULE, 0.3, 0.5, 0.4, local_steps=2, private_lower=True
    ),
    "F2SA": lambda: F2SA(0.1, multiplier=5.0, upper_rate=0.3, local_steps=2),
    "FedBiOAcc": lambda: FedBiOAcc(
        0.2, 0.3, 0.5, 0.4, 2.0, 3.0, 4.0, local_steps=2, initial_batch_size=4
    ),
    "FedBiOAcc, private lower level": lambda: FedBiOAcc(
        0.2, 0.3, 0.5, 0.4, 2.0, 3.0, 4.0, local_steps=2, private_lower=True
    ),
    "SimFBO": lambda: SimFBO(
        0.1, 0.3, 0.5, 0.4, server_rate=2.0, local_steps=3, discount=0.9
    ),
    "ShroFBO, unequal steps": lambda: ShroFBO(
        0.1, 0.3, 0.5, 0.4, local_steps=3, examples_per_step=2, adjoint_radius=1.5
    ),
    "FedBiOAcc, Adam on the server": lambda: with_server_optimiser(
        FedBiOAcc(0.1, 0.3, 0.5, 0.4, 2.0, 3.0, 4.0, local_steps=2),
        optax_optimiser("adam", learning_rate=0.05, b2=0.99),
    ),
    "AutoFedBiO": lambda: AutoFedBiO(
        rounds=8, upper_rate=0.1, local_steps=2, batch_size=2
    ),
    "two exchanges, private state": lambda: TwoExchanges(0.1),
}

KINDS = (
    "LocalBSGM",
    "FedBiO, private lower level",
    "two exchanges, private state",
)
"""Representative algorithms: a local series, private state, several exchanges."""


def at_night(*values: Any) -> list[Any]:
    """Return test parameters marked as nightly."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def by_day(table: Iterable[Any], *names: Any) -> list[Any]:
    """Return the entries of a table as parameters, all except `names` nightly."""
    return [*names, *at_night(*(name for name in table if name not in names))]


def in_tiers(
    quick: Collection[str] = KINDS, check: Collection[str] = tuple(ALGORITHMS)
) -> pytest.MarkDecorator:
    """Return a mark that runs a test for every algorithm, each in its tier.

    Args:
        quick: algorithms of the quick tier.
        check: algorithms of `make check`; all others are nightly.
    """

    def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
        if name in quick:
            return ()
        return (pytest.mark.slow if name in check else pytest.mark.nightly,)

    named = [pytest.param(name, marks=marks(name)) for name in ALGORITHMS]
    return pytest.mark.parametrize("name", named)


class TwoExchangesServer(NamedTuple):
    x: Any
    y: Any
    gradient: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TwoExchanges:
    """A toy algorithm with features that the paper's two algorithms lack.

    Its rounds have two exchanges, and the second depends on the mean of the first. Its
    devices store and report the number of rounds they participated in.
    """

    rate: float
    local_steps: int = field(default=2, metadata={"static": True})

    def init(self, problem, x, y):
        zero = jax.tree.map(lambda leaf: 0 * leaf, y)
        return TwoExchangesServer(x, y, zero), {"rounds": 0}

    def opening(self, problem):
        return self.phases(problem)

    def phases(self, problem):
        def average_start(downlink, private, data, key):
            (batch,) = data.lower.draw(key, 3, draws=1)
            return problem.lower_gradient(downlink.x, downlink.y, batch), private

        def descend(carry, data, key):
            (x, y, gradient), private = carry
            (batch,) = data.upper.draw(key, 1, draws=1)
            slope, _ = problem.upper_gradients(x, y, batch)
            x = jax.tree.map(lambda a, b: a - self.rate * b, x, slope)
            y = jax.tree.map(lambda a, b: a - self.rate * b, y, gradient)
            return TwoExchangesServer(x, y, gradient), private

        def descend_finish(carry, downlink, key):
            (x, y, _), private = carry
            rounds = private["rounds"] + 1
            return Upload((x, y)), {"rounds": rounds}, {"rounds": rounds}

        return (
            Phase(
                name="gradient",
                steps=0,
                broadcast=lambda server: server,
                start=average_start,
                step=lambda carry, data, key: carry,
                finish=lambda carry, downlink, key: (
                    Upload((), carry[0]),
                    carry[1],
                    {},
                ),
                server=lambda server, mean, key: server._replace(gradient=mean.beside),
            ),
            Phase(
                name="descent",
                steps=self.local_steps,
                broadcast=lambda server: server,
                start=lambda downlink, private, data, key: (downlink, private),
                step=descend,
                finish=descend_finish,
                server=lambda server, mean, key: server._replace(
                    x=mean.update[0], y=mean.update[1]
                ),
                reference=lambda downlink: (downlink.x, downlink.y),
            ),
        )
