"""The compiled programs of the sharded engine."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from fedbilevel.algorithms.protocol import Info, Phase, Private, Server
from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.chunk import (
    Chunk,
    GatheredUploads,
    Reach,
    Travel,
    gather_chunk,
    rows_of,
    travel_of_chunk,
    with_rows,
    work_of_chunk,
)
from fedbilevel.engines.inputs import Inputs, PhaseProgram
from fedbilevel.engines.limits import Limits
from fedbilevel.engines.mean import (
    WeightedMean,
    conclude,
    merge,
    merge_across,
    stacked_mean,
)
from fedbilevel.engines.protocol import server_key
from fedbilevel.engines.sharded.assignment import Group
from fedbilevel.engines.sharded.layout import AXIS, EVERYWHERE, SPLIT, Layout
from fedbilevel.mathematics import tree


class Work(NamedTuple):
    """A group of chunks of every shard, and the inputs of its devices.

    Attributes:
        inputs: inputs of the exchange that all devices share.
        limits: limits on uploads.
        data: examples of the devices, one entry for each shard.
        group: devices, one entry for each shard.
        total: mean of each shard over earlier groups; None before the first.
        reach: largest accepted distances; None without a limit, or if the group is the
            only chunk of every shard, so that the program computes them.
        largest_share: largest share of a participant.
    """

    inputs: Inputs
    limits: Limits
    data: StoredData
    group: Group
    total: WeightedMean | None
    reach: Reach | None
    largest_share: tree.Scalar

    def local(self) -> "Work":
        """Return the work of one shard, without the axis of shards."""
        return self._replace(
            **jax.tree.map(
                lambda leaf: leaf[0],
                {"data": self.data, "group": self.group, "total": self.total},
            )
        )


_SPECS: Any = Work._make([*[EVERYWHERE] * 2, *[SPLIT] * 3, *[EVERYWHERE] * 2])


class Program(NamedTuple):
    """The static arguments of a compiled program.

    Attributes:
        phase: the problem and the phase.
        layout: layout of the devices on the shards.
        loaded: True if data have the order of the group, False if that of the block.
    """

    phase: PhaseProgram
    layout: Layout
    loaded: bool


class GroupResult(NamedTuple):
    """The result of a group of chunks on a shard.

    Attributes:
        private: private states of its devices.
        total: mean of their uploads.
        counted: mask of the accepted uploads.
    """

    private: Private
    total: WeightedMean
    counted: Bool[Array, "chunks chunk"]


class ExchangeResult(NamedTuple):
    """The result of an exchange.

    Attributes:
        private: private states of the devices.
        server: next server state.
        counted: mask of the accepted uploads of the last group.
        info: mean of the values that devices reported.
        dispersion: weighted mean squared distance of uploads from their mean.
    """

    private: Private
    server: Server
    counted: Bool[Array, "shards chunks chunk"]
    info: Info
    dispersion: PyTree


_compiled = partial(jax.jit, static_argnames="program", donate_argnames="private")


@_compiled
def collect(private: Private, work: Work, program: Program) -> GroupResult:
    """Add a group of chunks to the mean of every shard, without communication."""

    def on_shard(private: Private, work: Work) -> GroupResult:
        result = _group(private, work.local(), program)
        total, counted = jax.tree.map(
            lambda leaf: leaf[None], (result.total, result.counted)
        )
        return GroupResult(result.private, total, counted)

    mapped = jax.shard_map(
        on_shard,
        mesh=program.layout.mesh,
        in_specs=(SPLIT, _SPECS),
        out_specs=SPLIT,
        check_vma=False,
    )
    result: GroupResult = mapped(private, work)
    return result


@_compiled
def exchange(private: Private, work: Work, program: Program) -> ExchangeResult:
    """Add the last group, and update the server with the mean over all shards.

    It is one program: a separate all-reduce that starts while shards compute could wait
    for their threads for ever.
    """

    def on_shard(private: Private, work: Work) -> ExchangeResult:
        inputs = work.inputs
        phase = program.phase.of(inputs.algorithm)
        if phase.aggregation.mean is None:
            result = _group(private, work.local(), program)
            mean, counted = merge_across(result.total, result.counted, AXIS)
            private = result.private
        else:
            private, mean, counted = _gather(private, work.local(), program, phase)
        key = server_key(inputs.key, inputs.moment)
        share = work.largest_share
        server, dispersion = conclude(phase, inputs.server, mean, key, share)
        return ExchangeResult(private, server, counted, mean.info, dispersion)

    mapped = jax.shard_map(
        on_shard,
        mesh=program.layout.mesh,
        in_specs=(SPLIT, _SPECS),
        out_specs=ExchangeResult._make([SPLIT, *[EVERYWHERE] * 4]),
        check_vma=False,
    )
    result: ExchangeResult = mapped(private, work)
    return result


@partial(jax.jit, static_argnames="program")
def measure(private: Private, work: Work, program: Program) -> Travel:
    """Return the distances of the uploads of a group; the uploads are discarded."""

    def on_shard(private: Private, work: Work) -> Travel:
        local = work.local()

        def chunk(number: Int[Array, ""]) -> Travel:
            part = _chunk(private, local, program, number)
            return travel_of_chunk(local.inputs, part, program.phase)

        chunks = jnp.arange(len(local.group.rows), dtype=jnp.int32)
        pieces = jax.lax.map(chunk, chunks)
        distances = jnp.concatenate(list(pieces.distances), axis=1)
        return Travel(
            jax.lax.all_gather(distances, AXIS, axis=1, tiled=True),
            jax.lax.all_gather(pieces.allowed.ravel(), AXIS, tiled=True),
        )

    mapped = jax.shard_map(
        on_shard,
        mesh=program.layout.mesh,
        in_specs=(SPLIT, _SPECS),
        out_specs=EVERYWHERE,
        check_vma=False,
    )
    travel: Travel = mapped(private, work)
    return travel


def _gather(
    private: Private, work: Work, program: Program, phase: Phase
) -> tuple[Private, WeightedMean, Bool[Array, "shards chunks chunk"]]:
    """Return private states, the robust mean of all shards, and their masks."""
    chunks, _ = work.group.rows.shape
    axis = AXIS if chunks == 1 and work.reach is None else None

    def chunk(number: Int[Array, ""] | int) -> GatheredUploads:
        part = _chunk(private, work, program, number)
        return gather_chunk(work.inputs, part, program.phase, work.reach, axis)

    if chunks == 1:
        uploads = jax.tree.map(lambda leaf: leaf[None], chunk(0))
    else:
        uploads = jax.lax.map(chunk, jnp.arange(chunks, dtype=jnp.int32))
    for number in range(chunks):
        states, counted = jax.tree.map(
            lambda leaf, row=number: leaf[row], (uploads.private, uploads.counted)
        )
        private = with_rows(private, work.group.rows[number], counted, states)
    stacked = jax.tree.map(
        lambda leaf: leaf.reshape(-1, *leaf.shape[2:]),
        (uploads.received, uploads.infos, uploads.shares),
    )
    received, infos, shares = jax.lax.all_gather(stacked, AXIS, tiled=True)
    downlink = phase.broadcast(work.inputs.server)
    mean = stacked_mean(received, infos, shares, None, phase.aggregation, downlink)
    return private, mean, jax.lax.all_gather(uploads.counted, AXIS)


def _chunk(
    private: Private, work: Work, program: Program, number: Int[Array, ""] | int
) -> Chunk:
    """Return a chunk of one shard."""
    first = jax.lax.axis_index(AXIS) * program.layout.block
    rows, weights = (array[number] for array in work.group)
    in_order = jnp.arange(rows.size, dtype=jnp.int32)
    index = number * rows.size + in_order if program.loaded else rows

    def select(stored: StoredExamples) -> StoredExamples:
        chosen: StoredExamples = jax.tree.map(
            lambda entries: entries[index], stored._replace(arrays=())
        )
        return chosen._replace(arrays=stored.arrays)

    upper, lower = work.data
    data = StoredData(select(upper), select(lower))
    return Chunk(rows_of(private, rows), data, first + rows, weights, work.limits)


def _group(private: Private, work: Work, program: Program) -> GroupResult:
    """Return the mean of one shard over all its chunks so far."""
    chunks, _ = work.group.rows.shape
    # A loop over chunks must not communicate.
    axis = AXIS if chunks == 1 and work.reach is None else None

    def chunk(number: Int[Array, ""] | int, private: Private) -> GroupResult:
        mean, states, counted = work_of_chunk(
            work.inputs,
            _chunk(private, work, program, number),
            program.phase,
            work.reach,
            axis,
        )
        rows = work.group.rows[number]
        return GroupResult(with_rows(private, rows, counted, states), mean, counted)

    def body(number: Int[Array, ""], carry: GroupResult) -> GroupResult:
        result = chunk(number, carry.private)
        return GroupResult(
            result.private,
            merge(carry.total, result.total),
            carry.counted.at[number].set(result.counted),
        )

    if chunks == 1:
        result = chunk(0, private)
        mean = result.total
        total = mean if work.total is None else merge(work.total, mean)
        return result._replace(total=total, counted=result.counted[None])
    shapes = jax.eval_shape(chunk, 0, private).total
    total = work.total or jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes
    )
    none = jnp.zeros(work.group.rows.shape, bool)
    # Numbers of chunks may differ between shards, as the loop does not communicate.
    needed = jnp.any(work.group.weights > 0, axis=1)
    looped: GroupResult = jax.lax.fori_loop(
        0,
        jnp.max(jnp.where(needed, jnp.arange(1, chunks + 1, dtype=jnp.int32), 0)),
        body,
        GroupResult(private, total, none),
    )
    return looped
