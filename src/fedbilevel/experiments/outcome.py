"""The outcome of a run: the change of its upper loss, and its excluded devices."""

import json
from collections.abc import Sequence
from enum import Enum
from math import isfinite, nan
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.engines.exclusions import DeviceExclusions, Exclusions
from fedbilevel.experiments.run_directory.failures import (
    divergence,
    growth,
)
from fedbilevel.experiments.run_directory.layout import CAUSE
from fedbilevel.metrics.losses import LOSS, TRAINING_LOSS
from fedbilevel.metrics.registry import title_of
from fedbilevel.plurals import count_noun
from fedbilevel.regular_files import read_regular
from fedbilevel.tracking.records import Record

ROUNDING = 1e-6
"""A loss is unchanged if it differs by at most this share of the larger of the two."""
BAD = 3
"""The exit code of a run whose outcome is bad."""


class Change(Enum):
    """The change of the upper loss from the start to the end of a run."""

    IMPROVED = "improved"
    UNCHANGED = "unchanged"
    WORSE = "worse than at the start"
    DIVERGED = "diverged"
    UNKNOWN = "not measured"


class Outcome(NamedTuple):
    """The outcome of a run.

    Attributes:
        change: change of the upper loss.
        excluded: devices that were excluded in more than half of their rounds, at most
            20.
        reasons: reasons why the outcome is bad, one sentence each; empty for a good
            outcome.
        more_excluded: number of other devices that were excluded in more than half of
            their rounds.

    Example:
        >>> Outcome(Change.IMPROVED, (), ()).is_good
        True
    """

    change: Change
    excluded: tuple[DeviceExclusions, ...]
    reasons: tuple[str, ...]
    more_excluded: int = 0

    @property
    def is_good(self) -> bool:
        """True if no reason makes the outcome bad."""
        return not self.reasons

    @property
    def line(self) -> str:
        """The outcome as JSON."""
        return json.dumps(
            {
                "outcome": self.change.value,
                "excluded": {item.device: item.excluded for item in self.excluded},
                "more_excluded": self.more_excluded,
                "reasons": self.reasons,
            }
        )


def outcome_of(
    records: Sequence[Record],
    devices: Sequence[str] | None = None,
    cause: str | None = None,
) -> Outcome:
    """Return the outcome of a run.

    A run is worse if its upper loss is higher at the end than at the start;
    `divergence` decides whether it has diverged. A difference of at most a millionth
    of the larger value may be rounding: the loss is unchanged.

    A device is listed as excluded if its upload was excluded in more than half of the
    rounds in which it was a participant, and in at least three of them (in a shorter
    run: in all of its rounds).

    Args:
        records: records of the run, oldest first, at least one.
        devices: names of the devices, by number; default: the numbers.
        cause: cause of a divergence, if it was found.

    Example:
        >>> from fedbilevel import Costs
        >>> losses = enumerate([0.5, 0.2, 0.7])
        >>> records = [Record(n, 1.0, Costs(), {"loss": loss}) for n, loss in losses]
        >>> outcome_of(records).reasons
        ('worse than at the start: the validation loss was 0.5 and is 0.7; the lowest
          was 0.2, after 1 round.',)
    """
    first, last = records[0].metrics, records[-1].metrics
    change, reasons = _change(first.get(LOSS.name, nan), last.get(LOSS.name)), []
    not_finite = [
        title_of(name)
        for name, value in last.items()
        if name != LOSS.name and not isfinite(value) and isfinite(first.get(name, nan))
    ]
    if divergence(records) is not None:
        change = Change.DIVERGED
    if change in (Change.WORSE, Change.DIVERGED):
        details = [_losses(records)] if LOSS.name in last else []
        details += [f"the {name} is not finite" for name in not_finite]
        lower = growth(records, TRAINING_LOSS.name)
        details += [lower.reason] if lower is not None else []
        reasons.append(f"{change.value}: {'; '.join(details)}.")
    exclusions = records[-1].exclusions
    excluded = tuple(
        item for item in exclusions.devices if item.is_frequent(records[-1].rounds)
    )
    # The number is 0 in records that were written by older versions.
    more = max(0, exclusions.frequent - len(excluded))
    reasons += _sentences(exclusions, excluded, more, devices)
    if cause is not None and reasons:
        reasons.append(cause)
    return Outcome(change, excluded, tuple(reasons), more)


def _change(first: float, last: float | None) -> Change:
    if last is None:
        return Change.UNKNOWN
    if not isfinite(last):
        return Change.DIVERGED
    if not isfinite(first):
        return Change.IMPROVED
    if abs(last - first) <= ROUNDING * max(abs(first), abs(last)):
        return Change.UNCHANGED
    return Change.WORSE if last > first else Change.IMPROVED


def _losses(records: Sequence[Record]) -> str:
    first, last = records[0].metrics[LOSS.name], records[-1].metrics[LOSS.name]
    best = min(records, key=_loss)
    text = f"the {LOSS.title} was {first:.4g} and is {last:.4g}"
    if best.rounds > records[0].rounds and best.metrics[LOSS.name] < min(first, last):
        rounds = count_noun(best.rounds, "round")
        return f"{text}; the lowest was {_loss(best):.4g}, after {rounds}"
    return text


def _loss(record: Record) -> float:
    value = record.metrics.get(LOSS.name, nan)
    return value if isfinite(value) else float("inf")


def _sentences(
    exclusions: Exclusions,
    excluded: Sequence[DeviceExclusions],
    more: int,
    names: Sequence[str] | None,
) -> list[str]:
    if not excluded:
        if 2 * exclusions.excluded <= exclusions.participations:
            return []
        return [
            f"{exclusions.excluded} of {exclusions.participations} uploads were "
            "excluded: the result uses only the others."
        ]
    details = [
        f"{names[item.device] if names else f'device {item.device}'} was excluded in "
        f"{item.excluded} of its {item.rounds} rounds"
        for item in excluded
    ]
    if more:
        details.append(f"and {more} more in more than half of their rounds")
    others = exclusions.enrolled - len(excluded) - more
    noun = "device" if others == 1 else "devices"
    return [f"{'; '.join(details)}: the result uses only the other {others} {noun}."]


def write_cause(directory: Path, cause: str) -> None:
    """Write the cause of a divergence to the run directory.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_cause(directory, "the lower step was too large.")
        >>> read_cause(directory)
        'the lower step was too large.'
    """
    atomic_write(directory / CAUSE, cause)


def read_cause(directory: Path) -> str | None:
    """Return the cause of a divergence in a run directory; None without one.

    Example:
        >>> read_cause(Path("nowhere"))
    """
    try:
        content = read_regular(directory / CAUSE, "remove it; no command needs it.")
    except FileNotFoundError:
        return None
    return content.decode(errors="replace")
