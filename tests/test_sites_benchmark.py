"""Tests of the benchmark of sites: tasks, choices, contenders and tables."""

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.sites import measure, relabelling, selection
from benchmarks.sites.averages import fedavg, fltrust, oracle, trusted_sites
from benchmarks.sites.contenders import BILEVEL, CONTENDERS, QUICK, SIMPLE
from benchmarks.sites.tasks import FAST_CASE, full_cases, make_task
from benchmarks.sites.training import (
    STEPS,
    example_weights,
    fit,
    rows_of,
    sizes_of,
    train,
    trusted_of,
)
from benchmarks.sites.trusted import PENALTIES, fine_tune, trusted_model, tune
from fedbilevel.datasets import LabelledData

pytestmark = [pytest.mark.single_precision]


@cache
def fast_task():
    return make_task(FAST_CASE, seed=0)


def test_a_perfect_score_has_an_auc_of_one():
    bad = np.array([True, False, True, False])
    assert measure.auc([2.0, 1.0, 3.0, 0.0], bad) == 1.0
    assert measure.auc([-2.0, -1.0, -3.0, 0.0], bad) == 0.0
    assert measure.auc([1.0] * 4, bad) == 0.5
    assert measure.auc([1.0] * 4, np.zeros(4, bool)) is None


@pytest.mark.parametrize("split", ["alike", "skewed", "dirichlet"])
def test_sites_trusted_and_test_examples_are_disjoint(split):
    # Distinct features of the digits tell the examples apart.
    case = FAST_CASE._replace(split=split, sites=6, rows=40)
    task = make_task(case, seed=3)
    parts = [*task.sites, *task.trusted]
    rows = np.concatenate([part.features for part in parts])
    assert len(np.unique(rows, axis=0)) == len(rows)
    known = {row.tobytes() for row in rows}
    assert not known & {row.tobytes() for row in task.test.features}


def test_only_bad_sites_have_wrong_labels():
    task = fast_task()
    clean = make_task(FAST_CASE._replace(bad=0), seed=0)
    for site, right, bad in zip(task.sites, clean.sites, task.bad, strict=True):
        np.testing.assert_array_equal(site.features, right.features)
        wrong = site.labels != right.labels
        assert (wrong.mean() > 0.3) == bad
        changed = (site.labels - right.labels)[wrong] % task.classes
        assert set(changed.tolist()) <= {1}


