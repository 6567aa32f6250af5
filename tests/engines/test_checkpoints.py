"""Durable runs: the same bits after any interruption; damaged files are never used."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedbilevel import (
    BilevelProblem,
    CheckpointError,
    Checkpoints,
    FedBiO,
    Limits,
    LocalBSGM,
    NeumannSeries,
    Run,
    Sharded,
    Simulation,
    UniformSample,
    run,
)
from fedbilevel.engines.checkpoints.arrays import read_arrays, write_parts
from fedbilevel.engines.checkpoints.options import Progress
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.protocol import RunState
from tests import quadratic
from tests.algorithms.table import at_night
from tests.engines import federation

ALGORITHM = FedBiO(0.1, 0.3, 0.5, 0.4, local_steps=2, private_lower=True)
ROUNDS = 9
SHAPES = (1, ()), (0, (0, 2)), (24, (4, 3, 2))
MESH = Mesh(np.array(jax.devices()[:2]), ("shards",))
SHARDED = Sharded(MESH)


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "problem": quadratic.problem(),
        "algorithm": ALGORITHM,
        "devices": federation.in_memory(),
        "x": federation.START[0],
        "y": federation.START[1],
        "weights": federation.WEIGHTS,
        "participation": UniformSample(4),
        "rounds": ROUNDS,
        **changes,
    }


def numbers(result):
    """Return the state of a run without the padding of a mesh."""
    private = jax.tree.map(lambda leaf: np.array(leaf)[:5], result.private)
    return jax.tree.map(np.asarray, (result.server, private)), result.costs


def assert_same_bits(actual, other):
    jax.tree.map(np.testing.assert_array_equal, actual[0], other[0])
    assert actual[1] == other[1]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [Simulation(chunk_size=2), SHARDED])
@pytest.mark.parametrize("stop", [1, 5, *at_night(2, 8)])
def test_a_run_that_was_left_goes_on_to_the_same_bits(engine, stop, tmp_path):
    *_, expected = run(**arguments(engine=engine))
    whole = numbers(expected)
    checkpoints = Checkpoints(tmp_path, every=2, keep=2)
    for result in run(**arguments(engine=engine), checkpoints=checkpoints):
        if result.number + 1 == stop:
            break
    again = list(Run(**arguments(engine=engine)).resume(checkpoints))
    # The last round before the iterator was closed has a checkpoint too.
    assert [result.number for result in again] == list(range(stop, ROUNDS))
    assert_same_bits(numbers(again[-1]), whole)
    # The run is complete: its last round is yielded again.
    (end,) = Run(**arguments(engine=engine)).resume(checkpoints)
    assert end.number == ROUNDS - 1
    assert_same_bits(numbers(end), whole)


@pytest.mark.slow
def test_a_run_whose_engine_fails_resumes_from_its_last_whole_round(
    tmp_path, monkeypatch
):
    *_, expected = run(**arguments())
    exchange = Simulation.exchange

    def fail_in_round_7(engine, job, reference, moment, *state):
        if moment.round_number == 7:
            raise RuntimeError("the job was aborted")
        return exchange(engine, job, reference, moment, *state)

    checkpoints = Checkpoints(tmp_path, every=10)
    with monkeypatch.context() as broken:
        broken.setattr(Simulation, "exchange", fail_in_round_7)
        with pytest.raises(RuntimeError, match="the job was aborted"):
            list(run(**arguments(), checkpoints=checkpoints))
    assert saved_rounds(tmp_path) == [7]
    *_, again = Run(**arguments()).resume(checkpoints)
    assert_same_bits(numbers(again), numbers(expected))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "as_wide"),
    [
        (jnp.float32, jnp.int32),
        (jnp.float64, jnp.int64),
        (jnp.bfloat16, jnp.float16),
        (jnp.float8_e5m2, jnp.float8_e4m3fn),
    ],
)
def test_arrays_of_any_shape_type_and_place_come_back_as_they_were(
    dtype, as_wide, tmp_path
):
    whole = [jnp.arange(size).astype(dtype).reshape(shape) for size, shape in SHAPES]
    cut = jax.device_put(
        jnp.arange(8).astype(dtype).reshape(2, 4),
        NamedSharding(MESH, PartitionSpec(None, "shards")),
    )
    state = RunState([*whole, cut], jnp.ones((3, 2), dtype))
    store = Store(Checkpoints(tmp_path, every=1), {})
    store.save(Progress(1, state, Costs(), ()))
    store.close()
    actual = store.newest(state)
    assert actual is not None
    assert {item.dtype for item in jax.tree.leaves(actual.state)} == {jnp.dtype(dtype)}
    jax.tree.map(np.testing.assert_array_equal, actual.state, state)
    other = jax.tree.map(lambda leaf: leaf.astype(as_wide), state)
    with pytest.raises(CheckpointError, match="other shapes or dtypes"):
        store.newest(other)


def test_a_part_that_is_missing_is_missed(tmp_path):
    parts = {f"{n}.{row}.float64": np.zeros(2) for n in (0, 1) for row in (0, 2, 4)}
    for missing in ("0.0", "0.2"):
        write_parts(tmp_path, {n: a for n, a in parts.items() if missing not in n})
        with pytest.raises(ValueError, match="rows of an array are missing"):
            read_arrays(tmp_path)
    write_parts(tmp_path, {n: a for n, a in parts.items() if n[0] == "1"})
    with pytest.raises(ValueError, match="an array is missing"):
        read_arrays(tmp_path)


@pytest.mark.process
def test_a_state_that_does_not_fit_ends_in_a_sentence(tmp_path):
    # In a separate process, because Orbax's threads write to stderr.
    code = """
