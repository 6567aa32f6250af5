"""Paths in an experiment file, which are relative to that file."""

from dataclasses import replace
from pathlib import Path

from fedbilevel.experiments.schema import CustomProblem, Experiment


def located(experiment: Experiment, directory: Path) -> Experiment:
    """Return the experiment with absolute paths, so that it can be read from anywhere.

    Args:
        experiment: the experiment with the paths of its file.
        directory: directory of that file.

    Example:
        >>> from fedbilevel import FedBiO
        >>> ridge = Experiment(FedBiO(0.1), problem=CustomProblem(Path("ridge.py")))
        >>> located(ridge, Path("/studies")).problem.file.as_posix()
        '/studies/ridge.py'
    """
    if experiment.directory is not None:
        experiment = replace(experiment, directory=directory / experiment.directory)
    if isinstance(experiment.problem, CustomProblem):
        file = (directory / experiment.problem.file).absolute()
        problem = replace(experiment.problem, file=file)
        experiment = replace(experiment, problem=problem)
    kit = experiment.federation.kit
    if kit is not None:
        federation = replace(experiment.federation, kit=(directory / kit).absolute())
        experiment = replace(experiment, federation=federation)
    path = experiment.data.path
    # A path of the hub that is no directory is the name of a data set.
    is_local = experiment.data.name == "tabular"
    if path is not None and (is_local or (directory / path).is_dir()):
        data = replace(experiment.data, path=str((directory / path).absolute()))
        experiment = replace(experiment, data=data)
    return experiment