@pytest.mark.parametrize(("place", "parts"), [("server", 1), ("one", 1), ("three", 3)])
def test_trusted_examples_are_at_good_sites_or_at_the_server(place, parts):
    task = make_task(FAST_CASE._replace(place=place), seed=1)
    assert [len(part.labels) for part in task.trusted] == [60 // parts] * parts
    assert len(task.holders) == (0 if place == "server" else parts)
    assert not task.bad[list(task.holders)].any()


def test_full_cases_have_different_names():
    names = [case.name for case in full_cases()]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_training_reaches_the_minimum():
    task = fast_task()
    weights = sizes_of(task)[None]
    y, more = (train(task, weights, steps=n)[0] for n in (STEPS, 10 * STEPS))
    rows = rows_of(task)
    each = example_weights(task, weights)

    def value(y):
        logs = rows.features @ y.reshape(task.classes, -1).T
        logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
        return float(-np.sum(each[0] @ (rows.targets * logs)) + 1e-3 * np.sum(y**2))

    assert value(np.asarray(y)) == pytest.approx(value(np.asarray(more)), abs=1e-2)


@pytest.mark.slow
def test_a_right_model_is_kept_and_a_wrong_one_is_left():
    task = fast_task()
    everything = LabelledData(*task.test)
    rows = rows_of(task)._replace(
        features=jnp.asarray(everything.features),
        targets=jnp.asarray(np.eye(task.classes, dtype=np.float32)[everything.labels]),
    )
    count = len(everything.labels)
    equal = jnp.full((1, count), 1 / count, jnp.float32)
    right = fit(task, rows, equal, penalty=1e-4)[0]
    kept, left = fine_tune(task, right), fine_tune(task, -right)
    assert kept.penalty > 10 * left.penalty
    assert kept.loss < left.loss


def test_cross_validation_takes_the_penalty_with_the_smallest_loss():
    task = fast_task()
    choice = tune(task)
    assert choice.penalty < PENALTIES[-1]
    assert choice.loss < np.log(task.classes)
    # The last model has all trusted examples, the others lack a fold each.
    assert len(choice.y) == 6
    labels = trusted_of(task).labels
    scores = trusted_of(task).features @ choice.y[-1].reshape(task.classes, -1).T
    assert np.mean(np.asarray(scores).argmax(axis=1) == labels) > 0.9


@pytest.mark.slow
def test_the_oracle_exceeds_fedavg():
    task = fast_task()
    best, usual = oracle(task, 0), fedavg(task, 0)
    assert best.accuracy > usual.accuracy + 0.02
    assert best.log_loss < usual.log_loss


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(set(CONTENDERS) - set(QUICK)))
def test_every_contender_is_deterministic(name):
    check_determinism(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_quick_contender_is_deterministic(name):
    check_determinism(name)


def check_determinism(name):
    first = CONTENDERS[name](fast_task(), 0)
    for function in (selection.own_models, selection.trust_losses, trusted_model):
        function.cache_clear()
    second = CONTENDERS[name](make_task(FAST_CASE, seed=0), 0)
    assert first == second
    if first is not None and first.scores is not None:
        assert len(first.scores) == len(fast_task().sites)
        assert np.isfinite(first.scores).all()


def test_contenders_of_trusted_sites_need_such_sites():
    assert trusted_sites(fast_task(), 0) is None
    task = make_task(FAST_CASE._replace(place="three"), seed=0)
    result = trusted_sites(task, 0)
    assert result is not None
    assert result.tuned_exchanges == result.exchanges + STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    "contender",
    [selection.best_by_trusted_model, relabelling.plain_posterior, fltrust],
)
def test_strong_contenders_find_the_bad_sites(contender):
    task = fast_task()
    result = contender(task, 0)
    assert measure.auc(result.scores, task.bad) == 1.0
    assert result.tuned_accuracy > fedavg(task, 0).tuned_accuracy


@pytest.mark.slow
def test_a_label_map_reads_the_next_class_as_the_class_before():
    task = make_task(FAST_CASE._replace(trusted=300, bad=2), seed=0)
    joint, _, _ = relabelling._estimate(task, trusted_model(task).y, prior=1.0)
    by_class = np.asarray(joint[-1] / joint[-1].sum(axis=2, keepdims=True))
    following = np.roll(np.eye(task.classes), 1, axis=1)
    shares = (by_class * following).sum(axis=2).mean(axis=1)
    assert (shares[task.bad] > 0.4).all()
    assert (shares[~task.bad] < 0.15).all()


def make_cell(accuracy):
    result = {
        "accuracy": accuracy,
        "log_loss": 1.0,
        "tuned_accuracy": None,
        "tuned_log_loss": None,
        "exchanges": 100,
        "scores": None,
        "seconds": 1.0,
    }
    tuned = {
        **result,
        "tuned_accuracy": accuracy + 0.1,
        "tuned_log_loss": 0.5,
        "tuned_exchanges": 200,
        "scores": [1.0, 0.0],
    }
    results = {"a": result, "b": tuned, "missing": None}
    return {"bad": [True, False], "results": results}


def test_tables_have_rows_with_and_without_fine_tuning(tmp_path):
    cells = [make_cell(0.5), make_cell(0.7)]
    rows = measure.rows_of_cells(cells)
    assert list(rows) == ["a", "b", "b, fine-tuned"]
    assert measure.strongest(rows, ["a", "b"]) == "b, fine-tuned"
    assert measure.strongest(rows, ["a"]) == "a"
    assert measure.difference(rows, "b, fine-tuned", "a") == "+0.100 ± 0.000"
    measure.write_case(tmp_path / "case.md", cells, "a")
    lines = (tmp_path / "case.md").read_text().splitlines()
    assert lines[2].startswith("| b, fine-tuned | 0.700 ± 1.271 | 0.500 ± 0.000 | 1.00")
    measure.write_overview(tmp_path / "all.md", {"case": cells})
    assert "| b | 0.600 |" in (tmp_path / "all.md").read_text()


def test_the_lists_of_contenders_do_not_overlap():
    assert not set(SIMPLE) & set(BILEVEL)
