"""The checkpoints of a run: whole or not at all, and the same for all processes."""

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

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

logger = logging.getLogger("fedbilevel")
PATIENCE = 30 * 86_400
"""Seconds that a checkpoint may take: Orbax reads them off a clock that may jump."""
PREFIX = "round"
DAMAGED = "damaged"
TEMPORARY = ".orbax-checkpoint-tmp"
OUTCOMES = [type(None), DamageError, CheckpointError]
"""Of reading a checkpoint, the graver the later."""


class Store:
    """The checkpoints of one run in its directory.

    Example:
        >>> Store.__name__
        'Store'
    """

    def __init__(self, options: Checkpoints, configuration: Mapping[str, Any]) -> None:
        self.options = options
        self.directory = Path(options.directory).absolute()
        self.configuration = json.loads(json.dumps(configuration))
        self._scores: dict[int, float] = {}
        self._manager: ocp.CheckpointManager | None = None
        # That of the run is there before its checkpoints are.
        self._run_place = _status(self.directory.parent)
        self._place: os.stat_result | None = None

    @property
    def rounds(self) -> list[int]:
        """How many rounds each whole checkpoint has done, oldest first."""
        return multihost.first(sorted(self._whole()))

    def _whole(self) -> list[int]:
        found = self.directory.glob(f"{PREFIX}_*")
        numbers = [path.name.removeprefix(f"{PREFIX}_") for path in found]
        # Others are no name of ours: rounds are counted in 32 bits.
        whole = [int(one) for one in numbers if re.fullmatch("[0-9]{1,10}", one)]
        return [one for one in whole if one < 2**31]

    def due(self, rounds: int, last: int) -> bool:
        """Whether so many rounds are to have a checkpoint."""
        return rounds % self.options.every == 0 or rounds == last

    def save(self, progress: Progress) -> None:
        """Write a checkpoint in the background, as soon as the state is known.

        Raises:
            CheckpointError: if this one, or the one before, could not be written.
        """
        ocp = orbax()
        from fedbilevel.engines.checkpoints.orbax import SaveArrays

        self._check_place()
        manager = self._manager = self._manager or self._open(ocp)
        self._score(progress.history)
        notes = {
            "configuration": self.configuration,
            "costs": progress.costs._asdict(),
            "history": [dict(one) for one in progress.history],
            "exclusions": progress.exclusions,
        }
        with self._writing():
            saved = manager.save(
                progress.rounds,
                args=ocp.args.Composite(
                    state=SaveArrays(jax.tree.leaves(progress.state)),
                    notes=ocp.args.JsonSave(notes),
                ),
            )
        if not saved:
            raise CheckpointError(
                f"the checkpoint of {progress.rounds} rounds could not be written: "
                f"{self.directory} has got newer ones meanwhile. Let one run at a time "
                "use a directory."
            )

    def newest(self, state: RunState) -> Progress | None:
        """Return the newest checkpoint that can be used, in the form of a state.

        All processes use the same one. What is damaged is moved aside.

        Raises:
            CheckpointError: if it was made by a run that was asked something else.
        """
        orbax()
        for rounds in reversed(self.rounds):
            found, reason = self._agreed(rounds, state)
            if found is not None:
                self._score(found.history)
                return found
            directory = self._directory(rounds)
            aside = self._set_aside(directory)
            logger.warning(
                "skipped the checkpoint %s, now %s: %s", directory, aside.name, reason
            )
        if any(self.directory.glob(f"{DAMAGED}_*")):
            logger.warning("%s has no checkpoint that can be used", self.directory)
        return None

    def best(self, state: RunState) -> Progress | None:
        """Return the checkpoint with the smallest number asked for, if there is any."""
        if self.newest(state) is None:
            return None
        rounds = self._best_of(self.rounds)
        if rounds is None:
            return None
        found, reason = self._agreed(rounds, state)
        if found is None:
            raise CheckpointError(
                f"the best checkpoint, {self._directory(rounds)}: {reason}"
            )
        return found

    def close(self) -> None:
        """Wait for what is being written.

        Raises:
            CheckpointError: if it could not be written.
        """
        if self._manager is not None:
            with self._writing():
                self._manager.close()
            self._manager = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say in a sentence what went wrong with writing, here or in the background."""
        try:
            yield
        except Exception as error:  # of files, of arrays, or of Orbax's threads
            failed, self._manager = self._manager, None
            with suppress(Exception):
                assert failed is not None
                failed.close()
            # A directory that has gone is the cause, whatever it made Orbax stumble over.
            self._check_place()
            whole = self._whole()
            then = (
                f"goes on from the newest that is whole, of {max(whole)} rounds"
                if whole
                else "begins anew, as no other is whole"
            )
            raise CheckpointError(
                f"a checkpoint could not be written to {self.directory}: {_cause(error)}; "
                f"put that right and call resume, which {then}."
            ) from error

    def _check_place(self) -> None:
        """Refuse to write into a directory that has taken the place of the run's own."""
        self._place = self._place or _status(self.directory)
        places = (self.directory, self._place), (self.directory.parent, self._run_place)
        if not all(_is_still(path, before) for path, before in places):
            raise CheckpointError(
                f"{self.directory} was moved or replaced while a run was going on in it, "
                "so the run was stopped; put it back and call resume."
            )

    def _directory(self, rounds: int) -> Path:
        return self.directory / f"{PREFIX}_{rounds}"

    def _agreed(self, rounds: int, state: RunState) -> tuple[Progress | None, str]:
        """Return a checkpoint that all processes can use, or none and why not."""
        found, trouble = self._try(rounds, state)
        outcome = multihost.worst(OUTCOMES.index(type(trouble)))
        reason = str(trouble or "another process could not use it")
        if OUTCOMES[outcome] is CheckpointError:
            raise CheckpointError(f"the checkpoint {self._directory(rounds)}: {reason}")
        return (None if outcome else found), reason

    def _try(
        self, rounds: int, state: RunState
    ) -> tuple[Progress | None, DamageError | CheckpointError | None]:
        """Return a checkpoint, or what is the matter with it here."""
        directory = self._directory(rounds)
        try:
            notes = verified_notes(directory)
            found = differences(notes["configuration"], self.configuration)
            if found:
                return None, CheckpointError(
                    f"it is of another run: {'; '.join(found[:5])}. Resume with the "
                    "same settings, or give the new run its own directory."
                )
            read = read_state(directory, state)
        except DamageError as error:
            return None, error
        except OSError as error:
            what = error.strerror or type(error).__name__
            return None, CheckpointError(
                f"it cannot be read: {error.filename or directory}: {what}; get the right "
                "to it, or put its files back."
            )
        if read is None:
            return None, CheckpointError(
                "its arrays have other shapes or types than those of this run; resume "
                "with the version that wrote it."
            )
        costs, history = Costs(**notes["costs"]), tuple(notes["history"])
        exclusions = notes.get("exclusions")
        return Progress(rounds, read, costs, history, exclusions), None

    def _set_aside(self, directory: Path) -> Path:
        """Give a checkpoint another name: under its own it would be in the way."""
        number = 0
        while (
            aside := directory.with_name(f"{DAMAGED}_{number}_{directory.name}")
        ).exists():
            number += 1
        multihost.worst(0)  # all have looked
        if jax.process_index() == 0:
            directory.rename(aside)
        multihost.worst(0)  # it is done
        return aside

    def _score(self, history: Sequence[Mapping[str, float | int]]) -> None:
        best = self.options.best
        for one in history:
            value = one.get(best) if best is not None else None
            if value is not None and math.isfinite(value):
                self._scores[int(one["round"]) + 1] = value

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: Any
    ) -> list[bool]:
        """Return which checkpoints to keep: the newest, and the best of all."""
        steps = [one.step for one in checkpoints]
        kept = {*sorted(steps)[-self.options.keep :], self._best_of(steps)}
        return [step in kept for step in steps]

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
                    timeout_secs=PATIENCE,
                    # It would be waited for by that clock, and for less.
                    create_directories_asynchronously=False,
                    post_finalization_callback=self._write_digests,
                ),
            ),
        )

    def _write_digests(self) -> None:
        # Called when all files are written and before the directory gets its name.
        if jax.process_index() == 0:
            for directory in self.directory.glob(f"{PREFIX}_*{TEMPORARY}"):
                write_digests(directory)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _is_still(path: Path, before: os.stat_result | None) -> bool:
    """Whether a path leads to the same directory as before, if there was one."""
    now = _status(path)
    return before is None or (now is not None and samestat(now, before))


def _cause(error: Exception) -> str:
    """Return what the system said, of all that was said about it."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
