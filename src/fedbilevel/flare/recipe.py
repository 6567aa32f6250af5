"""The job of an experiment for NVIDIA FLARE."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from nvflare.collab import CollabRecipe

from fedbilevel.deployment.job_files import prepare_for_job
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.flare.collab_server import CollabServer
from fedbilevel.flare.collab_site import CollabSite
from fedbilevel.flare.site_failures import LateSites
from fedbilevel.flare.transport import MOST_CALLS

BEGIN = 120
"""Timeout in seconds for the processes of a job to connect."""
HANG_FACTOR = 10.0
"""Multiple of the exchange timeout after which a site's computation is killed."""


class FederationRecipe(CollabRecipe):  # type: ignore[misc]
    """A job for NVIDIA FLARE's simulator, a rehearsal, or production.

    Args:
        experiment: experiment to run. The file of a custom problem, with `model()` and
            `examples(site)`, is the only code in the job: this package is installed at
            the sites. With `federation.local_code` the job contains no code, and sites
            use their reviewed copies of that file.
        run: name of the run, of letters and digits; a job of the same name continues
            from the last checkpoint.
        sites: sites of the job; by default all sites of the experiment.
        required: sites without which the job does not begin.

    Example:
        >>> from fedbilevel import FedBiO
        >>> FederationRecipe(Experiment(FedBiO(0.1)), run="a1").job_name
        'fedbilevel-a1'
    """

    def __init__(
        self,
        experiment: Experiment,
        run: str,
        sites: Sequence[str] | None = None,
        required: Sequence[str] = (),
    ) -> None:
        names = sites_of(experiment) if sites is None else sites
        problem, settings = experiment.problem, experiment.federation
        self._code = [problem.file] if isinstance(problem, CustomProblem) else []
        if experiment.federation.local_code:
            self._code = []
        super().__init__(
            job_name=f"fedbilevel-{run}",
            server=CollabServer(run),
            # After a computation died, its next task includes loading and compilation.
            client=CollabSite(
                run, max(settings.enrolment_timeout, HANG_FACTOR * settings.timeout)
            ),
            min_clients=min(settings.quorum, len(names)),
            sync_task_timeout=BEGIN,
            max_outbound_call_threads_for_server=MOST_CALLS * len(names),
        )
        self._job.to_server(LateSites(), id="late_sites")
        self.set_per_site_config({site: {} for site in names})
        # The constructor of a Collab recipe has no argument for it.
        self._job.job.mandatory_clients = list(required)
        self._job.job.set_app_packages(["fedbilevel"])
        # The caller decides when the job is exported, which reads the file.
        files = Path(mkdtemp())
        weakref.finalize(self, rmtree, files, ignore_errors=True)
        file = files / EXPERIMENT
        write_experiment(prepare_for_job(experiment), file)
        for target in ("server", *names):
            self._job.add_file_to(str(file), target, app_folder_type="config")

    def _user_source_entries(self, objects: Any) -> list[tuple[str, str | None]]:
        # By default a Collab job contains the files of this package's classes, and any
        # code in a job needs the right to bring code.
        return [(str(file), None) for file in self._code]
