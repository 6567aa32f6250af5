"""Closed forms of the costs of a device in a round, for every algorithm.

m and n are the sizes of x and y in numbers of 4 bytes; most downlinks also contain a
step counter of 4 bytes.
"""

from collections.abc import Callable
from typing import NamedTuple

from fedbilevel.engines.costs import Costs, DeviceCosts

NUMBER = 4
"""Bytes of a number in single precision, and of a counter."""
ORACLES = {
    "upper_gradients": 4.0,
    "lower_gradient": 4.0,
    "hessian_product": 8.0,
    "cross_product": 8.0,
}
"""Operations per parameter and example of a linear model: a product with the weights is
2, a gradient has two products, and a second derivative doubles all."""


class Settings(NamedTuple):
    """The settings that determine the costs of a round.

    Attributes:
        local_steps: p.
        batch_size: b.
        terms: Q.
        lower_rounds: R, of FedNest and LFedNest.
        lower_steps: S, of FedNest and LFedNest.
        initial_batch_size: B.
    """

    local_steps: int
    batch_size: int
    terms: int
    lower_rounds: int = 1
    lower_steps: int = 1
    initial_batch_size: int = 1


class Size(NamedTuple):
    """The numbers in x and in y."""

    upper: int
    lower: int


class RoundCosts(NamedTuple):
    """The costs and number of exchanges of one device in one round."""

    upper_samples: int
    lower_samples: int
    exchanges: int
    bytes_down: int
    bytes_up: int

    def times(self, devices: int) -> Costs:
        """Return the costs of a number of devices."""
        costs = DeviceCosts(
            self.upper_samples, self.lower_samples, self.bytes_down, self.bytes_up, 0
        )
        return costs.times(devices)._replace(exchanges=self.exchanges)


class Formula(NamedTuple):
    """The closed forms of one algorithm.

    Attributes:
        round: the costs of a round.
        opening: the costs of the first round.
        state: the bytes of a device's state between two local steps.
    """

    round: Callable[[Settings, Size], RoundCosts]
    opening: Callable[[Settings, Size], RoundCosts]
    state: Callable[[Size], int]


def momentum(s: Settings, size: Size) -> RoundCosts:
    """Return the costs of LocalBSGM and LocalBSGVRM: x, y, u and v, once."""
    m, n = size
    drawn = s.local_steps * s.batch_size
    sent = NUMBER * (2 * m + 2 * n)
    return RoundCosts(drawn, (s.terms + 2) * drawn, 1, sent + NUMBER, sent)


def momentum_opening(batch: Callable[[Settings], int]) -> Callable[..., RoundCosts]:
    """Return the costs of the first round, which estimates u and v."""

    def opening(s: Settings, size: Size) -> RoundCosts:
        m, n = size
        usual, more = momentum(s, size), batch(s)
        return usual._replace(
            upper_samples=usual.upper_samples + more,
            lower_samples=usual.lower_samples + (s.terms + 2) * more,
            bytes_down=NUMBER * (m + n + 1),
        )

    return opening


def lfednest(s: Settings, size: Size) -> RoundCosts:
    """Return the costs of LFedNest: R exchanges for y, one for x."""
    m, n = size
    drawn = s.local_steps * s.batch_size
    lower = s.lower_rounds * s.lower_steps * s.batch_size
    return RoundCosts(
        drawn,
        lower + (s.terms + 1) * drawn,
        s.lower_rounds + 1,
        (s.lower_rounds + 1) * NUMBER * (m + n + 1),
        NUMBER * (m + s.lower_rounds * n),
    )


def fednest(s: Settings, size: Size) -> RoundCosts:
    """Return the costs of FedNest.

    Two exchanges for each of R, one for ∇y f, Q for the series, two for x.
    """
    m, n = size
    r, q, b = s.lower_rounds, s.terms, s.batch_size
    down = (2 * r + q + 4) * m + (3 * r + 2 * q + 4) * n + (r + 1)
    return RoundCosts(
        (s.local_steps + 2) * b,
        (r * (1 + s.lower_steps) + q + 1) * b,
        2 * r + q + 3,
        NUMBER * down,
        NUMBER * (2 * m + (2 * r + q + 1) * n),
    )


def adjoint(upper: int, lower: int, more: int) -> Callable[..., RoundCosts]:
    """Return the costs of an algorithm with a third variable.

    Args:
        upper: number of arrays of the size of x that are sent.
        lower: number of arrays of the size of y that are sent.
        more: number of single numbers that are uploaded.
    """

    def costs(s: Settings, size: Size) -> RoundCosts:
        drawn = s.local_steps * s.batch_size
        sent = NUMBER * (upper * size.upper + lower * size.lower)
        return RoundCosts(drawn, 3 * drawn, 1, sent + NUMBER, sent + NUMBER * more)

    return costs


def accelerated_opening(s: Settings, size: Size) -> RoundCosts:
    """Return the costs of FedBiOAcc's first round, with an initial estimate."""
    usual = adjoint(2, 4, 0)(s, size)
    return usual._replace(
        upper_samples=usual.upper_samples + s.initial_batch_size,
        lower_samples=usual.lower_samples + 3 * s.initial_batch_size,
    )


def holding(upper: int, lower: int, counters: int) -> Callable[[Size], int]:
    """Return the bytes of a state, from its numbers of x, y and single numbers."""
    return lambda size: NUMBER * (upper * size.upper + lower * size.lower + counters)


FORMULAS = {
    "LocalBSGM": Formula(
        momentum, momentum_opening(lambda s: s.batch_size), holding(2, 2, 1)
    ),
    "LocalBSGVRM": Formula(
        momentum, momentum_opening(lambda s: s.initial_batch_size), holding(2, 2, 1)
    ),
    "LFedNest": Formula(lfednest, lfednest, holding(1, 1, 1)),
    # The local y and the downlink, or the local x and the downlink.
    "FedNest": Formula(
        fednest,
        fednest,
        lambda size: NUMBER * (sum(size) + 2 * max(size) + 1),
    ),
    "FedBiO": Formula(adjoint(1, 2, 0), adjoint(1, 2, 0), holding(1, 2, 1)),
    "FedBiOAcc": Formula(adjoint(2, 4, 0), accelerated_opening, holding(2, 4, 2)),
    "SimFBO": Formula(adjoint(1, 2, 0), adjoint(1, 2, 0), holding(2, 4, 4)),
    "ShroFBO": Formula(adjoint(1, 2, 1), adjoint(1, 2, 1), holding(2, 4, 4)),
}


def operations_per_round(name: str, s: Settings, size: Size) -> float:
    """Return the operations of a device in a round on a linear model, by `ORACLES`."""
    upper, lower, hessian, cross = ORACLES.values()
    step = {
        "LocalBSGM": upper + lower + s.terms * hessian + cross,
        "LocalBSGVRM": 2 * (upper + lower + s.terms * hessian + cross),
        "LFedNest": upper + s.terms * hessian + cross,
        "FedNest": 2 * upper,
        "FedBiO": upper + lower + hessian + cross,
        "FedBiOAcc": 2 * (upper + lower + hessian + cross),
        "SimFBO": upper + lower + hessian + cross,
        "ShroFBO": upper + lower + hessian + cross,
    }[name]
    extra = {
        "LFedNest": s.lower_rounds * s.lower_steps * lower,
        "FedNest": s.lower_rounds * (1 + 2 * s.lower_steps) * lower
        + upper
        + s.terms * hessian
        + (upper + cross),
    }.get(name, 0.0)
    return (s.local_steps * step + extra) * s.batch_size * size.lower
