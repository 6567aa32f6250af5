"""What the server of a job works with: devices that enrol, and a federation of them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from fedbilevel.deployment.deadlines import ENROLMENT, EXCHANGE, MEASUREMENT
from fedbilevel.deployment.gc_control import GarbageCollector
from fedbilevel.deployment.server_report import ServerReport
from fedbilevel.experiments.build import weights_of
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.measure import metrics_of
from fedbilevel.experiments.run import PreparedRun
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import Exchange, Federation, Transport, enrol
from fedbilevel.federation.device_state import MOST
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.task import Model


def federated_work(
    experiment: Experiment,
    model: Model,
    run: str,
    home: Path,
    transport: Transport,
    reports: ServerReport,
    leave_out: Callable[[Mapping[str, str]], None],
) -> PreparedRun:
    """Have the sites enrol; return what the rounds of an experiment work with.

    Args:
        experiment: what is asked for.
        model: what the server knows of its problem.
        run: its name.
        home: its directory at the server.
        transport: reaches the sites.
        reports: are told what the server waits for.
        leave_out: is told who has not enrolled and why, so that tasks of this job need
            not wait for them.

    Raises:
        ValueError: if the experiment, or a site that enrols, cannot work so.

    Example:
        >>> federated_work.__name__
        'federated_work'
    """
    _refuse_rare_checkpoints(experiment, model)
    sites, asked = sites_of(experiment), experiment.federation
    reports.enter(ENROLMENT)
    devices, absent = enrol(
        transport,
        sites,
        model.form,
        home,
        seconds=asked.enrolment_timeout,
        # Weights by size need to be known from the first round.
        at_least=len(sites) if experiment.weight_by_size else asked.quorum,
        quorum=asked.quorum,
    )
    leave_out(absent)
    reports.enter(EXCHANGE)
    garbage = GarbageCollector()

    def note(exchange: Exchange) -> None:
        reports.note(exchange)
        garbage.collect()

    def measured(x: Upper, y: Lower) -> dict[str, float]:
        reports.enter(MEASUREMENT)
        try:
            return measure(x, y)
        finally:
            reports.enter(EXCHANGE)

    engine = Federation(
        transport,
        devices,
        run=run,
        timeout=asked.timeout,
        quorum=asked.quorum,
        straggler_factor=asked.straggler_factor,
        note=note,
    )
    weights = weights_of(experiment, devices)
    measure = metrics_of(model.metrics)
    return PreparedRun(
        model.problem, devices, model.x, model.y, weights, engine, measured
    )


def _refuse_rare_checkpoints(experiment: Experiment, model: Model) -> None:
    """Sites keep so many private states: a checkpoint must not be older than those."""
    algorithm, problem = experiment.federated_algorithm, model.problem
    _, private = algorithm.init(problem, model.x, model.y)
    most = MOST // len(algorithm.phases(problem))
    if jax.tree.leaves(private) and experiment.checkpoints.every > most:
        raise ValueError(
            f"checkpoints.every is {experiment.checkpoints.every}, but sites keep what "
            f"is theirs for {most} rounds of this algorithm; give at most that."
        )