import resource, sys
import jax.numpy as jnp
from fedbilevel import CheckpointError, Checkpoints
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.checkpoints.options import Progress
from fedbilevel.engines.protocol import RunState

store = Store(Checkpoints(sys.argv[1], every=1), {})
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    store.save(Progress(1, RunState(jnp.zeros(50_000), ()), Costs(), ()))
    store.close()
except CheckpointError as error:
    print(error)
"""
    output = subprocess.check_output(
        [sys.executable, "-c", code, tmp_path], text=True, stderr=subprocess.DEVNULL
    )
    assert output.startswith(
        f"A checkpoint could not be written to {tmp_path}: File too"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second"),
    [(Simulation(), SHARDED), (SHARDED, Simulation()), (SHARDED, Sharded())],
)
def test_another_engine_goes_on_with_the_same_numbers(first, second, tmp_path):
    *_, expected = run(**arguments())
    (server, private), costs = numbers(expected)
    checkpoints = Checkpoints(tmp_path, every=3)
    list(run(**arguments(engine=first, rounds=6), checkpoints=checkpoints))
    *_, last = Run(**arguments(engine=second)).resume(checkpoints)
    (other_server, other_private), other_costs = numbers(last)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10),
        (server, private),
        (other_server, other_private),
    )
    assert costs == other_costs


@pytest.mark.slow
def test_the_newest_and_the_best_are_kept_and_history_comes_back(tmp_path):
    seen = {1: 3.0, 3: 1.0, 5: 2.0, 7: 4.0, 8: 5.0}
    checkpoints = Checkpoints(
        tmp_path,
        every=2,
        keep=2,
        measure=lambda result: {"loss": seen[result.number]},
        best="loss",
    )
    *_, last = run(**arguments(), checkpoints=checkpoints)
    assert saved_rounds(tmp_path) == [4, 8, 9]
    assert last.history == tuple(
        {"round": number, "loss": loss} for number, loss in seen.items()
    )
    longer = Checkpoints(tmp_path, every=2, keep=2)
    first = next(iter(Run(**arguments(rounds=12)).resume(longer)))
    assert first.number == 9
    assert first.history[: len(seen)] == last.history


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "seed was 0 and is 4"),
        ({"algorithm": replace(ALGORITHM, lower_rate=0.6)}, r"lower_rate was 0\.5 and"),
        (
            {"algorithm": LocalBSGM(0.1, NeumannSeries(2, 0.1))},
            "algorithm was FedBiO and is LocalBSGM",
        ),
        ({"participation": UniformSample(3)}, "participation.devices was 4 and is 3"),
        ({"weights": np.ones(5)}, "weights"),
        ({"x": np.zeros(quadratic.X_SIZE)}, "x has other values"),
        ({"limits": Limits(norm=10.0)}, r"norm_limit was None and is 10\.0"),
        (
            {
                "problem": BilevelProblem(
                    quadratic.upper_loss,
                    lambda x, y, batch: quadratic.lower_loss(x, y, batch),
                )
            },
            "problem.lower_loss was lower_loss and is ",
        ),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    changes, message, tmp_path
):
    checkpoints = Checkpoints(tmp_path, every=2)
    list(run(**arguments(rounds=2), checkpoints=checkpoints))
    with pytest.raises(CheckpointError, match=message):
        Run(**arguments(**changes)).resume(checkpoints)


@pytest.mark.slow
def test_a_folder_in_use_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2)
    list(run(**arguments(rounds=2), checkpoints=checkpoints))
    with pytest.raises(CheckpointError, match="already has a checkpoint of 2 rounds"):
        run(**arguments(), checkpoints=checkpoints)


@pytest.mark.slow
def test_without_a_checkpoint_the_run_begins(tmp_path):
    rounds = Run(**arguments(rounds=2)).resume(Checkpoints(tmp_path))
    assert [result.number for result in rounds] == [0, 1]


def saved_rounds(directory: Path) -> list[int]:
    return sorted(int(path.name.split("_")[1]) for path in directory.glob("round_*"))


@pytest.mark.slow
def test_the_best_of_all_is_kept_however_often_a_run_is_resumed(tmp_path):
    seen = {1: 1.0, 3: np.nan, 5: 3.0, 7: 4.0, 8: 5.0}
    checkpoints = Checkpoints(
        tmp_path,
        every=2,
        keep=1,
        measure=lambda result: {"loss": seen[result.number]},
        best="loss",
    )
    for rounds, expected in [(2, [2]), (4, [2, 4]), (6, [2, 6]), (9, [2, 9])]:
        *_, last = Run(**arguments(rounds=rounds)).resume(checkpoints)
        assert saved_rounds(tmp_path) == expected
    *_, second, _ = run(**arguments(rounds=3))
    best = Run(**arguments()).best_round(checkpoints)
    assert best.number == 1
    np.testing.assert_array_equal(best.x, second.x)
    assert len(last.history) == len(seen)


def test_fewer_rounds_than_were_done_are_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2)
    list(run(**arguments(rounds=4), checkpoints=checkpoints))
    with pytest.raises(ValueError, match=r"rounds is 3, but .* of 4 rounds"):
        Run(**arguments(rounds=3)).resume(checkpoints)


def test_without_a_number_to_choose_by_there_is_no_best(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2)
    list(run(**arguments(rounds=2), checkpoints=checkpoints))
    with pytest.raises(CheckpointError, match="no checkpoint with a metric"):
        Run(**arguments()).best_round(checkpoints)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (1.0, "Return a dictionary of numbers"),
        ({"loss": np.ones(2)}, "Return a dictionary of numbers"),
        ({"round": 1.0}, "Rename the metric"),
        ({"other": 1.0}, "measure returned only other"),
    ],
)
def test_a_measure_that_is_no_number_is_refused(measured, message, tmp_path):
    checkpoints = Checkpoints(tmp_path, measure=lambda result: measured, best="loss")
    with pytest.raises((TypeError, ValueError), match=message):
        list(run(**arguments(rounds=1), checkpoints=checkpoints))


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="every of Checkpoints is 0"):
        Checkpoints("runs", every=0)
    with pytest.raises(ValueError, match="but measure is missing"):
        Checkpoints("runs", best="loss")
