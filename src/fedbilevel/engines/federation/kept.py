"""What a device keeps for itself between exchanges, and beyond a restart."""

from pathlib import Path

import jax
import numpy as np

from fedbilevel.algorithms.protocol import Private
from fedbilevel.engines.federation.messages import (
    RefusedError,
    decode,
    encode,
    packed,
    unpacked,
)

MOST = 64
"""States that a device keeps: the server may go back to its last checkpoint."""


class KeptStates:
    """A device's private states, by how many of its exchanges had counted before.

    Args:
        first: the state of a device that has not taken part yet.
        folder: of the device, where states outlive its process; none to keep them in
            memory only.

    Example:
        >>> kept = KeptStates(first=np.zeros(2), folder=None)
        >>> kept.put("a1", 1, np.ones(2))
        >>> kept.get("a1", 1)
        array([1., 1.])
    """

    def __init__(self, first: Private, folder: Path | None) -> None:
        self._first = first
        self._folder = folder
        self._states: dict[tuple[str, int], bytes] = {}
        self.stateful = bool(jax.tree.leaves(first))

    def get(self, run: str, counted: int) -> Private:
        """Return the state after so many exchanges that counted.

        Raises:
            RefusedError: if it is not there any more.
        """
        if not self.stateful or not counted:
            return self._first
        message = self._states.get((run, counted))
        try:
            if message is None and self._folder is not None:
                message = self._file(run, counted).read_bytes()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise RefusedError(
                f"what it kept after {counted} exchanges cannot be read: "
                f"{error.strerror}"
            ) from error
        if message is None:
            raise RefusedError(
                f"what it kept after {counted} exchanges is lost; begin the run anew, "
                f"with a checkpoint at least every {MOST} exchanges"
            )
        try:
            return unpacked(decode(message), self._first)
        except RefusedError as error:
            raise RefusedError(
                f"what it kept after {counted} exchanges is damaged; begin the run anew"
            ) from error

    def put(self, run: str, counted: int, state: Private) -> None:
        """Keep a state; the oldest is forgotten.

        Raises:
            RefusedError: if it cannot be written.
        """
        if not self.stateful:
            return
        message = encode(packed(jax.tree.map(np.asarray, state)))
        if self._folder is None:
            self._states[run, counted] = message
            self._states.pop((run, counted - MOST), None)
            return
        file = self._file(run, counted)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished")
            unfinished.write_bytes(message)
            unfinished.replace(file)
            self._file(run, counted - MOST).unlink(missing_ok=True)
        except OSError as error:
            raise RefusedError(
                f"it cannot write down what it keeps: {error.strerror}"
            ) from error

    def _file(self, run: str, counted: int) -> Path:
        assert self._folder is not None
        return self._folder / run / f"after-{counted}"
