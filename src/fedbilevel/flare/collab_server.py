"""The server process of a job: run the experiment's rounds with the job's sites."""

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.protocol import Server
from fedbilevel.atomic_write import atomic_write
from fedbilevel.deployment.job_files import read_job_experiment
from fedbilevel.deployment.local_code import UnknownCodeError
from fedbilevel.deployment.server_computation import federated_work
from fedbilevel.deployment.server_report import ServerReport, is_mistake
from fedbilevel.experiments.federation import model_of
from fedbilevel.experiments.run import PreparedRun, run_experiment
from fedbilevel.experiments.run_directory.layout import EXCHANGES, SOLUTION
from fedbilevel.experiments.schema import Experiment
from fedbilevel.flare.message_limits import check_limit, message_limit
from fedbilevel.flare.run_directory import run_directory_of
from fedbilevel.flare.site_failures import BEGUN, OVER, failures_in
from fedbilevel.flare.transport import Calls, Collab
from fedbilevel.tracking.records import RECORDS

TOPIC = "fedbilevel"
"""Topic of the command with which an administrator requests a job's status."""
RESULTS = "fedbilevel"
"""Directory of a job's results that an administrator may download."""
NOTICES = "notices.txt"
"""File with what the algorithm reports about the run so far, a line each."""
LEFT = (EXCHANGES, SOLUTION, NOTICES)
"""Files in that directory, besides the records."""
FAILURE = "failure.json"
"""File in that directory with the reason for a job's failure."""


class CollabServer:
    """The Collab object of the server.

    Args:
        run_name: name of the run.
    """

    def __init__(self, run_name: str) -> None:
        self.run_name = run_name

    @collab.main
    def run(self) -> None:
        """Run the experiment, from its newest checkpoint if there is one."""
        context, workspace = collab.fl_ctx, collab.workspace
        job = context.get_job_id()
        run_directory = run_directory_of(self.run_name, workspace, job)
        run_directory.mkdir(parents=True, exist_ok=True)
        directory = Path(workspace.get_run_dir(job))
        results = directory / RESULTS
        results.mkdir(parents=True, exist_ok=True)
        (directory / BEGUN).touch()
        calls = Calls(directory)
        reports = ServerReport(
            run_directory, lambda: calls.awaited, lambda: failures_in(directory)
        )

        def answer(topic: str, request: Any, context: Any) -> dict[str, Any]:
            return reports.answer(request)

        context.get_engine().register_app_command(TOPIC, answer)

        def prepare(experiment: Experiment) -> PreparedRun:
            kit = Path(workspace.get_root_dir())
            return _work(experiment, self.run_name, run_directory, reports, calls, kit)

        try:
            experiment = read_job_experiment(
                Path(workspace.get_app_config_dir(job)),
                Path(workspace.get_app_custom_dir(job)),
                Path(workspace.get_root_dir()),
            )
            with closing(
                run_experiment(experiment, run_directory, True, prepare)
            ) as steps:
                for step in steps:
                    reports.begin(step.round.number)
                    _write_notices(run_directory / NOTICES, step.round.server)
                    if reports.is_stopping or collab.is_aborted:
                        break
        except RunAborted:
            raise
        except Exception as error:
            # A site without the reviewed file reports that itself when it enrols.
            where = "the server: " if isinstance(error, UnknownCodeError) else ""
            failure = {"reason": f"{where}{error}", "mistake": is_mistake(error)}
            (results / FAILURE).write_text(json.dumps(failure))
            raise
        finally:
            (directory / OVER).touch()
            if calls.any_is_open:
                # Otherwise the job would wait for all open calls, even of dead sites.
                context.get_run_abort_signal().trigger(True)
            for name in (RECORDS, *LEFT):
                if (run_directory / name).exists():
                    shutil.copy(run_directory / name, results / name)


def _write_notices(file: Path, server: Server) -> None:
    notices = notices_of(server)
    lines = (f"{text}\n" for text, count in notices.items() if count)
    atomic_write(file, "".join(lines))


def _work(
    experiment: Experiment,
    run: str,
    run_directory: Path,
    reports: ServerReport,
    calls: Calls,
    kit: Path,
) -> PreparedRun:
    model = model_of(experiment)
    needed = message_limit(model.x, model.y)
    if reason := check_limit(needed):
        raise ValueError(f"The server cannot participate: {reason}.")

    def exclude(absent: Mapping[str, str]) -> None:
        # The next jobs then do not wait for these sites again.
        for name in calls.present() & absent.keys():
            calls.drop(name, absent[name])

    transport = Collab(calls, needed)
    return federated_work(
        experiment, model, run, run_directory, transport, reports, exclude, kit
    )
