"""What becomes of an update before it leaves a device: clipped, or sent in few bits."""

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int8, PyTree

from fedbilevel.algorithms.protocol import (
    Carry,
    Downlink,
    FederatedAlgorithm,
    Info,
    Phase,
    Private,
    Server,
    Upload,
)
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.mathematics.settings import Rate, check_ranges, register


@runtime_checkable
class Transform(Protocol):
    """Changes an update before it leaves a device; pure functions of trees."""

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return what is sent, in place of what the device has changed."""

    def decode(self, code: PyTree) -> PyTree:
        """Return what the server takes it for."""


@register
@dataclass(frozen=True)
class Clip:
    """Shortens an update of all variables together to a largest Euclidean norm.

    The server shortens it again: what transforms in between have lengthened, as
    rounding at random does, and what a device has not clipped. Norms are right to the
    rounding of the arrays' types.

    Attributes:
        norm: the largest.

    Example:
        >>> clip = Clip(norm=1.0)
        >>> clip.encode((jnp.array([3.0, 4.0]),), jax.random.key(0))
        (Array([0.6, 0.8], dtype=float32),)
    """

    norm: Rate

    def __post_init__(self) -> None:
        check_ranges(self)

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return the update, no longer than the norm."""
        return self._clipped(update)

    def decode(self, code: PyTree) -> PyTree:
        """Return it, no longer than the norm."""
        return self._clipped(code)

    def _clipped(self, update: PyTree) -> PyTree:
        _require_floats("Clip", update)
        leaves, structure = jax.tree.flatten(update)
        if not leaves:
            return update
        widest = np.result_type(np.float32, *(leaf.dtype for leaf in leaves))
        wide = [leaf.astype(widest) for leaf in leaves]
        # In units of the largest entry: squares of tiny numbers would vanish, and those
        # of huge ones be infinite.
        scale = jnp.max(jnp.stack([jnp.max(jnp.abs(one), initial=0) for one in wide]))
        unit = jnp.where(scale > 0, scale, 1)
        parts = [one / unit for one in wide]
        root = jnp.sqrt(tree.squared_norm(parts))
        longest = jnp.asarray(self.norm, widest)
        # What is not finite compares as false, stays, and is left out by the engine.
        is_longer = root > longest / unit
        shortened = [
            jnp.where(is_longer, (part * (longest / root)).astype(leaf.dtype), leaf)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, shortened)


class Quantised(NamedTuple):
    """An array as whole numbers from −127 to 127, and the length of one of them.

    Example:
        >>> Quantised(jnp.array([127], jnp.int8), jnp.array(0.1)).unit.shape
        ()
    """

    levels: Int8[Array, "*shape"]
    unit: Float[Array, ""]


