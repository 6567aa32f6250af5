"""Changes: the differences between updates and those of an idle device."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import MEAN, Beside, Phase, Upload
from fedbilevel.data.examples import RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.transforms.clip import clip_to
from fedbilevel.transforms.stages import Exchange, Stage, Work


def _send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
    if not exchange.idle:
        return work
    upload = work.upload
    pairs = tuple(map(tree.subtract, upload.update, exchange.idle))
    change = in_form(exchange.form, jax.tree.leaves(pairs))
    return work._replace(upload=upload._replace(update=change))


def _release(mean: Upload, exchange: Exchange) -> Upload:
    if not exchange.idle:
        return mean
    idle = tree.at_least_single(exchange.idle)
    pairs = zip(jax.tree.leaves(idle), jax.tree.leaves(mean.update), strict=True)
    return mean._replace(
        update=in_form(idle, [a + b.astype(a.dtype) for a, b in pairs])
    )


CHANGES = Stage(send=_send, release=_release)
"""The first stage: devices send changes; the server adds their mean to its point."""


def in_form(form: PyTree, leaves: Sequence[Any]) -> Any:
    """Return arrays in the structure and the dtypes of a tree.

    Example:
        >>> in_form({"a": jnp.ones(2)}, [jnp.arange(2)])
        {'a': Array([0., 1.], dtype=float32)}
    """
    likes, structure = jax.tree.flatten(form)
    pairs = zip(leaves, likes, strict=True)
    return jax.tree.unflatten(
        structure, [leaf.astype(like.dtype) for leaf, like in pairs]
    )


def values_beside(beside: Beside, *, is_bounded: bool, clips_again: bool) -> Stage:
    """Return the stage of the values beside an update.

    Args:
        beside: their limits and units.
        is_bounded: True if devices send them in units of bounded norm.
        clips_again: True if the server clips bounded values again.
    """
    units: Any = beside.units

    def replace(upload: Upload, function: Any, *others: Any) -> Upload:
        values = function(upload.beside.values, *others)
        return upload._replace(beside=upload.beside._replace(values=values))

    def bounded(values: PyTree) -> PyTree:
        return clip_to(values, jnp.ones(()))

    def limit(upload: Upload, exchange: Exchange) -> Upload:
        return replace(upload, beside.limit, exchange.downlink)

    def send(work: Work, exchange: Exchange, key: RandomKey) -> Work:
        narrow = replace(work.upload, units.narrow, exchange.downlink)
        return work._replace(upload=replace(narrow, bounded))

    def receive(upload: Upload, exchange: Exchange) -> Upload:
        # Devices clip their own values; one that does not must not matter more.
        return replace(upload, bounded) if clips_again else upload

    def release(mean: Upload, exchange: Exchange) -> Upload:
        return replace(mean, units.widen, exchange.downlink)

    if not is_bounded:
        return Stage() if beside.limit is None else Stage(receive=limit)
    return Stage() if beside.units is None else Stage(send, receive, release)


def check_changes(phase: Phase, upload: Upload, bounding: Any) -> None:
    """Check that the changes of a phase are known, and bounded where they must be.

    Args:
        phase: phase of the inner algorithm.
        upload: its upload.
        bounding: transform that needs bounds; None without.

    Raises:
        ValueError: if they are not.
    """
    name = phase.name
    if phase.reference is None and jax.tree.leaves(upload.update):
        raise ValueError(
            f"with_transforms: phase {name!r} sends an update but has no reference. "
            "Pass Phase(..., reference=...), which returns the update of an idle "
            "device: zeros if devices send gradients."
        )
    if phase.aggregation != MEAN:
        raise ValueError(
            f"with_transforms: phase {name!r} has another aggregation than MEAN, so "
            "the changes of its updates are not known. Send updates, and pass codes "
            "and robust means to with_transforms."
        )
    has_bounds = phase.beside.units is not None or not jax.tree.leaves(upload.beside)
    if bounding is not None and not has_bounds:
        transform = type(bounding).__name__
        raise ValueError(
            f"with_transforms: phase {name!r} sends values beside its update, for "
            f"which {transform} needs a bound. Pass Phase(..., "
            "beside=Beside(units=...)), or use an algorithm that sends updates only, "
            "such as FedBiO."
        )
