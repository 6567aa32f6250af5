"""What runs at the server: the experiment's rounds, over the sites of a job."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import jax
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.engines.federation import Exchange, Federation
from fedbilevel.engines.federation.kept import MOST
from fedbilevel.experiments.building import weights_of
from fedbilevel.experiments.choices import Experiment
from fedbilevel.experiments.federating import model_of, sites_of
from fedbilevel.experiments.folders import EXCHANGES, LEARNT
from fedbilevel.experiments.measuring import metrics_of
from fedbilevel.experiments.running import Work, carry_out
from fedbilevel.flare.collecting import Garbage
from fedbilevel.flare.enrolling import enrolled
from fedbilevel.flare.homes import home_of
from fedbilevel.flare.reporting import Reports, is_mistake
from fedbilevel.flare.transport import Collab
from fedbilevel.flare.travelling import arrived
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
        results = Path(workspace.get_run_dir(job)) / RESULTS
        results.mkdir(parents=True, exist_ok=True)
        reports = Reports(home)
        context.get_engine().register_app_command(TOPIC, reports.answer)

        def prepare(experiment: Experiment) -> Work:
            return _work(experiment, self.run_name, home, reports)

        try:
            experiment = arrived(
                Path(workspace.get_app_config_dir(job)),
                Path(workspace.get_app_custom_dir(job)),
                Path(workspace.get_root_dir()),
            )
            with closing(carry_out(experiment, home, True, prepare)) as steps:
                for _ in steps:
                    if reports.stop_is_asked or collab.is_aborted:
                        break
        except RunAborted:
            raise
        except Exception as error:
            told = {"words": str(error), "mistake": is_mistake(error)}
            (results / FAILURE).write_text(json.dumps(told))
            raise
        finally:
            for name in (RECORDS, *LEFT):
                if (home / name).exists():
                    shutil.copy(home / name, results / name)


def _work(experiment: Experiment, run: str, home: Path, reports: Reports) -> Work:
    model = model_of(experiment)
    _refuse_rare_checkpoints(experiment, model)
    devices = enrolled(sites_of(experiment), model.form, home)
    garbage = Garbage()

    def note(exchange: Exchange) -> None:
        reports.note(exchange)
        garbage.collect()

    engine = Federation(
        Collab(),
        devices,
        run=run,
        timeout=experiment.federation.timeout,
        seed=experiment.seed,
        quorum=experiment.federation.quorum,
        patience=experiment.federation.patience,
        note=note,
    )
    weights = weights_of(experiment, devices)
    measure = metrics_of(model.metrics)
    return Work(model.problem, devices, model.x, model.y, weights, engine, measure)


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
