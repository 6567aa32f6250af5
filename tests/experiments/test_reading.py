"""Experiment files: strict reading, and errors with line, key and cure."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedbilevel import CubeRootDecay, FedBiO, FedNest, LocalBSGM, NeumannSeries
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.files.paths import located
from fedbilevel.experiments.files.read import ExperimentError, read_experiment
from fedbilevel.experiments.files.write import settings_of, write_experiment
from fedbilevel.experiments.schema import CustomProblem, Experiment, Tracking
from fedbilevel.problems import Regularisation

SOUND = """
rounds = 7

[algorithm]
name = "LocalBSGM"
learning_rate = {scale = 0.5}

[algorithm.hypergradient]
name = "NeumannSeries"
terms = 5
scale = 0.3

[problem]
name = "CustomProblem"
file = "ridge.py"
"""
EXPERIMENT = Experiment(
    LocalBSGM(CubeRootDecay(0.5), NeumannSeries(5, 0.3)),
    problem=CustomProblem(Path("ridge.py")),
    rounds=7,
)


def read(text: str, directory: Path) -> Experiment:
    file = directory / "experiment.toml"
    file.write_text(text)
    return read_experiment(file)


def test_a_file_is_read(tmp_path):
    assert read(SOUND, tmp_path) == located(EXPERIMENT, tmp_path)


def test_what_is_written_reads_the_same(tmp_path):
    write_experiment(EXPERIMENT, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == located(EXPERIMENT, tmp_path)


def test_a_table_with_a_single_type_is_written_without_its_name(tmp_path):
    experiment = Experiment(FedNest(0.1, NeumannSeries(terms=3, scale=0.2)))
    write_experiment(experiment, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == experiment


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 7", "rounds = 7.5", "line 2: rounds: give a whole number, not 7.5."),
        ("rounds = 7", 'rounds = "7"', 'rounds: give a whole number, not "7".'),
        ("rounds = 7", "rounds = true", "rounds: give a whole number, not true."),
        ("rounds = 7", "round = 7", "line 2: unknown key round; did you mean rounds?"),
        ("rounds = 7", "rounds =", "experiment.toml is not valid TOML"),
        ("LocalBSGM", "LocalBSG", "did you mean LocalBSGM?"),
        ("NeumannSeries", "Neumann", "line 9: algorithm.hypergradient.name: unknow"),
        ('name = "LocalBSGM"', "", "algorithm.name: the key is missing; give one"),
        ("terms = 5", "", "line 8: algorithm.hypergradient.terms is missing; a"),
        ("terms = 5", "term = 5", "did you mean terms?"),
        ("scale = 0.3", 'scale = "a"', "line 11: algorithm.hypergradient.scale: give"),
        (
            "{scale = 0.5}",
            "{scales = 0.5}",
            "line 6: unknown key algorithm.learning_ra",
        ),
        ("{scale = 0.5}", "-1", "learning_rate: give a number or a schedule, above 0"),
        ("[problem]", "[problems]", "line 13: unknown key problems; did you mean pro"),
        (
            "[problem]",
            "[tracking]\nmlflow = 1\n[problem]",
            "line 14: tracking.mlflow: give text in quotes, not 1.",
        ),
        (
            'name = "CustomProblem"',
            'name = "Ridge"',
            "line 14: problem.name: unknown name 'Ridge'",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_its_cure(old, new, message, tmp_path):
    assert SOUND.count(old) == 1
    with pytest.raises(ExperimentError) as caught:
        read(SOUND.replace(old, new), tmp_path)
    assert message in str(caught.value)


def test_all_mistakes_are_reported_in_the_order_of_the_file(tmp_path):
    text = SOUND.replace("rounds = 7", "round = 7").replace("terms", "term")
    with pytest.raises(ExperimentError) as caught:
        read(text, tmp_path)
    lines = str(caught.value).splitlines()
    # The missing key `terms` is not reported besides the unknown key `term`.
    assert [line.split("line ")[1].split(":")[0] for line in lines] == ["2", "10"]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ExperimentError, match=r"nowhere\.toml cannot be read: No such"):
        read_experiment(tmp_path / "nowhere.toml")


def test_every_field_is_an_option():
    options = ["--rounds=9", "--algorithm.learning_rate", "0.2"]
    options += ["--algorithm.hypergradient.terms", "8", "--partition.devices", "3"]
    experiment = replace(EXPERIMENT, problem=Regularisation())
    changed = with_overrides(experiment, options, "fedbilevel run")
    assert changed.rounds == 9
    assert changed.partition.devices == 3
    assert changed.algorithm == LocalBSGM(0.2, NeumannSeries(8, 0.3))


def test_tracking_is_read_written_and_changed_on_the_command_line(tmp_path):
    text = SOUND + '[tracking]\ntensorboard = true\nwandb = "federated"\n'
    experiment = read(text, tmp_path)
    expected = replace(EXPERIMENT, tracking=Tracking(True, None, "federated"))
    assert experiment == located(expected, tmp_path)
    write_experiment(experiment, tmp_path / "again.toml")
    assert read_experiment(tmp_path / "again.toml") == experiment
    options = ["--tracking.mlflow", "http://127.0.0.1:5000", "--tracking.wandb", "None"]
    options += ["--tracking.no-tensorboard"]
    changed = with_overrides(experiment, options, "fedbilevel run").tracking
    assert changed == Tracking(False, "http://127.0.0.1:5000", None)


def test_settings_have_dotted_names_and_no_addresses():
    experiment = replace(EXPERIMENT, tracking=Tracking(mlflow="http://me:secret@host"))
    settings = settings_of(experiment)
    assert settings["algorithm.name"] == "LocalBSGM"
    assert settings["algorithm.hypergradient.terms"] == 5
    assert settings["algorithm.learning_rate.scale"] == 0.5
    assert settings["problem.file"] == "ridge.py"
    assert "secret" not in str(settings)


def test_another_algorithm_is_selected_on_the_command_line():
    arguments = ["algorithm:fedbio", "--algorithm.learning-rate", "0.2"]
    assert with_overrides(EXPERIMENT, arguments, "fedbilevel run").algorithm == FedBiO(
        0.2
    )


def test_an_unknown_option_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"--round is not an option\. Did you mean"):
        with_overrides(EXPERIMENT, ["--round", "9"], "fedbilevel run")
