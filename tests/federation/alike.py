"""Sites of equal size, which compile each phase once, and a plain reference."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel import FederatedAlgorithm, InMemoryDevices, LocalExamples, Phase
from fedbilevel.data.examples import one_device
from fedbilevel.engines.preparation import canonical
from fedbilevel.federation import Site
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines.federation import START
from tests.federation.sites import sites_holding

WEIGHTS = np.array(
    [1.0, 0.0, 2.5, 0.5, 1.0]
)  # Weights are uneven, and device 1 is absent.
NAMES = [f"site-{number}" for number in range(len(WEIGHTS))]
PRESENT = [name for name, weight in zip(NAMES, WEIGHTS, strict=True) if weight]
PROBLEM = quadratic.problem()


def held() -> list[LocalExamples]:
    return quadratic.devices(len(NAMES), per_device=3, noise=0.3)


@cache
def algorithm(name: str) -> FederatedAlgorithm:
    return ALGORITHMS[name]()


def sites(name: str, directory: Path | None = None) -> dict[str, Site]:
    return sites_holding(held(), PROBLEM, algorithm(name), directory)


class DeviceResult(NamedTuple):
    """Return upload, state and metrics of a device in one exchange."""

    upload: Any
    private: Any
    info: Any


class ByHand:
    """A reference federation: a plain loop with NumPy's mean.

    Attributes:
        server: state of the server.
        info: mean of the devices' metrics in the last exchange.
    """

    def __init__(self, name: str) -> None:
        start = map(jnp.asarray, START)
        self.server, first = canonical(algorithm(name).init(PROBLEM, *start))
        self._first = first
        self._private = dict.fromkeys(range(len(NAMES)), first)
        self._opening, self._phases = phases(name)
        self._key = jax.random.key(0)
        self.info: Any = None

    def plan(self, round_number: int) -> Sequence[Phase]:
        return self._phases if round_number else self._opening

    def lose(self, device: int) -> None:
        """Reset a device to its first state."""
        self._private[device] = self._first

    def exchange(self, round_number: int, place: int, counted: Sequence[int]) -> None:
        phase = self.plan(round_number)[place]
        downlink = phase.broadcast(self.server)
        results = {}
        for device in counted:
            key = self._key
            for number in (round_number, place, device):
                key = jax.random.fold_in(key, number)
            results[device] = DeviceResult(
                *prepare_run(phase)(
                    downlink,
                    self._private[device],
                    data(device),
                    key,
                )
            )
        shares = WEIGHTS[list(counted)] / WEIGHTS[list(counted)].sum()

        def mean(*leaves: Any) -> jax.Array:
            pairs = zip(shares, leaves, strict=True)
            return jnp.asarray(sum(share * np.asarray(leaf) for share, leaf in pairs))

        received = [
            phase.decode_upload(item.upload, downlink) for item in results.values()
        ]
        upload = jax.tree.map(mean, *received)
        self.server = jax.tree.map(
            lambda new, old: jnp.asarray(new, old.dtype),
            phase.server(self.server, upload, jax.random.key(0)),
            self.server,
        )
        self.info = jax.tree.map(mean, *[item.info for item in results.values()])
        for device, item in results.items():
            self._private[device] = item.private


@cache
def phases(name: str) -> tuple[Sequence[Phase], Sequence[Phase]]:
    later = algorithm(name).phases(PROBLEM)
    return algorithm(name).opening(PROBLEM) or later, later


@cache
def data(device: int) -> Any:
    return one_device(InMemoryDevices([held()[device]]).cohort(np.array([0])))


@cache
def prepare_run(phase: Phase) -> Callable[..., Any]:
    fold = jax.random.fold_in

    @jax.jit
    def work(downlink: Any, private: Any, data: Any, key: Any) -> Any:
        carry: Any = phase.start(downlink, private, data, fold(key, 0))
        for number in range(phase.steps):
            carry = phase.step(carry, data, fold(key, number + 1))
        return phase.finish(carry, downlink, fold(key, phase.steps + 1))

    return work
