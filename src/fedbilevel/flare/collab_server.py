"""What runs at the server: the experiment's rounds, over the sites of a job."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import jax
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.experiments.build import weights_of
from fedbilevel.experiments.federating import model_of, sites_of
from fedbilevel.experiments.measure import metrics_of
from fedbilevel.experiments.run import Work, carry_out
from fedbilevel.experiments.run_directory.layout import EXCHANGES, LEARNT
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation import Exchange, Federation
from fedbilevel.federation.device_state import MOST
from fedbilevel.flare.deadlines import ENROLMENT, EXCHANGE, MEASUREMENT
from fedbilevel.flare.enrolling import enrolled
from fedbilevel.flare.gc_control import Garbage
from fedbilevel.flare.job_files import arrived
from fedbilevel.flare.message_limits import message_limit, too_small
from fedbilevel.flare.reporting import Reports, is_mistake
from fedbilevel.flare.reviewed import UnreviewedError
from fedbilevel.flare.run_directory import home_of
from fedbilevel.flare.site_failures import BEGUN, OVER
from fedbilevel.flare.transport import Calls, Collab
from fedbilevel.mathematics.problem import Lower, Upper
from fedbilevel.problems.task import Model
from fedbilevel.tracking.records import RECORDS

TOPIC = "fedbilevel"
"""Of the command by which an administrator asks a running job how it is getting on."""
RESULTS = "fedbilevel"
"""The folder of a job's results with what an administrator may have."""
LEFT = (EXCHANGES, LEARNT)
"""The files that a job leaves there, besides its records."""
FAILURE = "failure.json"
"""The file there that says why a job failed."""


class CollabServer:
    """The Collab object of the server.

    Args:
        run_name: the name of the run.

    Example:
        >>> CollabServer("a1").run_name
        'a1'
    """

    def __init__(self, run_name: str) -> None:
        self.run_name = run_name

    @collab.main
    def run(self) -> None:
        """Carry out the experiment, from its newest checkpoint if there is one."""
        context, workspace = collab.fl_ctx, collab.workspace
        job = context.get_job_id()
        home = home_of(self.run_name, workspace, job)
        home.mkdir(parents=True, exist_ok=True)
        folder = Path(workspace.get_run_dir(job))
        results = folder / RESULTS
        results.mkdir(parents=True, exist_ok=True)
        (folder / BEGUN).touch()
        calls = Calls(folder)
        reports = Reports(home, folder, calls)
        context.get_engine().register_app_command(TOPIC, reports.answer)

        def prepare(experiment: Experiment) -> Work:
            return _work(experiment, self.run_name, home, reports, calls)

        try:
            experiment = arrived(
                Path(workspace.get_app_config_dir(job)),
                Path(workspace.get_app_custom_dir(job)),
                Path(workspace.get_root_dir()),
            )
            with closing(carry_out(experiment, home, True, prepare)) as steps:
                for step in steps:
                    reports.begin(step.done.number)
                    if reports.stop_is_asked or collab.is_aborted:
                        break
        except RunAborted:
            raise
        except Exception as error:
            # A site that has not reviewed the file is named as it enrols.
            where = "the server: " if isinstance(error, UnreviewedError) else ""
            told = {"words": f"{where}{error}", "mistake": is_mistake(error)}
            (results / FAILURE).write_text(json.dumps(told))
            raise
        finally:
            (folder / OVER).touch()
            if calls.any_is_open:
                # A job that ends waits for its calls, those of dead sites included.
                context.get_run_abort_signal().trigger(True)
            for name in (RECORDS, *LEFT):
                if (home / name).exists():
                    shutil.copy(home / name, results / name)


def _work(
    experiment: Experiment, run: str, home: Path, reports: Reports, calls: Calls
) -> Work:
    model = model_of(experiment)
    _refuse_rare_checkpoints(experiment, model)
    sites, asked = sites_of(experiment), experiment.federation
    needed = message_limit(model.x, model.y)
    if reason := too_small(needed):
        raise ValueError(f"the server cannot take part: {reason}.")
    reports.enter(ENROLMENT)
    devices = enrolled(
        sites,
        model.form,
        home,
        calls,
        asked.enrolment,
        # Weights by size need to be known from the first round.
        len(sites) if experiment.weigh_by_size else asked.quorum,
        needed,
        asked.quorum,
    )
    reports.enter(EXCHANGE)
    garbage = Garbage()

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
        Collab(calls),
        devices,
        run=run,
        timeout=asked.timeout,
        seed=experiment.seed,
        quorum=asked.quorum,
        patience=asked.patience,
        note=note,
    )
    weights = weights_of(experiment, devices)
    measure = metrics_of(model.metrics)
    return Work(model.problem, devices, model.x, model.y, weights, engine, measured)


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
