"""Files and folders that an experiment file names beside itself."""

from dataclasses import replace
from pathlib import Path

from fedbilevel.experiments.schema import Experiment, Own


def located(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with whole paths, so that it can be read from anywhere.

    Args:
        experiment: as its file has it.
        folder: of that file.

    Example:
        >>> from fedbilevel import FedBiO
        >>> asked = Experiment(FedBiO(0.1), problem=Own(Path("ridge.py")))
        >>> located(asked, Path("/studies")).problem.file.as_posix()
        '/studies/ridge.py'
    """
    if experiment.folder is not None:
        experiment = replace(experiment, folder=folder / experiment.folder)
    if isinstance(experiment.problem, Own):
        whole = (folder / experiment.problem.file).absolute()
        problem = replace(experiment.problem, file=whole)
        experiment = replace(experiment, problem=problem)
    kit = experiment.federation.kit
    if kit is not None:
        federation = replace(experiment.federation, kit=(folder / kit).absolute())
        experiment = replace(experiment, federation=federation)
    path = experiment.data.path
    # Otherwise it is a name on the hub.
    if path is not None and (folder / path).is_dir():
        data = replace(experiment.data, path=str((folder / path).absolute()))
        experiment = replace(experiment, data=data)
    return experiment
