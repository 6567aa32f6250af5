"""The compiled programs of the sharded engine."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Int, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Private,
    Server,
)
from fedbilevel.data.examples import RandomKey, StoredData
from fedbilevel.engines.chunk import rows_of, with_rows, work_of_chunk
from fedbilevel.engines.dealing import Dealt
from fedbilevel.engines.layout import AXIS, EVERYWHERE, SPLIT
from fedbilevel.engines.mean import WeightedMean, conclude, merge, merge_across
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.problem import BilevelProblem


class Work(NamedTuple):
    """A group of chunks of every shard, and what its devices need.

    Attributes:
        algorithm: its hyperparameters.
        server: the server's state.
        key: the run's.
        moment: when it is.
        norm_limit: the largest upload that counts.
        data: the devices' examples, one entry a shard.
        dealt: the devices, one entry a shard.
        total: each shard's mean over earlier groups; none before the first.

    Example:
        >>> Work._fields[-2:]
        ('dealt', 'total')
    """

    algorithm: FederatedAlgorithm
    server: Server
    key: RandomKey
    moment: Moment
    norm_limit: tree.Rate | None
    data: StoredData
    dealt: Dealt
    total: WeightedMean | None

    def of_a_shard(self) -> "Work":
        """Return it without the axis that data, devices and total have."""
        return self._replace(
            **jax.tree.map(
                lambda leaf: leaf[0],
                {"data": self.data, "dealt": self.dealt, "total": self.total},
            )
        )


_PLACES: Any = Work._make([*[EVERYWHERE] * 5, *[SPLIT] * 3])


class Collected(NamedTuple):
    """What a shard's devices made of a group of chunks.

    Attributes:
        private: what its devices keep.
        total: the mean of their uploads.
        counted: whose uploads counted.

    Example:
        >>> Collected._fields
        ('private', 'total', 'counted')
    """

    private: Private
    total: WeightedMean
    counted: Bool[Array, "chunks chunk"]


class Exchanged(NamedTuple):
    """What an exchange leaves behind.

    Attributes:
        private: what devices keep.
        server: the server's next state.
        counted: whose uploads counted in the last group.
        info: the mean of what devices reported.
        dispersion: how far they had drifted apart.

    Example:
        >>> Exchanged._fields[:2]
        ('private', 'server')
    """

    private: Private
    server: Server
    counted: Bool[Array, "shards chunks chunk"]
    info: Info
    dispersion: PyTree


_compiled = partial(
    jax.jit,
    static_argnames=("problem", "reference", "mesh"),
    donate_argnames="private",
)


@_compiled
def collect(
    private: Private,
    work: Work,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
    mesh: Mesh,
) -> Collected:
    """Add a group of chunks to every shard's mean. Nothing is communicated.

    Example:
        >>> collect.__name__
        'collect'
    """

    def on_a_shard(private: Private, work: Work) -> Collected:
        done = _group(private, work.of_a_shard(), problem, reference)
        total, counted = jax.tree.map(
            lambda leaf: leaf[None], (done.total, done.counted)
        )
        return Collected(done.private, total, counted)

    mapped = jax.shard_map(
        on_a_shard,
        mesh=mesh,
        in_specs=(SPLIT, _PLACES),
        out_specs=SPLIT,
        check_vma=False,
    )
    collected: Collected = mapped(private, work)
    return collected


@_compiled
def exchange(
    private: Private,
    work: Work,
    *,
    problem: BilevelProblem,
    reference: PhaseReference,
    mesh: Mesh,
) -> Exchanged:
    """Add the last group, and let the server have the mean over all shards.

    One program: an all-reduce dispatched on its own, while shards were still at work,
    could wait for ever for the threads they held.

    Example:
        >>> exchange.__name__
        'exchange'
    """

    def on_a_shard(private: Private, work: Work) -> Exchanged:
        done = _group(private, work.of_a_shard(), problem, reference)
        mean = merge_across(done.total, AXIS)
        phase = reference.of(work.algorithm, problem)
        server, dispersion = conclude(phase, work.server, mean)
        counted = jax.lax.all_gather(done.counted, AXIS)
        return Exchanged(done.private, server, counted, mean.info, dispersion)

    mapped = jax.shard_map(
        on_a_shard,
        mesh=mesh,
        in_specs=(SPLIT, _PLACES),
        out_specs=Exchanged._make([SPLIT, *[EVERYWHERE] * 4]),
        check_vma=False,
    )
    exchanged: Exchanged = mapped(private, work)
    return exchanged


def _group(
    private: Private,
    work: Work,
    problem: BilevelProblem,
    reference: PhaseReference,
) -> Collected:
    """Return one shard's mean over all its chunks so far."""
    upper, lower = work.data

    def chunk(number: Int[Array, ""] | int, private: Private) -> Collected:
        devices, rows, weights = (array[number] for array in work.dealt[:3])
        mean, kept, counted = work_of_chunk(
            work.algorithm,
            work.server,
            rows_of(private, rows),
            StoredData(
                upper._replace(offset=upper.offset[number], size=upper.size[number]),
                lower._replace(offset=lower.offset[number], size=lower.size[number]),
            ),
            devices,
            weights,
            work.key,
            work.moment,
            work.norm_limit,
            problem=problem,
            reference=reference,
        )
        return Collected(with_rows(private, rows, counted, kept), mean, counted)

    def following(number: Int[Array, ""], so_far: Collected) -> Collected:
        done = chunk(number, so_far.private)
        return Collected(
            done.private,
            merge(so_far.total, done.total),
            so_far.counted.at[number].set(done.counted),
        )

    chunks = len(work.dealt.devices)
    if chunks == 1:
        only = chunk(0, private)
        mean = only.total
        total = mean if work.total is None else merge(work.total, mean)
        return only._replace(total=total, counted=only.counted[None])
    shapes = jax.eval_shape(chunk, 0, private).total
    total = work.total or jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes
    )
    nobody = jnp.zeros(work.dealt.devices.shape, bool)
    # Each shard has as many chunks as it needs: there is no communication inside.
    done: Collected = jax.lax.fori_loop(
        0, work.dealt.chunks, following, Collected(private, total, nobody)
    )
    return done
