"""The federation in which an experiment file is carried out across sites."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fedbilevel.mathematics.settings import (
    Count,
    Positive,
    Range,
    SettingError,
    check_ranges,
)


@dataclass(frozen=True)
class FederationSettings:
    """What `fedbilevel federate` asks of a federation; `fedbilevel run` ignores it.

    Attributes:
        sites: their names; by default site-1, site-2 and so on, one a device.
        kit: the directory of an administrator's startup kit; none to rehearse with
            processes on this machine.
        timeout: seconds that an exchange waits for replies.
        quorum: how many uploads an exchange needs at least.
        straggler_factor: how many times as long as half of the sites took the others are waited
            for, once these and a quorum have answered; by default until the timeout.
        enrolment_timeout: seconds for sites to load their data and compile.
        evaluation_timeout: seconds for the server to measure once.
        connection_timeout: seconds for which the server may not answer before giving up.
        attempts: how many times a job may fail without progress before giving up.
        local_code: whether server and sites execute their own reviewed copies of a custom
            problem's file, so that the job brings no code.

    Example:
        >>> FederationSettings(sites=("north", "south")).timeout
        60.0
    """

    sites: tuple[str, ...] | None = None
    kit: Path | None = None
    timeout: Positive = 60.0
    quorum: Count = 1
    straggler_factor: Annotated[float, Range(at_least=1.0)] | None = None
    enrolment_timeout: Positive = 600.0
    evaluation_timeout: Positive = 600.0
    connection_timeout: Positive = 3600.0
    attempts: Count = 5
    local_code: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.sites is not None and len(set(self.sites)) != len(self.sites or (0, 0)):
            raise SettingError("sites", "name at least one, and none twice.")
