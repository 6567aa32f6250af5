"""Files and directories that an experiment file names beside itself."""

from dataclasses import replace
from pathlib import Path

from fedbilevel.experiments.schema import CustomProblem, Experiment


def located(experiment: Experiment, directory: Path) -> Experiment:
    """Return the experiment with whole paths, so that it can be read from anywhere.

    Args:
        experiment: as its file has it.
        directory: of that file.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1), problem=CustomProblem(Path("ridge.py")))
        >>> located(asked, Path("/studies")).problem.file.as_posix()
        '/studies/ridge.py'
    """
    if experiment.directory is not None:
        experiment = replace(experiment, directory=directory / experiment.directory)
    if isinstance(experiment.problem, CustomProblem):
        whole = (directory / experiment.problem.file).absolute()
        problem = replace(experiment.problem, file=whole)
        experiment = replace(experiment, problem=problem)
    kit = experiment.federation.kit
    if kit is not None:
        federation = replace(experiment.federation, kit=(directory / kit).absolute())
        experiment = replace(experiment, federation=federation)
    path = experiment.data.path
    # Otherwise it is a name on the hub.
    if path is not None and (directory / path).is_dir():
        data = replace(experiment.data, path=str((directory / path).absolute()))
        experiment = replace(experiment, data=data)
    return experiment
