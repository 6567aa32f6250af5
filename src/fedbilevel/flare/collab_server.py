"""What runs at the server: the experiment's rounds, over the sites of a job."""

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.deployment.job_files import arrived
from fedbilevel.deployment.local_code import UnknownCodeError
from fedbilevel.deployment.server_computation import federated_work
from fedbilevel.deployment.server_report import ServerReport, is_mistake
from fedbilevel.experiments.federation import model_of
from fedbilevel.experiments.run import Work, run_experiment
from fedbilevel.experiments.run_directory.layout import EXCHANGES, SOLUTION
from fedbilevel.experiments.schema import Experiment
from fedbilevel.flare.message_limits import message_limit, too_small
from fedbilevel.flare.run_directory import run_directory_of
from fedbilevel.flare.site_failures import BEGUN, OVER, failures_in
from fedbilevel.flare.transport import Calls, Collab
from fedbilevel.tracking.records import RECORDS

TOPIC = "fedbilevel"
"""Of the command by which an administrator asks a running job how it is getting on."""
RESULTS = "fedbilevel"
"""The directory of a job's results with what an administrator may have."""
LEFT = (EXCHANGES, SOLUTION)
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
        home = run_directory_of(self.run_name, workspace, job)
        home.mkdir(parents=True, exist_ok=True)
        directory = Path(workspace.get_run_dir(job))
        results = directory / RESULTS
        results.mkdir(parents=True, exist_ok=True)
        (directory / BEGUN).touch()
        calls = Calls(directory)
        reports = ServerReport(
            home, lambda: calls.awaited, lambda: failures_in(directory)
        )

        def answer(topic: str, asked: Any, context: Any) -> dict[str, Any]:
            return reports.answer(asked)

        context.get_engine().register_app_command(TOPIC, answer)

        def prepare(experiment: Experiment) -> Work:
            return _work(experiment, self.run_name, home, reports, calls)

        try:
            experiment = arrived(
                Path(workspace.get_app_config_dir(job)),
                Path(workspace.get_app_custom_dir(job)),
                Path(workspace.get_root_dir()),
            )
            with closing(run_experiment(experiment, home, True, prepare)) as steps:
                for step in steps:
                    reports.begin(step.done.number)
                    if reports.stop_is_asked or collab.is_aborted:
                        break
        except RunAborted:
            raise
        except Exception as error:
            # A site that has not reviewed the file is named as it enrols.
            where = "the server: " if isinstance(error, UnknownCodeError) else ""
            told = {"reason": f"{where}{error}", "mistake": is_mistake(error)}
            (results / FAILURE).write_text(json.dumps(told))
            raise
        finally:
            (directory / OVER).touch()
            if calls.any_is_open:
                # A job that ends waits for its calls, those of dead sites included.
                context.get_run_abort_signal().trigger(True)
            for name in (RECORDS, *LEFT):
                if (home / name).exists():
                    shutil.copy(home / name, results / name)


def _work(
    experiment: Experiment, run: str, home: Path, reports: ServerReport, calls: Calls
) -> Work:
    model = model_of(experiment)
    needed = message_limit(model.x, model.y)
    if reason := too_small(needed):
        raise ValueError(f"the server cannot take part: {reason}.")

    def leave_out(absent: Mapping[str, str]) -> None:
        # The next jobs do not wait for them as long again.
        for name in calls.present() & absent.keys():
            calls.drop(name, absent[name])

    transport = Collab(calls, needed)
    return federated_work(experiment, model, run, home, transport, reports, leave_out)
