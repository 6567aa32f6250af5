"""Transforms of updates before they leave a device: clipping and quantisation."""

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
    """A transform of an update before it leaves a device; pure functions of trees."""

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return the code that the device sends for an update."""

    def decode(self, code: PyTree) -> PyTree:
        """Return the update that the server reads from a code."""


@register
@dataclass(frozen=True)
class Clip:
    """Clip the Euclidean norm of an update of all variables.

    The server clips again, because later transforms such as `Quantise` may lengthen an
    update, and a device may not have clipped it. Norms are exact up to the rounding of
    the arrays' dtypes.

    Attributes:
        norm: largest norm.

    Example:
        >>> clip = Clip(norm=1.0)
        >>> clip.encode((jnp.array([3.0, 4.0]),), jax.random.key(0))
        (Array([0.6, 0.8], dtype=float32),)
    """

    norm: Rate

    def __post_init__(self) -> None:
        check_ranges(self)

    def encode(self, update: PyTree, key: RandomKey) -> PyTree:
        """Return the clipped update."""
        return self._clip(update)

    def decode(self, code: PyTree) -> PyTree:
        """Return the clipped update."""
        return self._clip(code)

    def _clip(self, update: PyTree) -> PyTree:
        _require_floats("Clip", update)
        leaves, structure = jax.tree.flatten(update)
        if not leaves:
            return update
        widest = np.result_type(np.float32, *(leaf.dtype for leaf in leaves))
        wide = [leaf.astype(widest) for leaf in leaves]
        # Entries are divided by the largest, because squares of tiny numbers underflow
        # and squares of huge numbers overflow.
        scale = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0) for leaf in wide]))
        unit = jnp.where(scale > 0, scale, 1)
        parts = [leaf / unit for leaf in wide]
        root = jnp.sqrt(tree.squared_norm(parts))
        longest = jnp.asarray(self.norm, widest)
        # NaN compares as false and is not clipped, so the engine excludes the upload.
        is_longer = root > longest / unit
        clipped = [
            jnp.where(is_longer, (part * (longest / root)).astype(leaf.dtype), leaf)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, clipped)


class Quantised(NamedTuple):
    """An array as integers from −127 to 127 and the size of their unit."""

    levels: Int8[Array, "*shape"]
    unit: Float[Array, ""]


@register
@dataclass(frozen=True)
class Quantise:
    """Quantise each number to 8 bits by unbiased stochastic rounding.

    The unit of an array is its largest entry divided by 127.

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

        def quantise(leaf: Array, key: RandomKey) -> Quantised:
            unit = jnp.max(jnp.abs(leaf), initial=0) / 127
            # This avoids 0 / 0 for an array of zeros.
            parts = leaf / jnp.where(unit > 0, unit, 1)
            shift = jax.random.uniform(key, leaf.shape, leaf.dtype)
            levels = jnp.clip(jnp.floor(parts + shift), -127, 127)
            return Quantised(levels.astype(jnp.int8), unit)

        code = [quantise(*pair) for pair in zip(leaves, keys, strict=False)]
        return jax.tree.unflatten(structure, code)

    def decode(self, code: PyTree) -> PyTree:
        """Return levels times units."""
        return jax.tree.map(
            lambda leaf: leaf.levels.astype(leaf.unit.dtype) * leaf.unit,
            code,
            is_leaf=lambda node: isinstance(node, Quantised),
        )


def _require_floats(name: str, update: PyTree) -> None:
    for leaf in jax.tree.leaves(update):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"{name}: an array has dtype {jnp.result_type(leaf)}, expected "
                "floating point. In with_transforms, put it before the transform that "
                "returns integers."
            )


@register
@dataclass(frozen=True)
class Transformed:
    """An algorithm whose devices transform their updates.

    The transforms apply to the difference between an update and that of an idle device
    (`Phase.reference`). `Upload.beside` is unchanged.

    Attributes:
        algorithm: the inner algorithm.
        transforms: transforms; devices encode in this order, the server decodes in
            reverse order.
    """

    algorithm: Any
    transforms: tuple[Any, ...]

    def init(
        self, problem: BilevelProblem, x: Upper, y: Lower
    ) -> tuple[Server, Private]:
        """Return the initial state of the inner algorithm."""
        state: tuple[Server, Private] = self.algorithm.init(problem, x, y)
        return state

    def opening(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the first round of the inner algorithm, with transformed updates."""
        return tuple(map(self._transform, self.algorithm.opening(problem)))

    def phases(self, problem: BilevelProblem) -> tuple[Phase, ...]:
        """Return the phases of the inner algorithm, with transformed updates."""
        return tuple(map(self._transform, self.algorithm.phases(problem)))

    def _transform(self, phase: Phase) -> Phase:
        reference = phase.reference
        if reference is None:
            return _without_update(phase)

        def finish(
            carry: Carry, downlink: Downlink, key: RandomKey
        ) -> tuple[Upload, Private, Info]:
            inner_key, transform_key = jax.random.split(key)
            upload, private, info = phase.finish(carry, downlink, inner_key)
            # A plain tuple, so that the code does not depend on the algorithm's types.
            code: PyTree = tuple(map(tree.subtract, upload.update, reference(downlink)))
            for number, transform in enumerate(self.transforms):
                code = transform.encode(code, jax.random.fold_in(transform_key, number))
            return upload._replace(update=code), private, info

        def receive(upload: Upload, downlink: Downlink) -> Upload:
            idle = reference(downlink)
            update = reduce(
                lambda code, transform: transform.decode(code),
                reversed(self.transforms),
                upload.update,
            )
            sums = (
                jax.tree.map(lambda a, b: a + b.astype(a.dtype), *pair)
                for pair in zip(idle, update, strict=True)
            )
            # A named tuple if the algorithm uses one.
            whole = type(idle)._make(sums) if hasattr(idle, "_make") else tuple(sums)
            return phase.decode_upload(upload._replace(update=whole), downlink)

        return phase._replace(finish=finish, receive=receive)


def _without_update(phase: Phase) -> Phase:
    """Return a phase that raises an error if it sends an update without a reference."""

    def finish(
        carry: Carry, downlink: Downlink, key: RandomKey
    ) -> tuple[Upload, Private, Info]:
        upload, private, info = phase.finish(carry, downlink, key)
        if jax.tree.leaves(upload.update):
            raise ValueError(
                f"with_transforms: phase {phase.name!r} sends an update but has no "
                "reference. Pass Phase(..., reference=...), which returns the update "
                "of an idle device: zeros if devices send gradients."
            )
        return upload, private, info

    return phase._replace(finish=finish)


def with_transforms(
    algorithm: FederatedAlgorithm, *transforms: Transform
) -> Transformed:
    """Return an algorithm whose devices transform their updates.

    Args:
        algorithm: any algorithm.
        transforms: transforms such as `Clip(1.0)` and `Quantise()`, in the order in
            which devices apply them.

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
        >>> (last,) = run(problem, algorithm, devices, 3.0, 0.0, rounds=1)
        >>> update = np.array([last.x - 3.0, last.y, last.server.adjoint])
        >>> round(float(np.linalg.norm(update)), 4)
        0.01
    """
    return Transformed(algorithm, transforms)
