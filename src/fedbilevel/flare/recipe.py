"""An experiment as a job of NVIDIA FLARE."""

import weakref
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from nvflare.collab import CollabRecipe

from fedbilevel.deployment.job_files import travelling
from fedbilevel.experiments.federation import sites_of
from fedbilevel.experiments.files.write import write_experiment
from fedbilevel.experiments.run_directory.layout import EXPERIMENT
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.flare.collab_server import CollabServer
from fedbilevel.flare.collab_site import CollabSite
from fedbilevel.flare.site_failures import LateSites
from fedbilevel.flare.transport import MOST_CALLS

BEGIN = 120
"""Seconds for the processes of a job to find each other."""
HUNG = 10.0
"""Timeouts of an exchange after which a site's computation is held for hung."""


class FederationRecipe(CollabRecipe):  # type: ignore[misc]
    """An experiment for NVIDIA FLARE's simulator, a rehearsal, or production.

    Args:
        experiment: what is asked for. A problem of one's own has `model()` and
            `examples(site)` in its file, which is all the code that travels with the
            job: this package is installed at the sites. With `federation.local_code`
            none does, and sites use their own copies of that file.
        run: the name of the run, of letters and digits; a job of the same name goes on
            from the checkpoint of the last.
        sites: those that the job is for; by default all of the experiment's.

    Example:
        >>> from fedbilevel import FedBiO
        >>> FederationRecipe(Experiment(FedBiO(0.1)), run="a1").job_name
        'fedbilevel-a1'
    """

    def __init__(
        self, experiment: Experiment, run: str, sites: Sequence[str] | None = None
    ) -> None:
        chosen = sites_of(experiment) if sites is None else sites
        problem, asked = experiment.problem, experiment.federation
        self._code = [problem.file] if isinstance(problem, CustomProblem) else []
        if experiment.federation.local_code:
            self._code = []
        super().__init__(
            job_name=f"fedbilevel-{run}",
            server=CollabServer(run),
            # A task to a computation that died includes loading and compiling.
            client=CollabSite(run, max(asked.enrolment_timeout, HUNG * asked.timeout)),
            min_clients=min(asked.quorum, len(chosen)),
            sync_task_timeout=BEGIN,
            max_outbound_call_threads_for_server=MOST_CALLS * len(chosen),
        )
        self._job.to_server(LateSites(), id="late_sites")
        self.set_per_site_config({site: {} for site in chosen})
        self._job.job.set_app_packages(["fedbilevel"])
        # The file is read when the job is written, which is up to the recipe's owner.
        files = Path(mkdtemp())
        weakref.finalize(self, rmtree, files, ignore_errors=True)
        file = files / EXPERIMENT
        write_experiment(travelling(experiment), file)
        for target in ("server", *chosen):
            self._job.add_file_to(str(file), target, app_folder_type="config")

    def _user_source_entries(self, objects: Any) -> list[tuple[str, str | None]]:
        # Of a Collab job it would be the files of our own classes, and any code makes
        # the job one that needs the right to bring code.
        return [(str(file), None) for file in self._code]
