"""The inspection of finished rounds: excluded devices, missing noise, notices."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from fedbilevel.algorithms.notices import notices_of
from fedbilevel.algorithms.protocol import Server
from fedbilevel.data.devices import Devices
from fedbilevel.data.weights import names_of
from fedbilevel.engines.exclusions import ExclusionCounts
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.protocol import Participants, Report
from fedbilevel.engines.spending import Spending

logger = logging.getLogger("fedbilevel")
MOST_NAMED = 20
"""The most devices that one warning names."""


class NoUploadsError(ArithmeticError):
    """A run stopped because no upload of an exchange was accepted."""


class FinishedRound(NamedTuple):
    """A round whose arrays may still be being computed.

    Attributes:
        number: number of the round.
        participants: devices selected for the round.
        reports: function that returns the reports of the exchanges.
        notices: function that returns the numbers of the server state's notices.
    """

    number: int
    participants: Participants
    reports: Callable[[], tuple[Report, ...]]
    notices: Callable[[], Mapping[str, int]]


class Inspection:
    """The rounds of a run that have not been inspected, and the counts of all others.

    Args:
        counts: exclusion counts of earlier rounds, updated in place.
        limits: limits of the uploads, for the messages.
        spending: privacy that the run spends; None without noise.
        server: server state before the first of these rounds.
        devices: devices of the run, for their names; None to name them by numbers.

    Attributes:
        counts: exclusion counts of all inspected rounds.
    """

    def __init__(
        self,
        counts: ExclusionCounts,
        limits: Limits,
        spending: Spending | None,
        server: Server,
        devices: Devices | None = None,
    ) -> None:
        self.counts, self._devices = counts, devices
        self._limits, self._spending = limits, spending
        self._noticed = count_notices(server)
        self._pending: deque[FinishedRound] = deque()

    def add(self, rounds: Iterable[FinishedRound]) -> None:
        """Note rounds to inspect later."""
        self._pending.extend(rounds)

    def inspect(self, most: int) -> None:
        """Inspect rounds until at most a number of them is left.

        Raises:
            NoUploadsError: if an exchange has too few uploads.
        """
        while len(self._pending) > most:
            number, participants, reports_of, notices_of_round = self._pending.popleft()
            reports = reports_of()
            count_excluded(
                number,
                reports,
                participants.present,
                self.counts,
                self._limits,
                self._devices,
            )
            _require_noise(number, reports, self._spending)
            notices = notices_of_round()
            for message, count in notices.items():
                if count > self._noticed.get(message, 0):
                    logger.warning("Round %d: %s", number, message)
            self._noticed = notices


def count_notices(server: Server) -> Mapping[str, int]:
    """Return the numbers of a server state's notices, by message.

    Example:
        >>> count_notices(1.0)
        {}
    """
    return {message: int(count) for message, count in notices_of(server).items()}


def count_excluded(
    round_number: int,
    reports: tuple[Report, ...],
    participants: Int[np.ndarray, "participants"],
    counts: ExclusionCounts,
    limits: Limits = NO_LIMITS,
    devices: Devices | None = None,
) -> None:
    """Count the devices that a round excluded, and raise if it excluded all.

    A warning names a device when it is excluded for the first time, and whenever its
    count has doubled since.

    Args:
        round_number: number of the round.
        reports: reports of the exchanges of the round.
        participants: device numbers selected for the round.
        counts: exclusion counts of the run, updated in place.
        limits: limits of the uploads, for the messages.
        devices: devices of the run, for their names; None to name them by numbers.

    Raises:
        NoUploadsError: if every device of an exchange was excluded.

    Example:
        >>> devices, none = np.array([0, 1]), np.array([False, False])
        >>> report = Report(devices, ~none, (none,), {}, 0.0)
        >>> count_excluded(3, (report,), devices, ExclusionCounts(2))
        Traceback (most recent call last):
        ...
        fedbilevel.engines.inspection.NoUploadsError: Round 3, exchange 0: 0 of 2
        uploads were accepted: upload is not finite. Lower the step size that is too
        large (fedbilevel.metrics.find_instabilities names it), or use DebugSimulation
        to find the first value that is not finite.
    """
    remedies = [limits.cure] if limits.cure else []
    if not round_number:
        remedies.append("look for examples that are not finite")
    remedies.append(
        "lower the step size that is too large "
        "(fedbilevel.metrics.find_instabilities names it)"
    )
    remedy = ", ".join(remedies)
    excluded: dict[int, tuple[int, str | None]] = {}
    for exchange, report in enumerate(reports):
        if any(isinstance(piece, jax.core.Tracer) for piece in report.counted):
            return  # A run inside a traced function has no values to inspect.
        contacted = report.devices[report.present]
        if len(contacted) < len(participants):
            for device in np.setdiff1d(participants, contacted).tolist():
                excluded.setdefault(device, (exchange, "was not contacted"))
        if not len(report.excluded):
            continue
        if len(report.excluded) == len(contacted):
            raise NoUploadsError(
                f"Round {round_number}, exchange {exchange}: 0 of {len(contacted)} "
                f"uploads were accepted: {limits.violation}. "
                f"{remedy[0].upper()}{remedy[1:]}, or use DebugSimulation to find the "
                "first value that is not finite."
            )
        for device in report.excluded.tolist():
            excluded.setdefault(device, (exchange, report.reasons.get(device)))
    due = counts.add(participants, excluded)
    # Numbers as names would be a million texts.
    names = None if devices is None or not due else names_of(devices)
    for exchange in sorted({excluded[device][0] for device in due}):
        reasons = {
            device: excluded[device][1]
            for device in due
            if excluded[device][0] == exchange
        }
        where = f"Round {round_number}, exchange {exchange}"
        _warn(where, reasons, counts, limits, names)


def _warn(
    where: str,
    devices: Mapping[int, str | None],
    counts: ExclusionCounts,
    limits: Limits,
    names: Sequence[str] | None,
) -> None:
    more = len(devices) - MOST_NAMED
    others = f" and {more} more" if more > 0 else ""
    by_reason: dict[str, list[str]] = {}
    for device, reason in sorted(devices.items())[:MOST_NAMED]:
        count = counts.of(device)
        shown = device if names is None else names[device]
        name = f"device {shown} (in {count.excluded} of its {count.rounds} rounds)"
        by_reason.setdefault(reason or limits.violation, []).append(name)
    named = "; ".join(
        f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()
    )
    logger.warning("%s: excluded %s%s", where, named, others)


def _require_noise(
    number: int, reports: tuple[Report, ...], spending: Spending | None
) -> None:
    """Raise if fewer devices than planned have added their noise."""
    if spending is None or spending.fewest == 1:
        return
    for exchange, report in enumerate(reports):
        count = len(report.contributors)
        if count < spending.fewest:
            raise NoUploadsError(
                f"Round {number}, exchange {exchange}: {count} of "
                f"{spending.fewest} uploads of DeviceNoise were accepted, so the mean "
                "has less noise than ε is computed for. Find out why devices are "
                "excluded, or lower DeviceNoise.devices."
            )
