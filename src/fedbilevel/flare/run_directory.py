"""Where a server or site keeps what outlives a job of a run."""

import hashlib
import json
from pathlib import Path
from typing import Any

from fedbilevel.federation.messages import is_name

RUNS = "fedbilevel"
"""The directory of a kit with a directory for each submitter, and in it one for each run."""


def run_directory_of(run: str, workspace: Any, job: str) -> Path:
    """Return the directory of a run in this kit.

    A run belongs to whoever submitted it: another's job of the same name has a directory
    of its own.

    Args:
        run: its name, as the job says.
        workspace: NVIDIA FLARE's, of this kit.
        job: the number of the job.

    Raises:
        ValueError: if a run cannot be called that.

    Example:
        >>> run_directory_of("../local", None, "7")
        Traceback (most recent call last):
        ...
        ValueError: a run cannot be called '../local'; give letters and digits.
    """
    if not is_name(run):
        raise ValueError(f"a run cannot be called {run!r}; give letters and digits.")
    meta = json.loads(Path(workspace.get_job_meta_path(job)).read_text())
    owner = hashlib.sha256(str(meta.get("submitter_name")).encode()).hexdigest()[:12]
    return Path(workspace.get_root_dir()) / RUNS / owner / run
