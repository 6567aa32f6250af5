"""A tracker for Weights & Biases."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.error_text import first_line
from fedbilevel.extras import needs
from fedbilevel.tracking.protocol import RunStatus, numbers
from fedbilevel.tracking.records import Record

RUN = "wandb_run"
"""File in the run directory with the ID of the W&B run."""

EXIT_CODE = {RunStatus.FINISHED: 0, RunStatus.STOPPED: 255, RunStatus.FAILED: 1}
"""Exit codes sent to W&B; 255 is its code for Ctrl-C."""

TIMEOUTS = {"init_timeout": 10.0, "finish_timeout": 60.0}
"""Timeouts in seconds; by default W&B waits for the last upload without a limit."""


class WeightsAndBiases:
    """A tracker that sends settings and records to Weights & Biases.

    A resumed run continues its W&B run. Curves are drawn against `rounds`, because the
    steps of W&B count messages. Environment variables of W&B (`WANDB_MODE=offline`,
    `WANDB_ENTITY` and so on) are respected, and take precedence over `TIMEOUTS`.
    """

    def __init__(self, project: str, directory: Path) -> None:
        """Set the W&B project and the directory of W&B's files."""
        self.project = project
        self.directory = directory
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """Find or create the W&B run, and send the settings."""
        with needs("Records in Weights & Biases", "wandb", "'fedbilevel[wandb]'"):
            import wandb
        id_file = self.directory / RUN
        has_id = resume and id_file.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        timeouts = {
            name: seconds
            for name, seconds in TIMEOUTS.items()
            if f"WANDB_{name.upper()}" not in os.environ
        }
        try:
            self._run = wandb.init(
                project=self.project,
                dir=str(self.directory),
                name=name,
                id=id_file.read_text() if has_id else None,
                resume="allow" if has_id else None,
                config=dict(settings),
                allow_val_change=True,
                settings=wandb.Settings(**timeouts),
            )
        except wandb.Error as error:
            raise ConnectionError(
                f"tracking.wandb: Weights & Biases cannot be used: {first_line(error)} "
                "Correct this, set WANDB_MODE=offline, or omit tracking.wandb."
            ) from error
        id_file.write_text(self._run.id)
        self._run.define_metric("*", step_metric="rounds")

    def record(self, record: Record) -> None:
        """Queue the values of a record; W&B sends them in the background."""
        self._run.log({"rounds": record.rounds, **numbers(record)})

    def end(self, outcome: RunStatus) -> None:
        """Send the exit code, and wait for pending uploads."""
        self._run.finish(exit_code=EXIT_CODE[outcome])
