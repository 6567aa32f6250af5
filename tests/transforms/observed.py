"""The observations of a run with noise: the released means and the participants.

An upload counts or not, and a released mean has a variance. Under noise neither may
depend on whether the numbers of a device are finite, huge or usual.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel import (
    AdaptiveClip,
    BilevelProblem,
    Clip,
    ClipEach,
    DeviceNoise,
    Download,
    ExampleNoise,
    Feedback,
    FixedPoint,
    GaussianNoise,
    InMemoryDevices,
    LocalExamples,
    Quantise,
    Simulation,
    run,
)
from fedbilevel.algorithms import map_phases
from fedbilevel.mathematics import tree

SIZE, DEVICES, BAD = 2000, 5, 1
MULTIPLIER, CLIP = 2.0, 0.1
BOUNDS = {"Clip": CLIP, "ClipEach": CLIP, "AdaptiveClip": CLIP}
"""The bound of each clip in the first exchange of a phase."""
CORRUPTIONS = {"NaN": np.nan, "infinity": np.inf, "usual × 10⁶": 1e6}
"""Values of all examples of one device; those of all other devices are 1."""


def noise(name: str) -> Any:
    """Return noise of a type: the only place that makes noise for these tests."""
    return {
        "GaussianNoise": lambda: GaussianNoise(MULTIPLIER),
        "DeviceNoise": lambda: DeviceNoise(MULTIPLIER, devices=DEVICES),
        "ExampleNoise": lambda: ExampleNoise(clip=CLIP, multiplier=MULTIPLIER),
    }[name]()


def clip(name: str, variables: int) -> Any:
    return {
        "Clip": lambda: Clip(CLIP),
        "ClipEach": lambda: ClipEach((CLIP,) * variables),
        "AdaptiveClip": lambda: AdaptiveClip(first_norm=CLIP),
    }[name]()


OTHERS = {
    "": lambda: (),
    "Download": lambda: (Download(Quantise(bits=8)),),
    "Feedback": lambda: (Feedback(Quantise()),),
    "FixedPoint": lambda: (FixedPoint(),),
}
"""Transforms beside a clip and noise."""


def transforms(names: str, variables: int) -> list[Any]:
    """Return transforms from their names, which a space separates."""
    made: list[Any] = []
    for name in names.split():
        if name.endswith("Noise"):
            made.append(noise(name))
        elif name in BOUNDS:
            made.append(clip(name, variables))
        else:
            made.extend(OTHERS[name]())
    return made


def loss(x: Any, y: Any, batch: Any) -> Any:
    return jnp.mean(batch) * (jnp.sum(x) + jnp.sum(y) + 0.5 * jnp.sum(y**2))


PROBLEM = BilevelProblem(loss, loss)
START = np.zeros(SIZE), np.zeros(SIZE)


def devices(value: float) -> InMemoryDevices:
    """Return devices of which one has examples of this value, and all others of 1."""
    values = [1.0] * DEVICES
    values[BAD] = value
    return InMemoryDevices(
        [LocalExamples(np.full(4, each), np.full(4, each)) for each in values]
    )


class ObservedState(NamedTuple):
    inner: Any
    released: dict[str, Any]

    @property
    def x(self) -> Any:
        return self.inner.x

    @property
    def y(self) -> Any:
        return self.inner.y


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Observed:
    """An algorithm that stores the first released change of each of its phases."""

    algorithm: Any

    def init(self, problem: Any, x: Any, y: Any) -> Any:
        server, private = self.algorithm.init(problem, x, y)
        server = jax.tree.map(jnp.asarray, server)
        released = {}
        for phase in self._all_phases(problem):
            if phase.reference is not None:
                idle = jax.eval_shape(partial(_idle, phase), server)
                zeros = tree.zeros_like(tree.at_least_single(_arrays(idle)))
                released[phase.name] = (jnp.array(False), zeros)
        return ObservedState(server, released), private

    def opening(self, problem: Any) -> Any:
        return map_phases(_observed, self.algorithm.opening(problem))

    def phases(self, problem: Any) -> Any:
        return map_phases(_observed, self.algorithm.phases(problem))

    def _all_phases(self, problem: Any) -> Any:
        return *self.algorithm.opening(problem), *self.algorithm.phases(problem)


def _idle(phase: Any, server: Any) -> Any:
    return tuple(phase.reference(phase.broadcast(server)))


def _arrays(forms: Any) -> Any:
    return jax.tree.map(lambda form: jnp.zeros(form.shape, form.dtype), forms)


def _observed(phase: Any) -> Any:
    def server(state: ObservedState, mean: Any, key: Any) -> ObservedState:
        following = phase.server(state.inner, mean, key)
        if phase.reference is None:
            return state._replace(inner=following)
        change = tree.subtract(tuple(mean.update), _idle(phase, state.inner))
        seen, before = state.released[phase.name]
        kept = jax.tree.map(lambda old, new: jnp.where(seen, old, new), before, change)
        released = {**state.released, phase.name: (jnp.array(True), kept)}
        return ObservedState(following, released)

    return phase._replace(
        broadcast=lambda state: phase.broadcast(state.inner), server=server
    )


class Observation(NamedTuple):
    """The observations of a run of two rounds.

    Attributes:
        counted: devices whose uploads counted, in each exchange.
        contacted: devices that were contacted, in each exchange.
        excluded: number of exclusions of each device.
        reported: values that devices reported, and the dispersion of uploads.
        changes: first released change of each phase, as one vector.
        server: last state of the server.
    """

    counted: list[list[int]]
    contacted: list[list[int]]
    excluded: Any
    reported: list[Any]
    changes: dict[str, Any]
    server: Any

    @property
    def participants(self) -> Any:
        return self.counted, self.contacted, self.excluded


def observe(algorithm: Any, value: float, engine: Any = None) -> Observation:
    """Run an algorithm, one of whose devices has examples of a value."""
    counted, contacted, reported = [], [], []
    for result in run(
        PROBLEM,
        algorithm,
        devices(value),
        *START,
        rounds=2,
        engine=engine or Simulation(),
    ):
        for report in result.reports:
            counted.append(report.contributors.tolist())
            contacted.append(report.devices[report.present].tolist())
            spread = [float(leaf) for leaf in jax.tree.leaves(report.dispersion)]
            reported.append((report.info, spread))
    # An adaptive clip has a state around that of the algorithm.
    state: Any = result.server
    state = state.inner if hasattr(state, "bounds") else state
    changes = {
        name: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(change)])
        for name, (_, change) in getattr(state, "released", {}).items()
    }
    return Observation(
        counted, contacted, result.exclusions, reported, changes, result.server
    )
