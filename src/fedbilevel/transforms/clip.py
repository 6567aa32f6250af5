"""Clipping: limit the norm of each device's update, to fixed or adaptive bounds."""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from fedbilevel.algorithms.protocol import Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.settings import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    Range,
    Rate,
    Scale,
    Switch,
    check_ranges,
    is_number,
    register,
)
from fedbilevel.transforms.protocol import Bounds, ClipRule
from fedbilevel.transforms.stages import Exchange, Stage, Work

Quantile = Annotated[tree.Scalar, Range(above=0.0, below=1.0)]
"""A quantile strictly between 0 and 1."""


@register
@dataclass(frozen=True)
class Clip:
    """Clip the Euclidean norm of an update, all variables jointly.

    The server clips again, because later transforms may lengthen an update, and a
    device may not have clipped it.

    Attributes:
        norm: largest norm.

    Example:
        >>> clip_parts(Clip(norm=1.0), (jnp.array([3.0, 4.0]),), jnp.ones(1))
        (Array([0.6, 0.8], dtype=float32),)
    """

    norm: Scale

    is_adaptive = False

    def __post_init__(self) -> None:
        check_ranges(self)

    def first_bounds(self, variables: int) -> Bounds:
        """Return the norm."""
        return jnp.asarray(self.norm, float)[None]

    def split(self, update: tuple[PyTree, ...]) -> list[PyTree]:
        """Return the whole update as one part."""
        return [update]

    def next_bounds(self, bounds: Bounds, below: Bounds) -> Bounds:
        """Return the same bounds."""
        return bounds


@register
@dataclass(frozen=True)
class ClipEach:
    """Clip the Euclidean norm of each variable of an update to a separate norm.

    Attributes:
        norms: largest norm of each variable, in the order of `Phase.reference`: x, y
            and z of `FedBiO`; x, y, u and v of `LocalBSGM`.

    Example:
        >>> update = jnp.array([3.0, 4.0]), jnp.array([0.5])
        >>> clip_parts(ClipEach((1.0, 2.0)), update, jnp.array([1.0, 2.0]))
        (Array([0.6, 0.8], dtype=float32), Array([0.5], dtype=float32))
    """

    norms: tuple[tree.Scalar, ...]

    is_adaptive = False

    def __post_init__(self) -> None:
        if not isinstance(self.norms, tuple | list) or not self.norms:
            raise TypeError(
                f"ClipEach: norms is {self.norms!r}, expected a tuple with a norm for "
                "each variable. For one norm of all variables use Clip."
            )
        object.__setattr__(self, "norms", tuple(self.norms))
        for norm in self.norms:
            if is_number(norm) and not SMALLEST_SCALE <= norm <= LARGEST_SCALE:
                raise ValueError(
                    f"ClipEach: norms has {norm!r}, expected numbers, at least "
                    f"{SMALLEST_SCALE:g} and at most {LARGEST_SCALE:g}: beyond, noise "
                    "is lost in single precision. Choose other units."
                )

    def first_bounds(self, variables: int) -> Bounds:
        """Return the norms."""
        if variables != len(self.norms):
            raise ValueError(
                f"ClipEach has {len(self.norms)} norms, but a phase of the algorithm "
                f"sends {variables} variables. Pass {variables} norms, or use Clip."
            )
        return jnp.stack([jnp.asarray(norm, float) for norm in self.norms])

    def split(self, update: tuple[PyTree, ...]) -> list[PyTree]:
        """Return each variable as a part."""
        return list(update)

    def next_bounds(self, bounds: Bounds, below: Bounds) -> Bounds:
        """Return the same bounds."""
        return bounds


@register
@dataclass(frozen=True)
class AdaptiveClip:
    """Clip updates to a norm that follows a quantile of the devices' norms.

    Each device votes on whether its update was within the bound C, and the server
    multiplies C by exp(−rate · (share of these votes − quantile)). A phase has its own
    bounds, which are part of the server's state and of its checkpoints.

    Attributes:
        quantile: quantile of the norms that the bound follows.
        first_norm: bound of the first exchange. The default is far below most
            updates: a bound grows 100-fold in about 45 exchanges, and until then
            updates are too short, not too long.
        rate: speed of the bound; 0.2 changes it by at most 22 % in an exchange.
        each: clip each variable to a bound of its own instead of all jointly. Needed
            if variables have different units, such as momenta.

    References:
        Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with
        Adaptive Clipping, arXiv 1905.03871, equation 1 and Algorithm 1.

    Example:
        >>> clip = AdaptiveClip(quantile=0.5, rate=0.2)
        >>> all_below = jnp.ones(1)
        >>> round(float(clip.next_bounds(jnp.ones(1), all_below)[0]), 4)
        0.9048
    """

    quantile: Quantile = 0.5
    first_norm: Scale = 0.1
    rate: Rate = 0.2
    each: Switch = True

    is_adaptive = True

    def __post_init__(self) -> None:
        check_ranges(self)

    def first_bounds(self, variables: int) -> Bounds:
        """Return the first norm for each part."""
        parts = variables if self.each else 1
        return jnp.broadcast_to(jnp.asarray(self.first_norm, float), (parts,))

    def split(self, update: tuple[PyTree, ...]) -> list[PyTree]:
        """Return each variable, or the whole update, as a part."""
        return list(update) if self.each else [update]

    def next_bounds(self, bounds: Bounds, below: Bounds) -> Bounds:
        """Return bounds nearer to the quantile."""
        step = jnp.asarray(self.rate * (below - self.quantile), bounds.dtype)
        return jnp.clip(bounds * jnp.exp(-step), SMALLEST_SCALE, LARGEST_SCALE)


