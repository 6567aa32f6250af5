"""A checkpoint store on local disk: complete checkpoints, shared by all processes."""

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os.path import samestat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from fedbilevel.engines import multihost
from fedbilevel.engines.checkpoints.digests import (
    DamageError,
    orbax,
    read_state,
    verified_notes,
    write_digests,
)
from fedbilevel.engines.checkpoints.options import (
    CheckpointError,
    Checkpoints,
    Progress,
)
from fedbilevel.engines.costs import Costs
from fedbilevel.engines.fingerprint import differences
from fedbilevel.engines.protocol import RunState
from fedbilevel.mathematics.arrays import on_host
from fedbilevel.plurals import count_noun

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

logger = logging.getLogger("fedbilevel")
WRITE_TIMEOUT = 30 * 86_400
"""Timeout in seconds of writing a checkpoint: Orbax uses a clock that may jump."""
PREFIX = "round"
DAMAGED = "damaged"
TEMPORARY = ".orbax-checkpoint-tmp"
OUTCOMES = [type(None), DamageError, CheckpointError]
"""The outcomes of reading a checkpoint, the worst last."""


class Store:
    """The checkpoints of one run in its directory."""

    def __init__(self, options: Checkpoints, configuration: Mapping[str, Any]) -> None:
        self.options = options
        self.directory = Path(options.directory).absolute()
        self.configuration = json.loads(json.dumps(configuration))
        self.secret_digest: str | None = None
        self._scores: dict[int, float] = {}
        self._manager: ocp.CheckpointManager | None = None
        # The run directory exists before its directory of checkpoints.
        self._run_status = _status(self.directory.parent)
        self._status: os.stat_result | None = None

    @property
    def rounds(self) -> list[int]:
        """The number of finished rounds of each complete checkpoint, oldest first."""
        return multihost.first(sorted(self._complete()))

    def _complete(self) -> list[int]:
        paths = self.directory.glob(f"{PREFIX}_*")
        names = [path.name.removeprefix(f"{PREFIX}_") for path in paths]
        # Round numbers have 32 bits, so this class writes no larger ones.
        numbers = [int(name) for name in names if re.fullmatch("[0-9]{1,10}", name)]
        return [number for number in numbers if number < 2**31]

    def due(self, rounds: int, last: int) -> bool:
        """Return whether a checkpoint is due after a number of rounds."""
        return rounds % self.options.every == 0 or rounds == last

    def save(self, progress: Progress) -> None:
        """Write a checkpoint in the background, once the state is computed.

        Raises:
            CheckpointError: if this checkpoint or the previous one could not be
                written.
        """
        ocp = orbax()
        from fedbilevel.engines.checkpoints.orbax import SaveArrays

        self._check_directory()
        manager = self._manager = self._manager or self._open(ocp)
        self._score(progress.history)
        notes = {
            "configuration": self.configuration,
            "costs": progress.costs._asdict(),
            "history": [dict(metrics) for metrics in progress.history],
            "exclusions": progress.exclusions,
            "secret_digest": self.secret_digest,
        }
        leaves = list(map(on_host, jax.tree.leaves(progress.state)))
        with self._writing():
            success = manager.save(
                progress.rounds,
                args=ocp.args.Composite(
                    state=SaveArrays(leaves),
                    notes=ocp.args.JsonSave(notes),
                ),
            )
        if not success:
            raise CheckpointError(
                f"The checkpoint of {count_noun(progress.rounds, 'round')} was not "
                "written, because another run has written newer ones to "
                f"{self.directory}. Give each run its own directory."
            )

    def newest(self, state: RunState) -> Progress | None:
        """Return the newest readable checkpoint, in the form of a state.

        All processes use the same checkpoint. Damaged checkpoints are renamed.

        Raises:
            CheckpointError: if the checkpoint belongs to a run with other arguments.
        """
        orbax()
        for rounds in reversed(self.rounds):
            progress, reason = self._read_everywhere(rounds, state)
            if progress is not None:
                self._score(progress.history)
                return progress
            directory = self._directory(rounds)
            renamed = self._rename_damaged(directory)
            logger.warning(
                "Skipped the damaged checkpoint %s and renamed it to %s: %s",
                directory,
                renamed.name,
                reason,
            )
        if any(self.directory.glob(f"{DAMAGED}_*")):
            logger.warning("%s has no readable checkpoint.", self.directory)
        return None

    def best(self, state: RunState) -> Progress | None:
        """Return the checkpoint with the smallest metric `best`, or None."""
        if self.newest(state) is None:
            return None
        rounds = self._best_of(self.rounds)
        if rounds is None:
            return None
        progress, reason = self._read_everywhere(rounds, state)
        if progress is None:
            raise CheckpointError(
                f"The best checkpoint, {self._directory(rounds)}, is damaged: {reason}"
            )
        return progress

    def close(self) -> None:
        """Wait until all checkpoints are written.

        Raises:
            CheckpointError: if a checkpoint could not be written.
        """
        if self._manager is not None:
            with self._writing():
                self._manager.close()
            self._manager = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise any error of writing, here or in the background, as CheckpointError."""
        try:
            yield
        except Exception as error:  # of files, of arrays, or of Orbax's threads
            manager, self._manager = self._manager, None
            with suppress(Exception):
                assert manager is not None
                manager.close()
            # A missing directory is the cause, whichever error Orbax raised.
            self._check_directory()
            complete = self._complete()
            start = (
                "continues from the newest complete checkpoint, of "
                f"{count_noun(max(complete), 'round')}"
                if complete
                else "starts at round 0, because no checkpoint is complete"
            )
            raise CheckpointError(
                f"A checkpoint could not be written to {self.directory}: "
                f"{_cause(error)}. Correct this and call resume, which {start}."
            ) from error

    def _check_directory(self) -> None:
        """Raise CheckpointError if another directory has replaced that of the run."""
        self._status = self._status or _status(self.directory)
        if not (
            _is_same(self.directory, self._status)
            and _is_same(self.directory.parent, self._run_status)
        ):
            raise CheckpointError(
                f"{self.directory} was moved or replaced during the run, so the run "
                "was stopped. Move it back and call resume."
            )

    def _directory(self, rounds: int) -> Path:
        return self.directory / f"{PREFIX}_{rounds}"

    def _read_everywhere(
        self, rounds: int, state: RunState
    ) -> tuple[Progress | None, str]:
        """Return a checkpoint that all processes can read, or None and the reason."""
        progress, error = self._read(rounds, state)
        outcome = multihost.worst(OUTCOMES.index(type(error)))
        reason = str(error or "Another process could not read it.")
        if OUTCOMES[outcome] is CheckpointError:
            raise CheckpointError(f"Checkpoint {self._directory(rounds)}: {reason}")
        return (None if outcome else progress), reason

    def _read(
        self, rounds: int, state: RunState
    ) -> tuple[Progress | None, DamageError | CheckpointError | None]:
        """Return a checkpoint, or the error of reading it in this process."""
        directory = self._directory(rounds)
        try:
            notes = verified_notes(directory)
            changes = differences(notes["configuration"], self.configuration)
            if changes:
                return None, CheckpointError(
                    f"It belongs to another run: {'; '.join(changes[:5])}. Resume with "
                    "the same settings, or give the new run its own directory."
                )
            arrays = read_state(directory, state)
        except DamageError as error:
            return None, error
        except OSError as error:
            reason = error.strerror or type(error).__name__
            return None, CheckpointError(
                f"{error.filename or directory} cannot be read: {reason}. Change its "
                "permissions, or restore its files."
            )
        if arrays is None:
            return None, CheckpointError(
                "Its arrays have other shapes or dtypes than those of this run. Resume "
                "with the version of fedbilevel that wrote it."
            )
        costs, history = Costs(**notes["costs"]), tuple(notes["history"])
        exclusions = notes.get("exclusions")
        secret = notes.get("secret_digest")
        return Progress(rounds, arrays, costs, history, exclusions, secret), None

    def _rename_damaged(self, directory: Path) -> Path:
        """Rename a damaged checkpoint, so that a new one can have its name."""
        number = 0
        while (
            renamed := directory.with_name(f"{DAMAGED}_{number}_{directory.name}")
        ).exists():
            number += 1
        multihost.worst(0)  # All processes have found the same name.
        if jax.process_index() == 0:
            directory.rename(renamed)
        multihost.worst(0)  # The directory is renamed.
        return renamed

    def _score(self, history: Sequence[Mapping[str, float | int]]) -> None:
        best = self.options.best
        for metrics in history:
            value = metrics.get(best) if best is not None else None
            if value is not None and math.isfinite(value):
                self._scores[int(metrics["round"]) + 1] = value

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> list[bool]:
        """Return a mask of the checkpoints to keep: the newest, and the best."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        selection = {*sorted(steps)[-self.options.keep :], self._best_of(steps)}
        return [step in selection for step in steps]

    def _best_of(self, steps: Sequence[int]) -> int | None:
        scored = [step for step in steps if step in self._scores]
        return min(scored, key=self._scores.__getitem__, default=None)

    def _open(self, ocp: Any) -> "ocp.CheckpointManager":
        from fedbilevel.engines.checkpoints.orbax import TemporaryDirectory

        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                step_prefix=PREFIX,
                preservation_policy=self,
                cleanup_tmp_directories=True,
                save_root_metadata=False,
                temporary_path_class=TemporaryDirectory,
                async_options=ocp.AsyncOptions(
                    timeout_secs=WRITE_TIMEOUT,
                    # Otherwise Orbax waits by that clock, with a shorter timeout.
                    create_directories_asynchronously=False,
                    post_finalization_callback=self._write_digests,
                ),
            ),
        )

    def _write_digests(self) -> None:
        # Orbax calls it after all files are written and before the final rename.
        if jax.process_index() == 0:
            for directory in self.directory.glob(f"{PREFIX}_*{TEMPORARY}"):
                write_digests(directory)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _is_same(path: Path, before: os.stat_result | None) -> bool:
    """Return whether a path is the same directory as before, if it existed."""
    status = _status(path)
    return before is None or (status is not None and samestat(status, before))


def _cause(error: Exception) -> str:
    """Return the reason that the operating system gave, or a short error text."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
