"""The computation of a job's server: enrol the sites and build the engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedbilevel.data.weights import factors_of, have_one_level, with_levels
from fedbilevel.deployment.deadlines import ENROLMENT, EXCHANGE, MEASUREMENT
from fedbilevel.deployment.gc_control import GarbageCollector
from fedbilevel.deployment.server_report import ServerReport
from fedbilevel.deployment.site_files import STARTUP
from fedbilevel.experiments.build import weights_of
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.measure import metrics_of
from fedbilevel.experiments.run import PreparedRun
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import EnrolmentTerms, Exchange, Federation, Transport, enrol
from fedbilevel.federation.computation import Computation
from fedbilevel.federation.device_state import MAX_STATES
from fedbilevel.federation.enrolment import EnrolledDevices
from fedbilevel.federation.release_log import ReleaseLog
from fedbilevel.federation.server_enrolment import prepare_sites
from fedbilevel.federation.survivor_log import SurvivorLog
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.task import Model


def federated_work(
    experiment: Experiment,
    model: Model,
    run: str,
    directory: Path,
    transport: Transport,
    reports: ServerReport,
    exclude: Callable[[Mapping[str, str]], None],
    kit: Path,
) -> PreparedRun:
    """Enrol the sites; return engine, devices and start of the experiment's rounds.

    Args:
        experiment: experiment to run.
        model: model of its problem.
        run: name of the run.
        directory: run directory at the server.
        transport: connection to the sites.
        reports: status report, which gets the stage of the job.
        exclude: function called with the absent sites and their reasons, so that tasks
            of this job do not wait for them.
        kit: kit of the server, with the certificate of the root authority.

    Raises:
        ValueError: if the experiment or a site cannot participate.
    """
    _refuse_rare_checkpoints(experiment, model)
    sites, settings = sites_of(experiment), experiment.federation
    reports.enter(ENROLMENT)
    devices, absent, warnings = enrol(
        transport,
        sites,
        model.form,
        directory,
        computation=Computation.of(
            model.problem,
            experiment.federated_algorithm,
            model.form,
            model.x,
            model.y,
        ),
        terms=EnrolmentTerms(
            settings.enrolment_timeout,
            # Weights by size must be known from the first round.
            len(sites) if experiment.weight_by_size else settings.quorum,
            settings.quorum,
        ),
    )
    exclude(absent)
    weights, limits = weights_of(experiment, devices), experiment.limits
    factors = factors_of(with_levels(devices, weights, model.x)[0])
    if have_one_level(factors) and limits.distance is not None:
        # The default of a job, whose submitter does not know the sites' examples.
        limits = replace(limits, distance=None)
        warnings = {**_without_limit(devices), **warnings}
    reports.warn(warnings)
    if factors is not None:
        reports.enter(ENROLMENT)
        present = [name for name in sites if name not in absent]
        prepare_sites(transport, present, settings.enrolment_timeout)
    reports.enter(EXCHANGE)
    garbage = GarbageCollector()

    def note(exchange: Exchange) -> None:
        reports.note(exchange)
        garbage.collect()

    def measure_in_stage(x: Upper, y: Lower) -> dict[str, float]:
        reports.enter(MEASUREMENT)
        try:
            return measure(x, y)
        finally:
            reports.enter(EXCHANGE)

    engine = Federation(
        transport,
        devices,
        run=run,
        timeout=settings.timeout,
        quorum=settings.quorum,
        straggler_factor=settings.straggler_factor,
        note=note,
        releases=ReleaseLog(directory / RELEASES),
        secure_sums=_root(kit) if settings.secure_sums else None,
        survivors=SurvivorLog(directory / SURVIVORS),
    )
    measure = metrics_of(model.metrics)
    return PreparedRun(
        model.problem,
        devices,
        model.x,
        model.y,
        weights,
        limits,
        engine,
        measure_in_stage,
    )


def _without_limit(devices: EnrolledDevices) -> dict[str, str]:
    """Return a warning for each site without a level: it ends the distance limit."""
    sizes = {"upper": devices.upper_sizes, "lower": devices.lower_sizes}
    return {
        devices.names[device]: f"has no {level} examples, so distance_limit does not "
        "apply in this run: the median site is no measure for a site with examples of "
        "one loss only"
        for level, of_level in sizes.items()
        for device in np.flatnonzero(of_level == 0)
    }


RELEASES = "releases.txt"
"""File in the run directory with a line for each mean with noise."""
SURVIVORS = "survivors.txt"
"""File in the run directory with a line for each secure sum."""


def _root(kit: Path) -> Any:
    """Return the certificate of the root authority of a kit."""
    # Imported here: other jobs do not need the packages of the extra.
    from fedbilevel.federation.secure_sums.identity import load_root

    return load_root(kit / STARTUP)


def _refuse_rare_checkpoints(experiment: Experiment, model: Model) -> None:
    """Raise if checkpoints are rarer than the states that sites keep."""
    algorithm, problem = experiment.federated_algorithm, model.problem
    _, private = algorithm.init(problem, model.x, model.y)
    most = MAX_STATES // len(algorithm.phases(problem))
    if jax.tree.leaves(private) and experiment.checkpoints.every > most:
        raise ValueError(
            f"checkpoints.every is {experiment.checkpoints.every}, but sites keep "
            f"states for {most} rounds of this algorithm; give at most {most}."
        )
