"""algorithm = "auto": a file without rates."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

import fedbilevel.commands.federate as federate_command
from fedbilevel import AutoFedBiO, Costs, FedBiO, optax_optimiser
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import text_of, write_experiment
from fedbilevel.experiments.measure import metrics_of
from fedbilevel.experiments.run_directory.runs import keep
from fedbilevel.experiments.schema import Auto, Experiment
from fedbilevel.experiments.schema.registry import find_type
from fedbilevel.tracking.records import Journal, Record
from tests.commands.typing_in import fedbilevel

FILE = """
algorithm = "auto"
rounds = 12
[data]
train_size = 64
validation_size = 40
[partition]
devices = 4
[evaluation]
every = 4
"""


def read(text: str, directory: Path) -> Experiment:
    file = directory / "experiment.toml"
    file.write_text(text)
    return read_experiment(file)


def test_a_file_selects_it_by_name(tmp_path):
    experiment = read(FILE, tmp_path)
    assert experiment.algorithm == Auto()
    assert experiment.federated_algorithm == AutoFedBiO(12)
    assert experiment.title == "Regularisation by AutoFedBiO"


def test_a_table_changes_a_setting(tmp_path):
    experiment = read('[algorithm]\nname = "auto"\nbatch_size = 3', tmp_path)
    assert experiment.algorithm == Auto(batch_size=3)
    assert experiment.federated_algorithm == AutoFedBiO(100, batch_size=3)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [Auto(), Auto(local_steps=2), Auto(rounds=7)])
def test_what_is_written_reads_the_same(algorithm, tmp_path):
    experiment = Experiment(algorithm, rounds=9)
    write_experiment(experiment, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == experiment
    assert 'algorithm = "auto"' in text_of(Experiment(Auto()))


def test_the_command_line_names_it():
    experiment = Experiment(FedBiO(0.1))
    arguments = ["algorithm:auto", "--algorithm.local-steps", "3"]
    changed = with_overrides(experiment, arguments, "fedbilevel run")
    assert changed.algorithm == Auto(local_steps=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('algorithm = "automatic"', 'give "auto" or a table such as'),
        (
            '[algorithm]\nname = "auto"\nlearning_rate = 1',
            "unknown key algorithm.learning_rate",
        ),
        (
            '[algorithm]\nname = "auto"\nlocal_steps = 0',
            "local_steps: give a whole number, at least 1",
        ),
        (
            '[algorithm]\nname = "auto"\nrounds = 0',
            "number, at least 2 .*, not 0",
        ),
        ('algorithm = "auto"\nrounds = 1', "rounds: give a whole number, at least 2"),
        ('algorithm = "FedBiO"', '{ name = "FedBiO" } with the settings'),
        (
            'algorithm = "auto"\nserver_optimiser = {name = "sgd", learning_rate = 1}',
            "server_optimiser: AutoFedBiO already has",
        ),
    ],
)
def test_mistakes_are_refused_with_their_cure(text, message, tmp_path):
    with pytest.raises(ExperimentError, match=message):
        read(text, tmp_path)


def test_a_server_optimiser_is_refused_in_python():
    optimiser = optax_optimiser("sgd", learning_rate=1.0)
    with pytest.raises(ValueError, match="remove this key"):
        Experiment(Auto(), server_optimiser=optimiser)


@pytest.mark.process
def test_a_run_has_a_baseline_and_is_resumed_with_more_rounds(tmp_path):
    (tmp_path / "first.toml").write_text(FILE)
    result = fedbilevel(tmp_path, "run first.toml --json")
    *_, end = (json.loads(line) for line in result.stdout.splitlines())
    assert end["baseline"]["rounds"] == 12
    extended = fedbilevel(tmp_path, "resume runs/first --rounds 16")
    assert "Rounds after these train y and leave x fixed" in extended.stderr
    saved = read_experiment(tmp_path / "runs" / "first" / "experiment.toml")
    # The rates are those of the initial run of 12 rounds.
    assert saved.algorithm == Auto(rounds=12)
    assert saved.rounds == 16


@pytest.mark.slow
def test_federate_resumes_with_more_rounds_at_the_rates_of_the_run(
    tmp_path, monkeypatch
):
    pytest.importorskip("nvflare")
    followed: list[Experiment] = []

    def follow(experiment, directory, *others):
        followed.append(experiment)
        keep(experiment, directory)
        with Journal(directory, first=0) as journal:
            journal.write(Record(0, 0.0, Costs(), {}))
        return 1

    # Both functions need a federation; the test is about the experiment sent to it.
    monkeypatch.setattr(federate_command, "_administrator", lambda *_: nullcontext())
    monkeypatch.setattr(federate_command, "_follow", follow)
    file = tmp_path / "first.toml"
    file.write_text(FILE)
    for options in [], ["--rounds", "16"], ["--rounds", "20"]:
        federate_command.main([str(file), *options])
    assert [run.rounds for run in followed] == [12, 16, 20]
    assert {run.federated_algorithm for run in followed} == {AutoFedBiO(12)}
    with pytest.raises(
        ValueError, match=r"was started with other values of algorithm\.rounds"
    ):
        federate_command.main([str(file), "--algorithm.rounds", "16"])


def test_the_name_of_the_class_points_to_auto():
    with pytest.raises(ValueError, match=r"selects by 'auto'.*write 'auto'"):
        find_type("algorithm", "AutoFedBiO")


def test_a_metric_that_fails_is_named():
    measure = metrics_of({"margin": lambda x, y: x["missing"]})
    with pytest.raises(ValueError, match=r"Metric 'margin' failed .*: KeyError"):
        measure({"a": 1.0}, 2.0)
