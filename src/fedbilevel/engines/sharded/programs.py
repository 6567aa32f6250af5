"""The compiled programs of the sharded engine."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from fedbilevel.algorithms.protocol import (
    FederatedAlgorithm,
    Info,
    Private,
    Server,
)
from fedbilevel.data.examples import RandomKey, StoredData, StoredExamples
from fedbilevel.engines.chunk import (
    Reach,
    Travel,
    rows_of,
    travel_of_chunk,
    with_rows,
    work_of_chunk,
)
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import WeightedMean, conclude, merge, merge_across
from fedbilevel.engines.protocol import Moment, PhaseReference, server_key
from fedbilevel.engines.sharded.assignment import Group
from fedbilevel.engines.sharded.layout import AXIS, EVERYWHERE, SPLIT, Layout
from fedbilevel.mathematics.problem import BilevelProblem


class Work(NamedTuple):
    """A group of chunks of every shard, and what its devices need.

    Attributes:
        algorithm: its hyperparameters.
        server: the server's state.
        key: the run's.
        moment: when it is, in one array: every argument from the host costs time.
        limits: that uploads are held to.
        data: the devices' examples, one entry a shard.
        group: the devices, one entry a shard.
        total: each shard's mean over earlier groups; none before the first.
        reach: how far uploads may go; none if there is no limit, or if the group is
            the only chunk of every shard, so that it is found on the way.

    Example:
        >>> Work._fields[-2:]
        ('total', 'reach')
    """

    algorithm: FederatedAlgorithm
    server: Server
    key: RandomKey
    moment: Int[Array | np.ndarray, "2"]
    limits: Limits
    data: StoredData
    group: Group
    total: WeightedMean | None
    reach: Reach | None

    def of_a_shard(self) -> "Work":
        """Return it without the axis that data, devices and total have."""
        return self._replace(
            **jax.tree.map(
                lambda leaf: leaf[0],
                {"data": self.data, "group": self.group, "total": self.total},
            )
        )


_PLACES: Any = Work._make([*[EVERYWHERE] * 5, *[SPLIT] * 3, EVERYWHERE])


class Program(NamedTuple):
    """What is fixed when a program is compiled.

    Attributes:
        problem: the two losses.
        reference: the phase.
        layout: which shard has which devices.
        loaded: whether data stand in the order of the group, and not of the block.

    Example:
        >>> Program._fields
        ('problem', 'reference', 'layout', 'loaded')
    """

    problem: BilevelProblem
    reference: PhaseReference
    layout: Layout
    loaded: bool


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


_compiled = partial(jax.jit, static_argnames="program", donate_argnames="private")


@_compiled
def collect(private: Private, work: Work, program: Program) -> Collected:
    """Add a group of chunks to every shard's mean. Nothing is communicated.

    Example:
        >>> collect.__name__
        'collect'
    """

    def on_a_shard(private: Private, work: Work) -> Collected:
        done = _group(private, work.of_a_shard(), program)
        total, counted = jax.tree.map(
            lambda leaf: leaf[None], (done.total, done.counted)
        )
        return Collected(done.private, total, counted)

    mapped = jax.shard_map(
        on_a_shard,
        mesh=program.layout.mesh,
        in_specs=(SPLIT, _PLACES),
        out_specs=SPLIT,
        check_vma=False,
    )
    collected: Collected = mapped(private, work)
    return collected


@_compiled
def exchange(private: Private, work: Work, program: Program) -> Exchanged:
    """Add the last group, and let the server have the mean over all shards.

    One program: an all-reduce dispatched on its own, while shards were still at work,
    could wait for ever for the threads they held.

    Example:
        >>> exchange.__name__
        'exchange'
    """

    def on_a_shard(private: Private, work: Work) -> Exchanged:
        done = _group(private, work.of_a_shard(), program)
        mean, counted = merge_across(done.total, done.counted, AXIS)
        phase = program.reference.of(work.algorithm, program.problem)
        server, dispersion = conclude(
            phase, work.server, mean, server_key(work.key, Moment(*work.moment))
        )
        return Exchanged(done.private, server, counted, mean.info, dispersion)

    mapped = jax.shard_map(
        on_a_shard,
        mesh=program.layout.mesh,
        in_specs=(SPLIT, _PLACES),
        out_specs=Exchanged._make([SPLIT, *[EVERYWHERE] * 4]),
        check_vma=False,
    )
    exchanged: Exchanged = mapped(private, work)
    return exchanged


@partial(jax.jit, static_argnames="program")
def measure(private: Private, work: Work, program: Program) -> Travel:
    """Return how far the uploads of a group go. Nothing else comes of the work.

    Example:
        >>> measure.__name__
        'measure'
    """

    def on_a_shard(private: Private, work: Work) -> Travel:
        own = work.of_a_shard()

        def chunk(number: Int[Array, ""]) -> Travel:
            return travel_of_chunk(
                *_of_chunk(private, own, program, number),
                problem=program.problem,
                reference=program.reference,
            )

        found = jax.lax.map(chunk, jnp.arange(len(own.group.rows), dtype=jnp.int32))
        together = jnp.concatenate(list(found.distances), axis=1), found.allowed.ravel()
        return Travel(
            jax.lax.all_gather(together[0], AXIS, axis=1, tiled=True),
            jax.lax.all_gather(together[1], AXIS, tiled=True),
        )

    mapped = jax.shard_map(
        on_a_shard,
        mesh=program.layout.mesh,
        in_specs=(SPLIT, _PLACES),
        out_specs=EVERYWHERE,
        check_vma=False,
    )
    found: Travel = mapped(private, work)
    return found


def _of_chunk(
    private: Private, work: Work, program: Program, number: Int[Array, ""] | int
) -> tuple[Any, ...]:
    """Return what the work of a chunk of one shard needs."""
    first = jax.lax.axis_index(AXIS) * program.layout.block
    rows, weights = (array[number] for array in work.group)
    in_order = jnp.arange(rows.size, dtype=jnp.int32)
    places = number * rows.size + in_order if program.loaded else rows

    def own(stored: StoredExamples) -> StoredExamples:
        return stored._replace(offset=stored.offset[places], size=stored.size[places])

    upper, lower = work.data
    return (
        work.algorithm,
        work.server,
        rows_of(private, rows),
        StoredData(own(upper), own(lower)),
        first + rows,
        weights,
        work.key,
        Moment(*work.moment),
        work.limits,
    )


def _group(private: Private, work: Work, program: Program) -> Collected:
    """Return one shard's mean over all its chunks so far."""
    chunks, _ = work.group.rows.shape
    # Inside a loop there is no communication.
    axis = AXIS if chunks == 1 and work.reach is None else None

    def chunk(number: Int[Array, ""] | int, private: Private) -> Collected:
        mean, kept, counted = work_of_chunk(
            *_of_chunk(private, work, program, number),
            reach=work.reach,
            problem=program.problem,
            reference=program.reference,
            axis=axis,
        )
        rows = work.group.rows[number]
        return Collected(with_rows(private, rows, counted, kept), mean, counted)

    def following(number: Int[Array, ""], so_far: Collected) -> Collected:
        done = chunk(number, so_far.private)
        return Collected(
            done.private,
            merge(so_far.total, done.total),
            so_far.counted.at[number].set(done.counted),
        )

    if chunks == 1:
        only = chunk(0, private)
        mean = only.total
        total = mean if work.total is None else merge(work.total, mean)
        return only._replace(total=total, counted=only.counted[None])
    shapes = jax.eval_shape(chunk, 0, private).total
    total = work.total or jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes
    )
    nobody = jnp.zeros(work.group.rows.shape, bool)
    # Each shard has as many chunks as it needs: there is no communication inside.
    needed = jnp.any(work.group.weights > 0, axis=1)
    done: Collected = jax.lax.fori_loop(
        0,
        jnp.max(jnp.where(needed, jnp.arange(1, chunks + 1, dtype=jnp.int32), 0)),
        following,
        Collected(private, total, nobody),
    )
    return done
