"""The help of commands: options that it lists are accepted."""

import pytest

from fedbilevel import FedBiO
from fedbilevel.commands.arguments import CHANGEABLE, COMMON, parse_arguments
from fedbilevel.experiments.files.options import options_of
from fedbilevel.experiments.files.overrides import with_overrides
from fedbilevel.experiments.schema import Experiment

pytestmark = pytest.mark.slow

OPTIONS = {".".join(option.path): option for option in options_of(Experiment)}
VALUES = {
    "directory": ["there"],
    "server_optimiser": ['{ name = "sgd", learning_rate = 1.0 }'],
    "weight_by_size": [],
}


@pytest.mark.parametrize("key", COMMON)
def test_an_option_of_every_experiment_is_accepted(key):
    argv = [OPTIONS[key].flag, *VALUES.get(key, ["3"])]
    original = Experiment(FedBiO(0.1))
    assert with_overrides(original, argv, "fedbilevel run") != original


@pytest.mark.parametrize("subject", ["FILE", "RUN_DIRECTORY"])
def test_help_without_a_file_lists_options_of_every_experiment(subject, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_arguments("run", subject, ["--help"], "Run an experiment file.")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for key in COMMON if subject == "FILE" else CHANGEABLE:
        assert f"  {OPTIONS[key].flag}" in text
