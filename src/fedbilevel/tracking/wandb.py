"""Weights & Biases."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbilevel.error_text import first_line
from fedbilevel.tracking.protocol import Outcome, numbers
from fedbilevel.tracking.records import Record

RUN = "wandb_run"
"""The file in a run's directory that remembers W&B's name for it."""

EXIT_CODE = {Outcome.FINISHED: 0, Outcome.STOPPED: 255, Outcome.FAILED: 1}
"""What W&B is told; 255 is its own code for Ctrl-C."""

PATIENCE = {"init_timeout": 10.0, "finish_timeout": 60.0}
"""Seconds; by itself W&B waits without end for the last upload."""


class WeightsAndBiases:
    """Sends settings and numbers to Weights & Biases, or keeps them for `wandb sync`.

    A run that goes on does so under the same W&B run. Curves are drawn over `rounds`,
    since W&B's own steps only count messages. Its environment variables
    (`WANDB_MODE=offline`, `WANDB_ENTITY` and so on) mean what they always mean, and
    come before `PATIENCE`.

    Example:
        >>> WeightsAndBiases("federated", Path("runs/first")).project
        'federated'
    """

    def __init__(self, project: str, directory: Path) -> None:
        """Name W&B's project and the directory that W&B's files go to."""
        self.project = project
        self.directory = directory
        self._run: Any = None

    def begin(self, name: str, settings: Mapping[str, Any], resume: bool) -> None:
        """Find or make the W&B run, and give it the settings."""
        try:
            import wandb
        except ImportError as error:
            raise ImportError(
                "wandb is not installed; run: pip install 'fedbilevel[wandb]'"
            ) from error
        remembered = self.directory / RUN
        known = resume and remembered.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        ours = {
            one: seconds
            for one, seconds in PATIENCE.items()
            if f"WANDB_{one.upper()}" not in os.environ
        }
        try:
            self._run = wandb.init(
                project=self.project,
                dir=str(self.directory),
                name=name,
                id=remembered.read_text() if known else None,
                resume="allow" if known else None,
                config=dict(settings),
                allow_val_change=True,
                settings=wandb.Settings(**ours),
            )
        except wandb.Error as error:
            raise ConnectionError(
                f"Weights & Biases cannot be used: {first_line(error)} "
                "(WANDB_MODE=offline does without it)"
            ) from error
        remembered.write_text(self._run.id)
        self._run.define_metric("*", step_metric="rounds")

    def record(self, record: Record) -> None:
        """Hand over the numbers of a round; W&B sends them when it can."""
        self._run.log({"rounds": record.rounds, **numbers(record)})

    def end(self, outcome: Outcome) -> None:
        """Say how the run ended, and wait for what is still being sent."""
        self._run.finish(exit_code=EXIT_CODE[outcome])
