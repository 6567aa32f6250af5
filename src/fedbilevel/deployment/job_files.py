"""The experiment file of a job, without settings of the submitter's machine."""

import tomllib
from dataclasses import replace
from pathlib import Path

from fedbilevel.deployment.local_code import digest_of, find_reviewed
from fedbilevel.experiments.federation import (
    DISTANCE_LIMIT,
    NORM_LIMIT,
    sites_of,
)
from fedbilevel.experiments.files.read import read_experiment
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import CustomProblem, Experiment, Tracking
from fedbilevel.experiments.schema.registry import TABLES, name_of


def prepare_for_job(experiment: Experiment) -> Experiment:
    """Return an experiment as its job contains it.

    Missing limits on uploads get defaults, if they apply. Trackers, the directory and
    the kit are removed.

    Example:
        >>> from fedbilevel import FedBiO
        >>> prepare_for_job(Experiment(FedBiO(0.1))).norm_limit
        1000000.0
    """
    for table in TABLES:
        _refuse_import_path(table, name_of(table, type(getattr(experiment, table))))
    if experiment.server_optimiser is not None:
        _refuse_import_path("server_optimiser", experiment.server_optimiser.name)
    settings, transforms = experiment.federation, experiment.transforms
    noise = transforms.noise is not None
    # Under noise no device may be excluded because of its numbers. Fixed-point numbers
    # are for servers that see no single upload.
    unlimited = noise or transforms.integer_bits is not None
    prepared = replace(
        experiment,
        directory=None,
        tracking=Tracking(),
        # A federation measures only what the model of the problem names.
        evaluation=replace(experiment.evaluation, metrics=()),
        norm_limit=experiment.norm_limit or (None if unlimited else NORM_LIMIT),
        distance_limit=experiment.distance_limit
        or (None if unlimited else DISTANCE_LIMIT),
        federation=replace(
            settings, sites=sites_of(experiment), kit=None, local_code=False
        ),
    )
    if isinstance(experiment.problem, CustomProblem):
        file = experiment.problem.file
        digest = digest_of(file) if settings.local_code else None
        prepared = replace(prepared, problem=CustomProblem(Path(file.name), digest))
    return prepared


def read_job_experiment(configuration: Path, code: Path, kit: Path) -> Experiment:
    """Return the experiment of a job.

    Args:
        configuration: directory of the job's configuration.
        code: directory of the job's code, with the file of a custom problem; each
            site's policy decides whether a job may bring code.
        kit: kit of the server or site, with its reviewed problem files.

    Raises:
        UnknownCodeError: if the job names a problem file that was not reviewed.
        ValueError: if the experiment uses a feature that jobs may not use.

    Example:
        >>> import tempfile
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.experiments.files.write import write_experiment
        >>> directory = Path(tempfile.mkdtemp())
        >>> sent = prepare_for_job(Experiment(FedBiO(0.1)))
        >>> write_experiment(sent, directory / EXPERIMENT)
        >>> read_job_experiment(directory, directory, directory) == sent
        True
    """
    file = configuration / EXPERIMENT
    for table, value in tomllib.loads(file.read_text(encoding="utf-8")).items():
        if table in (*TABLES, "server_optimiser") and isinstance(value, dict):
            _refuse_import_path(table, str(value.get("name")))
    experiment = read_experiment(file)
    # Otherwise a submitter without the right to bring code could make a site read any
    # directory, or make the server call any address.
    experiment = replace(experiment, directory=None, tracking=Tracking())
    if experiment.data.name == "hub":
        raise ValueError(
            'data.name is "hub", which sites do not load for a job; write a custom '
            "problem whose examples(site) loads the data."
        )
    if isinstance(experiment.problem, CustomProblem):
        name, digest = experiment.problem.file.name, experiment.problem.sha256
        file = code / name if digest is None else find_reviewed(kit, name, digest)
        experiment = replace(experiment, problem=CustomProblem(file))
    return experiment


def _refuse_import_path(table: str, name: str) -> None:
    # An import path imports a module: the submitter of a job could make a site import
    # any module that is installed there.
    if ":" in name:
        raise ValueError(
            f"{table}.name is {name!r}, but jobs may not name a class by its import "
            f"path; install its package at server and sites with an entry point of the "
            f"group fedbilevel.{table}s, and give the entry point's name."
        )
