"""Failed runs: a file in the run directory has the reason."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, nan
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.experiments.run_directory.layout import FAILURE
from fedbilevel.metrics.losses import LOSS, TRAINING_LOSS
from fedbilevel.metrics.registry import title_of
from fedbilevel.plurals import count_noun
from fedbilevel.regular_files import read_regular
from fedbilevel.tracking.records import Record, read_records
from fedbilevel.tuning.divergence import has_grown


class Failure(NamedTuple):
    """The end of a run that diverged.

    Attributes:
        rounds: number of rounds before the last measurement.
        reason: message of the error.

    Example:
        >>> str(Failure(40, "the validation loss is inf"))
        'last measured after 40 rounds: the validation loss is inf'
    """

    rounds: int
    reason: str

    def __str__(self) -> str:
        return f"last measured after {count_noun(self.rounds, 'round')}: {self.reason}"


def write_failure(directory: Path, failure: Failure) -> None:
    """Write a failure to a run directory; readers see the whole file or none.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> write_failure(directory, Failure(40, "the validation loss is inf"))
        >>> read_failure(directory)
        Failure(rounds=40, reason='the validation loss is inf')
    """
    atomic_write(directory / FAILURE, f"{json.dumps(failure._asdict())}\n")


def read_failure(directory: Path) -> Failure | None:
    """Return the failure in a run directory; None without one.

    Raises:
        ValueError: if the file is damaged.

    Example:
        >>> read_failure(Path("nowhere"))
    """
    file = directory / FAILURE
    cure = (
        "remove it, and resume the run, which fails again if its numbers diverge: "
        f"fedbilevel resume {quote(str(directory))}."
    )
    try:
        content = read_regular(file, cure)
    except FileNotFoundError:
        return None
    try:
        failure = Failure(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        failure = Failure(-1, "")
    if not isinstance(failure.rounds, int) or failure.rounds < 0:
        raise ValueError(f"{file} is damaged; {cure}")
    return Failure(failure.rounds, str(failure.reason))


def divergence(records: Sequence[Record]) -> Failure | None:
    """Return the failure of a run that diverged without an error; None otherwise.

    A run has diverged if the upper loss is not finite at the end, if another metric
    that was finite before is not, or if one of the two losses is a thousand times its
    first finite value. A metric that was never finite is undefined for the task, which
    is no failure.

    Args:
        records: records of the run, oldest first.

    Example:
        >>> from fedbilevel import Costs
        >>> def losses(*values):
        ...     metrics = ({"loss": value} for value in values)
        ...     return [Record(n, 0.1, Costs(), m) for n, m in enumerate(metrics)]
        >>> str(divergence(losses(2.0, 3.0, float("inf"), float("nan"))))
        'last measured after 1 round: the validation loss is nan after 3 rounds'
        >>> str(divergence(losses(2.0, 3.0, 5e33)))
        'last measured after 1 round: the validation loss grew from 2 to 5e+33'
        >>> divergence(losses(2.0, 3.0))
    """
    if not records:
        return None
    last = records[-1]
    for name, value in last.metrics.items():
        if not isfinite(value):
            finite = _finite(records, name)
            if finite or name == LOSS.name:
                return Failure(
                    finite[-1].rounds if finite else 0,
                    f"the {title_of(name)} is {value} after "
                    f"{count_noun(last.rounds, 'round')}",
                )
    return growth(records, LOSS.name) or growth(records, TRAINING_LOSS.name)


def growth(records: Sequence[Record], name: str) -> Failure | None:
    """Return the failure of a loss that is a thousand times its first finite value.

    Args:
        records: records of the run, oldest first.
        name: name of the loss.

    Example:
        >>> from fedbilevel import Costs
        >>> records = [Record(n, 0.1, Costs(), {"loss": 9.0**n}) for n in range(5)]
        >>> growth(records, "loss")
        Failure(rounds=3, reason='the validation loss grew from 1 to 6561')
        >>> growth(records, "training_loss")
    """
    finite = _finite(records, name)
    if not finite:
        return None
    # JSON may have 2 for a measured 2.0.
    before, after = (
        float(record.metrics.get(name, nan)) for record in (finite[0], records[-1])
    )
    if not has_grown(before, after):
        return None
    small = [
        record
        for record in finite
        if not has_grown(before, float(record.metrics[name]))
    ]
    reason = f"the {title_of(name)} grew from {before:.4g} to {after:.4g}"
    return Failure(small[-1].rounds, reason)


def _finite(records: Sequence[Record], name: str) -> list[Record]:
    """Return the records in which a metric is finite."""
    return [record for record in records if isfinite(record.metrics.get(name, nan))]


@contextmanager
def record_failure(directory: Path) -> Iterator[None]:
    """Write a failure to the run directory if a divergence ends the run.

    Any other error (memory, disk, a mistake in a file) does not depend on the settings
    of the run, so it is not written, and the run can be resumed.

    Example:
        >>> import tempfile
        >>> directory = Path(tempfile.mkdtemp())
        >>> try:
        ...     with record_failure(directory):
        ...         raise ArithmeticError("all uploads are not finite")
        ... except ArithmeticError:
        ...     read_failure(directory).reason
        'all uploads are not finite'
    """
    try:
        yield
    except Exception as error:
        # The cause of the debug engine's DeviceError is an ArithmeticError.
        if _is_divergence(error) or _is_divergence(error.__cause__):
            *_, last = 0, *(record.rounds for record in read_records(directory))
            write_failure(directory, Failure(last, str(error)))
        raise


def _is_divergence(error: BaseException | None) -> bool:
    # Arrays divide by zero without an error, so Python's errors are mistakes in code.
    mistakes = ZeroDivisionError | OverflowError
    return isinstance(error, ArithmeticError) and not isinstance(error, mistakes)
