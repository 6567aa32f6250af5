"""The run directory in the kit of a server or site, which outlives jobs."""

import hashlib
import json
from pathlib import Path
from typing import Any

from fedbilevel.federation.messages import is_name

RUNS = "fedbilevel"
"""Directory of a kit with a subdirectory for each submitter and run."""


def run_directory_of(run: str, workspace: Any, job: str) -> Path:
    """Return the directory of a run in this kit.

    Runs of different submitters have different directories, even with the same name.

    Args:
        run: name of the run in the job.
        workspace: NVIDIA FLARE's workspace of this kit.
        job: id of the job.

    Raises:
        ValueError: if the name is not valid.

    Example:
        >>> run_directory_of("../local", None, "7")
        Traceback (most recent call last):
        ...
        ValueError: run is '../local'; give a name of letters and digits.
    """
    if not is_name(run):
        raise ValueError(f"run is {run!r}; give a name of letters and digits.")
    meta = json.loads(Path(workspace.get_job_meta_path(job)).read_text())
    owner = hashlib.sha256(str(meta.get("submitter_name")).encode()).hexdigest()[:12]
    return Path(workspace.get_root_dir()) / RUNS / owner / run
