"""Comparisons with failed seeds: the table, the JSON, the curves, the exit code."""

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from math import inf, nan
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pytest

from fedbilevel import Costs, FedBiO, SimFBO
from fedbilevel.__main__ import main
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.failures import Failure, write_failure
from fedbilevel.experiments.run_directory.runs import keep
from fedbilevel.experiments.schema import Data, Experiment
from fedbilevel.tracking.records import Journal, Record
from tests.commands.seeds import FAILING, SEEDS, written

pytestmark = pytest.mark.slow

ROUNDS = (0, 5, 10)


def run_in(
    directory: Path,
    losses: list[float],
    seed: int = 0,
    failure: Failure | None = None,
    algorithm: FedBiO | SimFBO = FedBiO(0.1),
) -> str:
    """Write the files of a run directory; return the directory."""
    keep(Experiment(algorithm, rounds=ROUNDS[-1], seed=seed), directory)
    with Journal(directory, first=0) as journal:
        for rounds, loss in zip(ROUNDS, losses, strict=False):
            costs = Costs(upper_samples=rounds, exchanges=2 * rounds, bytes_up=rounds)
            metrics = {"loss": loss, "accuracy": 0.5}
            journal.write(Record(rounds, float(rounds), costs, metrics))
    if failure is not None:
        write_failure(directory, failure)
    return str(directory)


class Answer(NamedTuple):
    """Output, curves and exit code of a comparison."""

    code: int
    out: str
    err: str
    drawn: str


