"""Failed runs: a file in the run directory holds the reason."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, nan
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.experiments.run_directory.layout import FAILURE
from fedbilevel.regular_files import read_regular
from fedbilevel.tracking.records import Record, read_records
from fedbilevel.tracking.titles import title_of
from fedbilevel.tuning.divergence import has_grown

LOSS = "loss"
"""The value that decides: the upper loss over all data, which a run minimises."""
TRAINING_LOSS = "training_loss"
"""The lower loss over all data."""


class Failure(NamedTuple):
    """The end of a run that diverged.

    Attributes:
        rounds: after how many rounds the run was last measured before it failed.
        reason: the error's message.

    Example:
        >>> str(Failure(40, "the validation loss is inf"))
        'last measured after 40 rounds: the validation loss is inf'
    """

    rounds: int
    reason: str

    def __str__(self) -> str:
        return f"last measured after {self.rounds} rounds: {self.reason}"


def write_failure(directory: Path, failure: Failure) -> None:
    """Write a failure to a run directory; readers see the whole file or none.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_failure(directory, Failure(40, "the validation loss is inf"))
        >>> read_failure(directory)
        Failure(rounds=40, reason='the validation loss is inf')
    """
    with atomic_replace(directory / FAILURE) as unfinished:
        unfinished.write_text(f"{json.dumps(failure._asdict())}\n", encoding="utf-8")


def read_failure(directory: Path) -> Failure | None:
    """Return the failure that is written in a run directory; None without one.

    Raises:
        ValueError: if the file is damaged.

    Example:
        >>> read_failure(Path("nowhere"))
    """
    file = directory / FAILURE
    cure = "remove it, and resume the run to learn whether it fails."
    try:
        content = read_regular(file, cure)
    except FileNotFoundError:
        return None
    try:
        told = json.loads(content)
        failure = Failure(**told)
    except (ValueError, TypeError, RecursionError):
        failure = Failure(-1, "")
    if not isinstance(failure.rounds, int) or failure.rounds < 0:
        raise ValueError(f"{file} is damaged; {cure}")
    return Failure(failure.rounds, str(failure.reason))


def divergence(records: Sequence[Record]) -> Failure | None:
    """Return the failure of a run that diverged without an error; None otherwise.

    A run has diverged if the upper loss is not finite at the end, or another value is
    not that was finite before, or if one of the two losses is a thousand times as large
    as its first finite value. Another metric that was never finite is not defined for
    the task: it is no failure.

    Args:
        records: of the run, oldest first.

    Example:
        >>> from fedbilevel import Costs
        >>> def losses(*values):
        ...     found = ({"loss": one} for one in values)
        ...     return [Record(n, 0.1, Costs(), one) for n, one in enumerate(found)]
        >>> str(divergence(losses(2.0, 3.0, float("inf"), float("nan"))))
        'last measured after 1 rounds: the validation loss is nan after 3 rounds'
        >>> str(divergence(losses(2.0, 3.0, 5e33)))
        'last measured after 1 rounds: the validation loss grew from 2 to 5e+33'
        >>> divergence(losses(2.0, 3.0))
    """
    if not records:
        return None
    last = records[-1]
    for name, value in last.figures.items():
        if not isfinite(value):
            known = _finite(records, name)
            if known or name == LOSS:
                return Failure(
                    known[-1].rounds if known else 0,
                    f"the {title_of(name)} is {value} after {last.rounds} rounds",
                )
    return growth(records, LOSS) or growth(records, TRAINING_LOSS)


def growth(records: Sequence[Record], name: str) -> Failure | None:
    """Return the failure of a loss that is a thousand times its first finite value.

    Args:
        records: of the run, oldest first.
        name: of the loss.

    Example:
        >>> from fedbilevel import Costs
        >>> records = [Record(n, 0.1, Costs(), {"loss": 9.0**n}) for n in range(5)]
        >>> growth(records, "loss")
        Failure(rounds=3, reason='the validation loss grew from 1 to 6561')
        >>> growth(records, "training_loss")
    """
    known = _finite(records, name)
    if not known:
        return None
    # A file may hold 2 where 2.0 was measured.
    before, after = (
        float(one.figures.get(name, nan)) for one in (known[0], records[-1])
    )
    if not has_grown(before, after):
        return None
    small = [one for one in known if not has_grown(before, float(one.figures[name]))]
    words = f"the {title_of(name)} grew from {before:.4g} to {after:.4g}"
    return Failure(small[-1].rounds, words)


def _finite(records: Sequence[Record], name: str) -> list[Record]:
    """Return the records that have a finite value of a name."""
    return [one for one in records if isfinite(one.figures.get(name, nan))]


@contextmanager
def failure_recorded(directory: Path) -> Iterator[None]:
    """Write a failure to the run directory when the numbers of a run end it.

    Any other error (memory, disk, a mistake in a file) says nothing about the run's
    settings, so it is not written: the run can be resumed.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> try:
        ...     with failure_recorded(directory):
        ...         raise ArithmeticError("all uploads are not finite")
        ... except ArithmeticError:
        ...     read_failure(directory).reason
        'all uploads are not finite'
    """
    try:
        yield
    except Exception as error:
        # The debug engine's DeviceError is caused by the error of a device's numbers.
        if _is_divergence(error) or _is_divergence(error.__cause__):
            *_, last = 0, *(record.rounds for record in read_records(directory))
            write_failure(directory, Failure(last, str(error)))
        raise


def _is_divergence(error: BaseException | None) -> bool:
    # Python's own errors are mistakes in a file: arrays divide by zero without one.
    mistakes = ZeroDivisionError | OverflowError
    return isinstance(error, ArithmeticError) and not isinstance(error, mistakes)
