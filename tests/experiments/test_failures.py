"""Failed runs: which errors are remembered, and which values are failures."""

from math import inf, nan

import pytest

from fedbilevel import Costs, FedBiO
from fedbilevel.engines.debug import DeviceError
from fedbilevel.experiments.groups import read_seed_run
from fedbilevel.experiments.outcome import Change, outcome_of
from fedbilevel.experiments.run_directory.failures import (
    Failure,
    divergence,
    read_failure,
    record_failure,
    write_failure,
)
from fedbilevel.experiments.run_directory.runs import keep, read_run
from fedbilevel.experiments.schema import Experiment
from fedbilevel.tracking.records import Journal, Record


def record(rounds: int, **metrics: float) -> Record:
    return Record(rounds, 0.1, Costs(), metrics)


def test_an_error_of_numbers_is_remembered_with_the_last_measured_round(tmp_path):
    with Journal(tmp_path, first=0) as journal:
        journal.write(record(0, loss=1.0))
        journal.write(record(8, loss=2.0))
        with pytest.raises(FloatingPointError), record_failure(tmp_path):
            raise FloatingPointError("y is not finite")
    assert read_failure(tmp_path) == Failure(8, "y is not finite")


def test_an_error_of_numbers_on_a_device_is_remembered(tmp_path):
    with pytest.raises(DeviceError), record_failure(tmp_path):
        raise DeviceError("device 3: y is not finite") from FloatingPointError()
    assert read_failure(tmp_path) == Failure(0, "device 3: y is not finite")


@pytest.mark.parametrize(
    "error", [MemoryError, OSError, ZeroDivisionError, KeyboardInterrupt]
)
def test_any_other_error_is_not_remembered(tmp_path, error):
    with pytest.raises(error), record_failure(tmp_path):
        raise error
    assert read_failure(tmp_path) is None


def test_a_run_that_begins_again_has_not_failed(tmp_path):
    write_failure(tmp_path, Failure(8, "y is not finite"))
    keep(Experiment(FedBiO(0.1)), tmp_path)
    assert read_failure(tmp_path) is None


def test_a_run_that_failed_before_its_first_record_names_the_reason(tmp_path):
    keep(Experiment(FedBiO(0.1)), tmp_path)
    write_failure(tmp_path, Failure(0, "y is not finite"))
    with pytest.raises(ValueError, match="before its first measurement: y is not fin"):
        read_run(tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "failure.json").write_text('{"rounds": 3')
    with pytest.raises(ValueError, match=r"failure\.json is damaged"):
        read_failure(tmp_path)


def test_values_that_become_infinite_or_nan_are_a_failure():
    records = [record(0, loss=1.0, auc=nan), record(5, loss=inf, auc=nan)]
    failure = divergence(records)
    assert failure == Failure(0, "the validation loss is inf after 5 rounds")


def test_a_loss_that_was_never_finite_is_a_failure():
    failure = divergence([record(0, loss=inf), record(5, loss=inf)])
    assert failure == Failure(0, "the validation loss is inf after 5 rounds")


@pytest.mark.parametrize("first", [nan, inf])
def test_a_loss_is_compared_with_its_first_finite_value(first):
    records = [record(0, loss=first), record(1, loss=1.0), record(2, loss=5e33)]
    failure = divergence(records)
    assert failure == Failure(1, "the validation loss grew from 1 to 5e+33")
    assert outcome_of(records).change is Change.DIVERGED


def test_a_lower_level_that_diverges_is_a_failure():
    records = [record(n, loss=1.0 - n, training_loss=9e9**n) for n in range(3)]
    failure = divergence(records)
    assert failure is not None
    assert "the training loss grew from 1 to 8.1e+19" in failure.reason
    outcome = outcome_of(records)
    assert outcome.change is Change.DIVERGED
    assert failure.reason in outcome.reasons[0]
    # The last record may lack it.
    assert divergence([*records, record(3, loss=0.5)]) is None


def test_a_metric_that_was_never_finite_or_is_so_again_is_no_failure():
    assert (
        divergence([record(0, loss=1.0, auc=nan), record(5, loss=2, auc=nan)]) is None
    )
    assert (
        divergence([record(0, loss=1.0), record(5, loss=inf), record(6, loss=1)])
        is None
    )
    assert divergence([]) is None


def test_the_outcome_and_a_comparison_agree_on_what_has_diverged(tmp_path):
    # One definition: a finite loss of 5e33 is a failed seed, and a bad outcome.
    keep(Experiment(FedBiO(0.1)), tmp_path)
    with Journal(tmp_path, first=0) as journal:
        for rounds, loss in enumerate((2.0, 3.0, 5e33)):
            journal.write(record(rounds, loss=loss))
    seed_run = read_seed_run(tmp_path)
    assert seed_run.failure == Failure(1, "the validation loss grew from 2 to 5e+33")
    assert outcome_of(seed_run.records).change is Change.DIVERGED
