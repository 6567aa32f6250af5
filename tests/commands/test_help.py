"""The help of commands: options that it lists are accepted."""

import pytest

from fedbilevel import FedBiO
from fedbilevel.commands.arguments import CHANGEABLE, COMMON, parse_arguments
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.schema import Experiment

pytestmark = pytest.mark.slow

VALUES = {
    "INT": "3",
    "FLOAT": "3.0",
    "DIRECTORY": "there",
    "TABLE": '{ name = "sgd", learning_rate = 1.0 }',
}


@pytest.mark.parametrize("option", sorted({*COMMON, *CHANGEABLE}))
def test_an_option_of_every_experiment_is_accepted(option):
    name, *metavars = option.split()
    argv = [name, *(VALUES[metavar] for metavar in metavars)]
    original = Experiment(FedBiO(0.1))
    assert with_overrides(original, argv, "fedbilevel run") != original


@pytest.mark.parametrize("subject", ["FILE", "RUN_DIRECTORY"])
def test_help_without_a_file_lists_options_of_every_experiment(subject, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments("run", subject, ["--help"], "Run an experiment file.")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in COMMON if subject == "FILE" else CHANGEABLE:
        assert f"  {option}" in text