def clip_stage(rule: ClipRule, *, clips_again: bool) -> Stage:
    """Return the stage of a clip.

    Args:
        rule: rule that clips changes on the device.
        clips_again: True if the server clips again what it has decoded. Noise of
            devices makes honest changes longer than their bound, and of levels the
            server knows the sum only.
    """

    def send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
        change, beside = work.upload
        if not jax.tree.leaves(change):
            return work
        bounds = exchange.bounds
        assert bounds is not None, "a phase with changes has bounds"
        if rule.is_adaptive:
            norms = jnp.stack([_Lengths.of(part).norm for part in rule.split(change)])
            votes = jnp.where(norms <= bounds, 0.5, -0.5)
            beside = beside._replace(votes=votes)
        return work._replace(upload=Upload(clip_parts(rule, change, bounds), beside))

    def receive(upload: Upload, exchange: Exchange) -> Upload:
        change, beside = upload
        if exchange.bounds is None or not clips_again:
            return upload
        votes = jax.tree.map(lambda vote: jnp.clip(vote, -0.5, 0.5), beside.votes)
        return Upload(
            clip_parts(rule, change, exchange.bounds), beside._replace(votes=votes)
        )

    return Stage(send, receive)


def clip_parts(rule: Any, update: tuple[PyTree, ...], bounds: Bounds) -> Any:
    """Return an update whose parts have at most the norms of the bounds.

    Norms are exact up to the rounding of the arrays' dtypes.

    Example:
        >>> clip_parts(Clip(1.0), (jnp.array([3e20, 4e20]),), jnp.ones(1))
        (Array([0.6, 0.8], dtype=float32),)
    """
    _require_floats(update)
    if not jax.tree.leaves(update):
        return update
    parts = map(clip_to, rule.split(update), list(bounds))
    leaves = jax.tree.leaves(list(parts))
    return jax.tree.unflatten(jax.tree.structure(update), leaves)


def clip_to(part: PyTree, bound: Float[Array, ""]) -> PyTree:
    """Return a tree whose Euclidean norm is at most a bound.

    Example:
        >>> clip_to({"a": jnp.array([0.3, 0.4])}, jnp.array(1.0))
        {'a': Array([0.3, 0.4], dtype=float32)}
    """
    leaves, structure = jax.tree.flatten(part)
    if not leaves:
        return part
    lengths = _Lengths.of(part)
    longest = jnp.asarray(bound, lengths.root.dtype)
    # NaN is not clipped, and infinity becomes NaN: neither becomes finite.
    is_longer = lengths.root > longest / lengths.unit
    clipped = [
        jnp.where(is_longer, (unit * (longest / lengths.root)).astype(leaf.dtype), leaf)
        for unit, leaf in zip(lengths.parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, clipped)


class _Lengths:
    """The norm of a tree in units of its largest entry.

    Squares of tiny numbers underflow and squares of huge numbers overflow. The unit is
    at most 2e28 in single precision, since XLA multiplies by its reciprocal and rounds
    that of 1e38 to zero: the norm would be 0, and an update of 1e38 would not be
    clipped.
    """

    def __init__(self, parts: list[Array], unit: Array, root: Array) -> None:
        self.parts, self.unit, self.root = parts, unit, root

    @classmethod
    def of(cls, part: PyTree) -> "_Lengths":
        leaves = jax.tree.leaves(part)
        widest = np.result_type(np.float32, *(leaf.dtype for leaf in leaves))
        wide = [leaf.astype(widest) for leaf in leaves]
        peaks = [jnp.max(jnp.abs(leaf), initial=0) for leaf in wide]
        scale = jnp.max(jnp.stack([jnp.zeros((), widest), *peaks]))
        largest = np.array(np.finfo(widest).max ** 0.75, widest)
        unit = jnp.where(scale > 0, jnp.minimum(scale, largest), 1)
        parts = [leaf / unit for leaf in wide]
        squares = [jnp.zeros((), widest), *(jnp.vdot(leaf, leaf) for leaf in parts)]
        return cls(parts, unit, jnp.sqrt(jnp.sum(jnp.stack(squares))))

    @property
    def norm(self) -> Array:
        return jnp.asarray(self.unit * self.root, float)


def _require_floats(update: PyTree) -> None:
    for leaf in jax.tree.leaves(update):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(
                f"An update to clip has an array of dtype {jnp.result_type(leaf)}, "
                "expected floating point. Keep integers out of x and y."
            )
