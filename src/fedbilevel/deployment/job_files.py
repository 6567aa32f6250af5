"""An experiment on its way with a job: a file, and nothing of a machine."""

import tomllib
from dataclasses import replace
from pathlib import Path

from fedbilevel.deployment.local_code import digest_of, reviewed
from fedbilevel.experiments.federation import (
    DISTANCE_LIMIT,
    NORM_LIMIT,
    sites_of,
)
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import CustomProblem, Experiment, Tracking
from fedbilevel.experiments.schema.registry import TABLES, name_of


def travelling(experiment: Experiment) -> Experiment:
    """Return an experiment as a job carries it.

    Where it has no limits for uploads it gets some. Whom to tell of measurements, and
    which kit is used, stays here.

    Example:
        >>> from fedbilevel import FedBiO
        >>> travelling(Experiment(FedBiO(0.1))).norm_limit
        1000000.0
    """
    for table in TABLES:
        _refuse_place(table, name_of(table, type(getattr(experiment, table))))
    if experiment.server_optimiser is not None:
        _refuse_place("server_optimiser", experiment.server_optimiser.name)
    settings = experiment.federation
    asked = replace(
        experiment,
        directory=None,
        tracking=Tracking(),
        norm_limit=experiment.norm_limit or NORM_LIMIT,
        distance_limit=experiment.distance_limit or DISTANCE_LIMIT,
        federation=replace(
            settings, sites=sites_of(experiment), kit=None, local_code=False
        ),
    )
    if isinstance(experiment.problem, CustomProblem):
        file = experiment.problem.file
        digest = digest_of(file) if settings.local_code else None
        asked = replace(asked, problem=CustomProblem(Path(file.name), digest))
    return asked


def arrived(configuration: Path, code: Path, kit: Path) -> Experiment:
    """Return the experiment that came with a job.

    Args:
        configuration: the directory of the job's configuration.
        code: the directory of its code, where the file of a problem of one's own is: code
            travels as such, under the rules of each site.
        kit: of the server or site, with the problem files that were reviewed there.

    Raises:
        UnknownCodeError: if the job names a problem file that was not.
        ValueError: if it asks for what no job may.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.experiments.files.write import write_experiment
        >>> directory = Path(tempfile.mkdtemp())
        >>> sent = travelling(Experiment(FedBiO(0.1)))
        >>> write_experiment(sent, directory / EXPERIMENT)
        >>> arrived(directory, directory, directory) == sent
        True
    """
    file = configuration / EXPERIMENT
    for table, asked in tomllib.loads(file.read_text(encoding="utf-8")).items():
        if table in (*TABLES, "server_optimiser") and isinstance(asked, dict):
            _refuse_place(table, str(asked.get("name")))
    experiment = read_experiment(file)
    # Whoever submits without the right to bring code could otherwise have a site read
    # any directory, or the server call any address.
    experiment = replace(experiment, directory=None, tracking=Tracking())
    if experiment.data.name == "hub":
        raise ValueError(
            'sites do not load data of name "hub" for a job; write a problem of your '
            "own, whose examples(site) does."
        )
    if isinstance(experiment.problem, CustomProblem):
        name, digest = experiment.problem.file.name, experiment.problem.sha256
        there = code / name if digest is None else reviewed(kit, name, digest)
        experiment = replace(experiment, problem=CustomProblem(there))
    return experiment


def _refuse_place(table: str, name: str) -> None:
    # To find a class by its place is to import a module: whoever submits a job could
    # have any module that is installed at a site imported there.
    if ":" in name:
        raise ValueError(
            f"{table}.name is {name!r}, and sites look up no class by its place for a "
            f"job; install its package at server and sites with an entry point of the "
            f"group fedbilevel.{table}s, and give the entry point's name."
        )