@register
@dataclass(frozen=True)
class Quantise:
    """Sends each number in 8 bits, rounded up or down at random so that the mean stays.

    Each array has its own unit, a 127th of its largest entry.

    Example:
        >>> update = (jnp.array([1.0, -0.5]),)
        >>> (sent,) = Quantise().encode(update, jax.random.key(0))
        >>> sent.levels.dtype, Quantise().decode((sent,))[0].round(2).tolist()
        (dtype('int8'), [1.0, -0.5])
    """

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return levels and units."""
        _require_floats("Quantise", update)
        leaves, structure = jax.tree.flatten(update)
        keys = jax.random.split(key, max(1, len(leaves)))

        def rounded(leaf: Array, key: RandomKey) -> Quantised:
            unit = jnp.max(jnp.abs(leaf), initial=0) / 127
            # Of an array of zeros any unit will do.
            parts = leaf / jnp.where(unit > 0, unit, 1)
            shift = jax.random.uniform(key, leaf.shape, leaf.dtype)
            levels = jnp.clip(jnp.floor(parts + shift), -127, 127)
            return Quantised(levels.astype(jnp.int8), unit)

        coded = [rounded(*pair) for pair in zip(leaves, keys, strict=False)]
        return jax.tree.unflatten(structure, coded)

    def decode(self, code: PyTree) -> PyTree:
        """Return levels times units."""
        return jax.tree.map(
            lambda one: one.levels.astype(one.unit.dtype) * one.unit,
            code,
            is_leaf=lambda node: isinstance(node, Quantised),
        )


def _require_floats(name: str, update: PyTree) -> None:
    for leaf in jax.tree.leaves(update):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"{name} takes arrays of floating-point numbers, but was given "
                f"{jnp.result_type(leaf)}; put it before the transform that makes "
                "whole numbers."
            )


@register
@dataclass(frozen=True)
class Transformed:
    """An algorithm whose devices change their updates before they leave.

    An update is what a device sends less what it would send if it had done nothing
    (`Phase.reference`). What it sends beside is left alone.

    Attributes:
        algorithm: the algorithm inside.
        transforms: applied in this order by devices, undone in the other by the server.

    Example:
        >>> from fedbilevel import FedBiO
        >>> with_transforms(FedBiO(0.1), Clip(1.0), Quantise()).algorithm.batch_size
        1
    """

    algorithm: Any
    transforms: tuple[Any, ...]

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[Server, Private]:
        """Return the first state of the algorithm inside."""
        state: tuple[Server, Private] = self.algorithm.init(problem, x, y)
        return state

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round of the algorithm inside, its updates transformed."""
        return tuple(map(self._transformed, self.algorithm.opening(problem)))

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the algorithm inside, their updates transformed."""
        return tuple(map(self._transformed, self.algorithm.phases(problem)))

    def _transformed(self, phase: Phase) -> Phase:
        reference = phase.reference
        if reference is None:
            return _without_update(phase)

        def finish(
            carry: Carry, downlink: Downlink, key: RandomKey
        ) -> tuple[Upload, Private, Info]:
            own, other = jax.random.split(key)
            upload, kept, info = phase.finish(carry, downlink, own)
            # Trees of one type, whatever tuples the algorithm has made them of.
            code: PyTree = tuple(map(tree.subtract, upload.update, reference(downlink)))
            for number, transform in enumerate(self.transforms):
                code = transform.encode(code, jax.random.fold_in(other, number))
            return upload._replace(update=code), kept, info

        def receive(upload: Upload, downlink: Downlink) -> Upload:
            here = reference(downlink)
            update = reduce(
                lambda code, transform: transform.decode(code),
                reversed(self.transforms),
                upload.update,
            )
            sums = (
                jax.tree.map(lambda a, b: a + b.astype(a.dtype), *pair)
                for pair in zip(here, update, strict=True)
            )
            # A tuple with names, where the algorithm's is one.
            whole = type(here)._make(sums) if hasattr(here, "_make") else tuple(sums)
            return phase.decode_upload(upload._replace(update=whole), downlink)

        return phase._replace(finish=finish, receive=receive)


def _without_update(phase: Phase) -> Phase:
    """Return a phase that may send no update, as nothing says what would be one."""

    def finish(
        carry: Carry, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        upload, kept, info = phase.finish(carry, downlink, key)
        if jax.tree.leaves(upload.update):
            raise ValueError(
                f"transforms cannot be applied to the phase {phase.name!r}: it sends "
                "an update, but has no reference that says what an idle device would "
                "send. Give Phase(..., reference=...); zeros where devices send "
                "gradients."
            )
        return upload, kept, info

    return phase._replace(finish=finish)


def with_transforms(
    algorithm: FederatedAlgorithm, *transforms: Transform
) -> Transformed:
    """Return an algorithm whose devices transform their updates.

    Args:
        algorithm: any algorithm.
        transforms: such as `Clip(1.0)` and `Quantise()`, in the order of their use.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import (
        ...     BilevelProblem, FedBiO, InMemoryDevices, LocalExamples, run
        ... )
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> algorithm = with_transforms(FedBiO(0.1), Clip(0.01))
        >>> problem = BilevelProblem(loss, loss)
        >>> (done,) = run(problem, algorithm, devices, 3.0, 0.0, rounds=1)
        >>> way = np.array([done.x - 3.0, done.y, done.server.adjoint])
        >>> round(float(np.linalg.norm(way)), 4)
        0.01
    """
    return Transformed(algorithm, transforms)
