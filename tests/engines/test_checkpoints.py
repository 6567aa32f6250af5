"""Durable runs: the same bits after any interruption, and no use of damaged files."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from fedbilevel import (
    BilevelProblem,
    CheckpointError,
    Checkpoints,
    FedBiO,
    LocalBSGM,
    NeumannSeries,
    Sharded,
    Simulation,
    UniformSample,
    resume,
    run,
)
from tests import quadratic
from tests.engines import federation

ALGORITHM = FedBiO(0.1, 0.3, 0.5, 0.4, local_steps=2, private_lower=True)
ROUNDS = 9
SHARDED = Sharded(Mesh(np.array(jax.devices()[:2]), ("shards",)))


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


def numbers(done):
    """Return all that a run is, devices that a mesh adds left aside."""
    kept = jax.tree.map(lambda leaf: np.array(leaf)[:5], done.private)
    return jax.tree.map(np.asarray, (done.server, kept)), done.costs


def assert_same_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, one[0], other[0])
    assert one[1] == other[1]


@pytest.mark.parametrize("engine", [Simulation(chunk_size=2), SHARDED])
@pytest.mark.parametrize("stop", [1, 2, 5, 8])
def test_a_run_that_was_left_goes_on_to_the_same_bits(engine, stop, tmp_path):
    *_, expected = run(**arguments(engine=engine))
    whole = numbers(expected)
    checkpoints = Checkpoints(tmp_path, every=2, keep=2)
    for done in run(**arguments(engine=engine), checkpoints=checkpoints):
        if done.number + 1 == stop:
            break
    again = list(resume(**arguments(engine=engine), checkpoints=checkpoints))
    assert [done.number for done in again] == list(range(stop - stop % 2, ROUNDS))
    assert_same_bits(numbers(again[-1]), whole)
    # The run is over: there is nothing left to do.
    assert not list(resume(**arguments(engine=engine), checkpoints=checkpoints))


@pytest.mark.parametrize(
    ("first", "second"),
    [(Simulation(), SHARDED), (SHARDED, Simulation()), (SHARDED, Sharded())],
)
def test_another_engine_goes_on_with_the_same_numbers(first, second, tmp_path):
    *_, expected = run(**arguments())
    (server, private), costs = numbers(expected)
    checkpoints = Checkpoints(tmp_path, every=3)
    list(run(**arguments(engine=first, rounds=6), checkpoints=checkpoints))
    *_, last = resume(**arguments(engine=second), checkpoints=checkpoints)
    (other_server, other_private), other_costs = numbers(last)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-10),
        (server, private),
        (other_server, other_private),
    )
    assert costs == other_costs


def test_the_newest_and_the_best_are_kept_and_history_comes_back(tmp_path):
    seen = {1: 3.0, 3: 1.0, 5: 2.0, 7: 4.0, 8: 5.0}
    checkpoints = Checkpoints(
        tmp_path,
        every=2,
        keep=2,
        measure=lambda done: {"loss": seen[done.number]},
        best="loss",
    )
    *_, last = run(**arguments(), checkpoints=checkpoints)
    kept = sorted(int(path.name.split("_")[1]) for path in tmp_path.glob("round_*"))
    assert kept == [4, 8, 9]
    assert last.history == tuple(
        {"round": number, "loss": loss} for number, loss in seen.items()
    )
    longer = Checkpoints(tmp_path, every=2, keep=2)
    first = next(iter(resume(**arguments(rounds=12), checkpoints=longer)))
    assert first.number == 9
    assert first.history[: len(seen)] == last.history


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "seed was 0 and is 4"),
        ({"algorithm": replace(ALGORITHM, lower_rate=0.6)}, r"lower_rate was 0\.5 and"),
        (
            {"algorithm": LocalBSGM(0.1, NeumannSeries(2, 0.1))},
            "class was FedBiO and is LocalBSGM",
        ),
        ({"participation": UniformSample(3)}, "participation.devices was 4 and is 3"),
        ({"weights": np.ones(5)}, "weights"),
        ({"x": np.zeros(quadratic.X_SIZE)}, "x.array was float64 3"),
        ({"norm_limit": 10.0}, r"norm_limit was None and is 10\.0"),
        (
            {
                "problem": BilevelProblem(
                    quadratic.upper_loss,
                    lambda x, y, batch: quadratic.lower_loss(x, y, batch),
                )
            },
            "problem.lower_loss.function was lower_loss",
        ),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    changes, message, tmp_path
):
    checkpoints = Checkpoints(tmp_path, every=2)
    list(run(**arguments(rounds=2), checkpoints=checkpoints))
    with pytest.raises(CheckpointError, match=message):
        resume(**arguments(**changes), checkpoints=checkpoints)


def test_a_folder_in_use_is_refused(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=2)
    list(run(**arguments(rounds=2), checkpoints=checkpoints))
    with pytest.raises(CheckpointError, match="already has a checkpoint of 2 rounds"):
        run(**arguments(), checkpoints=checkpoints)


def test_without_a_checkpoint_the_run_begins(tmp_path):
    rounds = resume(**arguments(rounds=2), checkpoints=Checkpoints(tmp_path))
    assert [done.number for done in rounds] == [0, 1]


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory) -> tuple[Path, Any]:
    """Return a folder with checkpoints of 2 and 4 rounds, and the run's end."""
    folder = tmp_path_factory.mktemp("sound")
    with jax.enable_x64(True):
        list(run(**arguments(rounds=4), checkpoints=Checkpoints(folder, every=2)))
        *_, expected = run(**arguments(rounds=5))
        return folder, numbers(expected)


def damage(path: Path, generator: np.random.Generator, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "flipped":
        for place in generator.integers(len(content), size=generator.integers(1, 4)):
            content[place] ^= int(generator.integers(1, 256))
    else:
        del content[int(generator.integers(len(content))) :]
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("case", range(60))
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    case, two_checkpoints, tmp_path, caplog
):
    sound, expected = two_checkpoints
    folder = tmp_path / "run"
    shutil.copytree(sound, folder)
    generator = np.random.default_rng(case)
    files = sorted(path for path in (folder / "round_4").rglob("*") if path.is_file())
    files = [path for path in files if path.stat().st_size]
    victim = files[int(generator.integers(len(files)))]
    damage(victim, generator, "flipped" if case % 2 else "truncated")
    with caplog.at_level(logging.WARNING, "fedbilevel"):
        rounds = resume(**arguments(rounds=5), checkpoints=Checkpoints(folder, every=9))
        *_, last = rounds
    assert_same_bits(numbers(last), expected)
    part_of_the_state = victim.relative_to(folder / "round_4").parts[0] in (
        "state",
        "notes",
        "digests.json",
    )
    assert part_of_the_state == any("skipped" in one for one in caplog.messages)


def test_with_nothing_left_the_run_begins_again(two_checkpoints, tmp_path, caplog):
    folder = tmp_path / "run"
    shutil.copytree(two_checkpoints[0], folder)
    for digests in folder.glob("round_*/digests.json"):
        digests.unlink()
    first = next(
        iter(resume(**arguments(rounds=5), checkpoints=Checkpoints(folder, every=9)))
    )
    assert first.number == 0


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="every at least 1"):
        Checkpoints("runs", every=0)
    with pytest.raises(ValueError, match="without measure"):
        Checkpoints("runs", best="loss")
