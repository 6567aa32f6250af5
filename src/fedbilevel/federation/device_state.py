"""Device states, kept between exchanges and across restarts."""

import os
from pathlib import Path

import jax
import numpy as np

from fedbilevel.algorithms.protocol import Private
from fedbilevel.atomic_write import atomic_write
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation.transport import FailureCause, RefusedError
from fedbilevel.federation.wire_format import decode, encode, pack, unpack

MAX_STATES = 64
"""States that a device keeps, since the server may go back to its last checkpoint."""


class LostStateError(RefusedError):
    """The state that a task names is lost: the device restarts from its first state.

    Example:
        >>> LostStateError("the state is damaged").failure.cause
        <FailureCause.LOST_STATE: 'lost state'>
    """

    cause = FailureCause.LOST_STATE


class DeviceStates:
    """The states of a device, by the exchange that produced them.

    Each exchange has its own state, so that a late or repeated task changes no other.

    Args:
        first: state before the first exchange.
        directory: directory in which states outlive the process; None to keep them in
            memory.

    Example:
        >>> states = DeviceStates(first=np.zeros(2), directory=None)
        >>> states.put("a1", Moment(0, 0), np.ones(2))
        >>> states.get("a1", Moment(0, 0))
        array([1., 1.])
    """

    def __init__(self, first: Private, directory: Path | None) -> None:
        self._first = first
        self._directory = directory
        self._states: dict[tuple[str, Moment], bytes] = {}
        self.stateful = bool(jax.tree.leaves(first))

    def get(self, run: str, after: Moment | None) -> Private:
        """Return the state after an exchange, or the first state.

        Raises:
            RefusedError: if the state is lost or cannot be read.
        """
        if not self.stateful or after is None:
            return self._first
        name = f"the device state after round {after[0]}, exchange {after[1]}"
        try:
            message = self._read(run, after)
        except OSError as error:
            reason = f"{name} cannot be read: {error.strerror}"
            raise RefusedError(reason) from error
        if message is None:
            raise LostStateError(
                f"{name} is lost; the device restarts from its first state"
            )
        try:
            return unpack(decode(message), self._first)
        except RefusedError as error:
            reason = f"{name} is damaged; the device restarts from its first state"
            raise LostStateError(reason) from error

    def put(self, run: str, after: Moment, state: Private) -> None:
        """Save a state; beyond 64, the least recently used one is removed.

        Raises:
            RefusedError: if the state cannot be written.
        """
        if not self.stateful:
            return
        message = encode(pack(jax.tree.map(np.asarray, state)))
        if self._directory is None:
            self._states.pop((run, after), None)
            self._states[run, after] = message
            of_run = [item for item in self._states if item[0] == run]
            for item in of_run[:-MAX_STATES]:
                del self._states[item]
            return
        file = self._file(run, after)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, message)
            _mark_as_used(file)
            for oldest in _by_use(file.parent)[:-MAX_STATES]:
                oldest.unlink(missing_ok=True)
        except OSError as error:
            reason = f"the device state cannot be written: {error.strerror}"
            raise RefusedError(reason) from error

    def _read(self, run: str, after: Moment) -> bytes | None:
        if self._directory is None:
            message = self._states.pop((run, after), None)
            if message is not None:
                self._states[run, after] = message  # now the most recently used
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
    """Return the states of a directory, the least recently used first."""
    return sorted(directory.glob("after-*"), key=lambda file: file.stat().st_mtime_ns)


def _mark_as_used(file: Path) -> None:
    # Later than all others, even if the clock has jumped.
    others = (other.stat().st_mtime_ns for other in file.parent.glob("after-*"))
    mark = max(others, default=0) + 1
    os.utime(file, ns=(mark, mark))