def compare(directory: Path, *arguments: str) -> Answer:
    out, err, picture = io.StringIO(), io.StringIO(), directory / "out.svg"
    # Text of the picture as text, not as outlines; one panel is drawn sooner than 4.
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        matplotlib.rc_context({"svg.fonttype": "none"}),
    ):
        options = [*arguments, "--against", "rounds", "--out", str(picture)]
        code = main(["compare", *options])
    drawn = picture.read_text() if picture.exists() else ""
    return Answer(code, out.getvalue(), err.getvalue(), drawn)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Five runs, two of which failed: one ended by an error, one with loss inf."""
    runs = tmp_path_factory.mktemp("runs")
    return [
        run_in(runs / "a", [1.0, 0.7, 0.31]),
        run_in(runs / "a-seed-1", [1.0, 0.8, 0.42], seed=1),
        run_in(runs / "a-seed-2", [1.0, 9e9], 2, Failure(5, "no uploads")),
        run_in(runs / "a-seed-3", [1.0, 0.5, inf], seed=3),
        run_in(runs / "a-seed-4", [1.0, 0.9, 0.56], seed=4),
    ]


@pytest.fixture(scope="module")
def answer(seeds: list[str], tmp_path_factory: pytest.TempPathFactory) -> Answer:
    return compare(tmp_path_factory.mktemp("answer"), *seeds)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_failed_seeds_are_counted_and_named_in_the_table(answer):
    assert answer.code == 0
    header, row, note, _ = answer.out.splitlines()
    content = dict(zip(cells(header), cells(row), strict=True))
    assert content["seeds"] == "5"
    assert content["failed"] == "2 (seeds 2, 3)"
    values = np.array([0.31, 0.42, 0.56])
    deviation = np.sqrt(((values - values.mean()) ** 2).sum() / 2)
    assert content["validation loss"] == f"{values.mean():.4g} ± {deviation:.1g}"
    assert content["rounds"] == "10"
    assert "sample standard deviation over seeds" in note
    assert "Failed seeds are excluded" in note


def test_failed_seeds_are_named_on_stderr_with_the_reason(seeds, answer):
    first, second = answer.err.splitlines()
    assert first.startswith(f"The run in {seeds[2]} (seed 2) failed")
    assert first.endswith("after 5 rounds: no uploads")
    assert second.startswith(f"The run in {seeds[3]} (seed 3) failed")
    assert second.endswith("the validation loss is inf after 10 rounds")


def test_failed_seeds_are_in_the_json(seeds, tmp_path):
    printed = compare(tmp_path, *seeds, "--json")
    assert printed.code == 0
    (content,) = json.loads(printed.out).values()
    assert [one["seed"] for one in content] == [0, 1, 2, 3, 4]
    assert [one["failure"] is None for one in content] == [1, 1, 0, 0, 1]
    assert content[2]["failure"] == {"rounds": 5, "reason": "no uploads"}
    assert "metrics" not in content[2]
    assert [content[n]["metrics"]["loss"] for n in (0, 1, 4)] == [0.31, 0.42, 0.56]
    assert content[2]["directory"] == seeds[2]


def test_the_curves_count_failed_seeds_and_explain_the_band(answer):
    assert "2 of 5 seeds failed" in answer.drawn
    assert "band: minimum to maximum over seeds" in answer.drawn


def test_all_seeds_of_one_algorithm_may_fail(seeds, tmp_path):
    rival = SimFBO(0.1)
    others = [
        run_in(tmp_path / "runs/b", [1.0, nan, nan], 0, None, rival),
        # It failed before its first record.
        run_in(tmp_path / "runs/b-1", [], 1, Failure(0, "no uploads"), rival),
    ]
    printed = compare(tmp_path, seeds[0], *others)
    assert printed.code == 0
    _, first, second, _, _ = printed.out.splitlines()
    assert cells(first)[1:3] == ["1", "0"]
    assert cells(second)[:3] == ["b (SimFBO)", "2", "2 (seeds 0, 1)"]
    assert set(cells(second)[3:]) == {"–"}


def test_a_comparison_of_failed_runs_alone_is_made(tmp_path):
    run = run_in(tmp_path / "runs/b", [], 1, Failure(0, "no uploads"))
    printed = compare(tmp_path, run)
    assert printed.code == 0
    assert "1 of 1 seed failed" in printed.drawn


def test_a_comparison_without_failures_has_no_column_for_them(seeds, tmp_path):
    # The same directory may be given twice.
    printed = compare(tmp_path, seeds[0], seeds[1], seeds[0])
    assert printed.code == 0
    header, row, note, _ = printed.out.splitlines()
    assert cells(header)[:3] == ["run", "seeds", "rounds"]
    assert cells(row)[1] == "2"
    assert note == "±: sample standard deviation over seeds."
    assert printed.err == ""


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--against", "byte"], ["'byte' is not a cost", "did you mean bytes?"]),
        (["--metric", "loss", "--metric", "los"], ["--metric 'los'", "accuracy"]),
        (["--jobs", "0"], ["--jobs", "at least 1"]),
    ],
)
def test_a_choice_that_is_not_there_is_answered(seeds, capsys, options, parts):
    # argparse raises SystemExit; `main` returns a code for other errors.
    with suppress(SystemExit):
        assert main(["compare", seeds[0], *options]) == 2
    output = capsys.readouterr().err
    assert all(part in output for part in parts)


def test_a_setting_by_which_tasks_differ_is_named_with_both_values(tmp_path):
    for name, size in (("a", 60), ("b", 80)):
        run_in(tmp_path / name, [1.0, 0.7, 0.3])
        experiment = Experiment(FedBiO(0.1), rounds=10, data=Data(train_size=size))
        write_experiment(experiment, tmp_path / name / "experiment.toml")
    printed = compare(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    assert printed.err == (
        "The losses of a (FedBiO) and b (FedBiO) cannot be compared, because the tasks "
        "differ (first → second): data.train_size 60 → 80. Run both with the same "
        "values.\n"
    )


def test_the_run_of_a_search_has_the_name_of_its_search(tmp_path):
    run = run_in(tmp_path / "runs" / "first-tuned" / "best", [1.0, 0.7, 0.3])
    printed = compare(tmp_path, run)
    assert cells(printed.out.splitlines()[1])[0] == "first-tuned/best (FedBiO)"


def test_the_baseline_without_tuning_is_a_row_where_every_seed_has_one(tmp_path):
    directories = [
        run_in(tmp_path / f"a{n}", [1.0, 0.7, 0.3], seed=n) for n in range(2)
    ]
    losses = [0.6, 0.8]
    for directory, loss in zip(directories, losses, strict=True):
        record = Record(ROUNDS[-1], 0.3, Costs(exchanges=20), {"loss": loss})
        (Path(directory) / "baseline.json").write_text(record.line)
    header, tuned, untuned, *_ = compare(tmp_path, *directories).out.splitlines()
    at = cells(header).index("validation loss")
    assert cells(tuned)[at].startswith("0.3 ±")
    assert cells(untuned)[0] == "without tuning"
    assert cells(untuned)[at] == "0.7 ± 0.1"
    assert cells(untuned)[cells(header).index("time")] == "0.3 s"
    (content,) = json.loads(compare(tmp_path, *directories, "--json").out).values()
    assert [one["baseline"]["metrics"]["loss"] for one in content] == losses
    (Path(directories[0]) / "baseline.json").unlink()
    assert "without tuning" not in compare(tmp_path, *directories).out


def test_a_run_that_was_never_finite_is_a_failed_seed(tmp_path):
    directories = [
        run_in(tmp_path / "a", [1.0, 0.7, 0.31]),
        run_in(tmp_path / "a-seed-1", [inf, inf, inf], seed=1),
        run_in(tmp_path / "a-seed-2", [1.0, 0.8, 0.42], seed=2),
    ]
    answer = compare(tmp_path, *directories)
    assert answer.code == 0
    assert "1 (seed 1)" in answer.out


def test_a_run_counts_once_whatever_it_is_called(tmp_path):
    directory = run_in(tmp_path / "a", [1.0, 0.7, 0.31])
    (tmp_path / "link").symlink_to(directory)
    answer = compare(tmp_path, directory, str(tmp_path / "link"), f"{tmp_path}/./a")
    header, row, *_ = answer.out.splitlines()
    assert dict(zip(cells(header), cells(row), strict=True))["seeds"] == "1"
    copy = shutil.copytree(directory, tmp_path / "copy")
    warned = compare(tmp_path, directory, str(copy)).err
    assert "several runs with seed 0, which bias its mean" in warned


@pytest.mark.parametrize("damage", [b"[1,2]\n", b"\xff\xfe\n", b"3\n", b'{"rounds": 1'])
def test_damaged_lines_of_a_run_are_ignored(tmp_path, damage):
    directory = run_in(tmp_path / "a", [1.0, 0.7, 0.31])
    with (tmp_path / "a" / "metrics.jsonl").open("ab") as file:
        file.write(damage)
    assert "0.31" in compare(tmp_path, directory).out


def test_seeds_without_a_common_round_are_named(tmp_path):
    directories = [
        run_in(tmp_path / f"a-{n}", [1.0, 0.7, 0.3], seed=n) for n in range(2)
    ]
    file = tmp_path / "a-1" / "metrics.jsonl"
    file.write_text(file.read_text().replace('"rounds": ', '"rounds": 2'))
    answer = compare(tmp_path, *directories)
    assert answer.code == 0
    assert "were never evaluated at the same round" in answer.err


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.single_precision
def test_a_seed_that_diverges_does_not_end_the_comparison(tmp_path):
    file = written(tmp_path)
    options = [str(file), "--seeds", str(len(SEEDS)), "--jobs", "1", "--json"]
    printed = compare(tmp_path, *options)
    assert printed.code == 0
    (content,) = json.loads(printed.out).values()
    assert [one["seed"] for one in content if one["failure"]] == [FAILING]
    failure = content[SEEDS.index(FAILING)]["failure"]
    assert "not finite" in failure["reason"]
    assert all(one["rounds"] == 3 for one in content if not one["failure"])
    # A failed run is stored: no run is repeated.
    again = compare(tmp_path, *options)
    assert "running" not in again.err
    assert again.out == printed.out
    # With --force the failed run is repeated, and the finished ones stay.
    forced = compare(tmp_path, *options, "--force")
    assert forced.err.splitlines()[:2] == [
        f"Running {file} with seed {FAILING}",
        f"Replacing the run in {tmp_path / 'runs' / f'seeds-seed-{FAILING}'}",
    ]
    assert forced.out == printed.out
    # Missing runs in parallel have the same values.
    for seed in SEEDS[1:]:
        shutil.rmtree(tmp_path / "runs" / f"seeds-seed-{seed}")
    parallel = compare(tmp_path, *options[:3], "--jobs", "2", "--json")
    assert parallel.code == 0
    (those,) = json.loads(parallel.out).values()
    assert those[SEEDS.index(FAILING)]["failure"] == failure
    for one, other in zip(content, those, strict=True):
        assert one.get("metrics") == other.get("metrics")
    # An edited file cannot use the directories of its earlier runs.
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 5"))
    refused = compare(tmp_path, *options)
    assert refused.code == 2
    assert f"differs from {file} (run → file): rounds 3 → 5" in refused.err
    assert "--force" in refused.err
