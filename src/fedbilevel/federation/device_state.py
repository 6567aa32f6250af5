"""What a device keeps for itself between exchanges, and beyond a restart."""

import os
from pathlib import Path

import jax
import numpy as np

from fedbilevel.algorithms.protocol import Private
from fedbilevel.atomic_write import atomic_replace
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation.transport import Cause, RefusedError
from fedbilevel.federation.wire_format import decode, encode, packed, unpacked

MOST = 64
"""States that a device keeps: the server may go back to its last checkpoint."""


class LostStateError(RefusedError):
    """A device has no state to go on from, and can only begin afresh.

    Example:
        >>> LostStateError("what it kept is damaged").failure.cause
        <Cause.LOST_STATE: 'lost state'>
    """

    cause = Cause.LOST_STATE


class DeviceStates:
    """A device's private states, by the exchange after which it had them.

    Each exchange has its own, so that one that comes late, or twice, spoils no other.

    Args:
        first: the state of a device that has not taken part yet.
        directory: of the device, where states outlive its process; none to keep them in
            memory only.

    Example:
        >>> kept = DeviceStates(first=np.zeros(2), directory=None)
        >>> kept.put("a1", Moment(0, 0), np.ones(2))
        >>> kept.get("a1", Moment(0, 0))
        array([1., 1.])
    """

    def __init__(self, first: Private, directory: Path | None) -> None:
        self._first = first
        self._directory = directory
        self._states: dict[tuple[str, Moment], bytes] = {}
        self.stateful = bool(jax.tree.leaves(first))

    def get(self, run: str, after: Moment | None) -> Private:
        """Return the state after an exchange, or the first.

        Raises:
            RefusedError: if it is not there any more, or cannot be read.
        """
        if not self.stateful or after is None:
            return self._first
        what = f"what it kept after round {after[0]}, exchange {after[1]}"
        try:
            message = self._read(run, after)
        except OSError as error:
            reason = f"{what} cannot be read: {error.strerror}"
            raise RefusedError(reason) from error
        if message is None:
            raise LostStateError(f"{what} is lost; it can only begin afresh")
        try:
            return unpacked(decode(message), self._first)
        except RefusedError as error:
            words = f"{what} is damaged; it can only begin afresh"
            raise LostStateError(words) from error

    def put(self, run: str, after: Moment, state: Private) -> None:
        """Keep a state; of too many, the one used longest ago is forgotten.

        Raises:
            RefusedError: if it cannot be written.
        """
        if not self.stateful:
            return
        message = encode(packed(jax.tree.map(np.asarray, state)))
        if self._directory is None:
            self._states.pop((run, after), None)
            self._states[run, after] = message
            of_run = [one for one in self._states if one[0] == run]
            for one in of_run[:-MOST]:
                del self._states[one]
            return
        file = self._file(run, after)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_replace(file) as unfinished:
                unfinished.write_bytes(message)
            _mark_as_used(file)
            for oldest in _by_use(file.parent)[:-MOST]:
                oldest.unlink(missing_ok=True)
        except OSError as error:
            reason = f"it cannot write down what it keeps: {error.strerror}"
            raise RefusedError(reason) from error

    def _read(self, run: str, after: Moment) -> bytes | None:
        if self._directory is None:
            message = self._states.pop((run, after), None)
            if message is not None:
                self._states[run, after] = message  # the newest in use
            return message
        file = self._file(run, after)
        try:
            message = file.read_bytes()
            _mark_as_used(file)
        except FileNotFoundError:
            return None
        return message

    def _file(self, run: str, after: Moment) -> Path:
        assert self._directory is not None
        return self._directory / run / f"after-{after[0]}-{after[1]}"


def _by_use(directory: Path) -> list[Path]:
    """Return the states of a directory, the one used longest ago first."""
    return sorted(directory.glob("after-*"), key=lambda one: one.stat().st_mtime_ns)


def _mark_as_used(file: Path) -> None:
    # Later than all others, whatever the clock shows.
    others = (one.stat().st_mtime_ns for one in file.parent.glob("after-*"))
    mark = max(others, default=0) + 1
    os.utime(file, ns=(mark, mark))
