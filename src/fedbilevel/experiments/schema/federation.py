"""Settings of a federation that runs an experiment across sites."""

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
    """Settings of `fedbilevel federate`; `fedbilevel run` ignores them.

    Attributes:
        sites: names of the sites; None for the names of the devices if NVIDIA FLARE
            accepts them, otherwise for site-1, site-2, …, one for each device.
        kit: directory of the administrator's NVIDIA FLARE startup kit; None for a
            rehearsal with server and site processes on this machine.
        timeout: seconds that an exchange waits for replies.
        quorum: smallest number of uploads that an exchange requires.
        straggler_factor: multiple, at least 1, of the time in which half of the sites
            replied: an exchange with a quorum stops waiting for the others after this
            time; None to wait until `timeout`.
        enrolment_timeout: seconds for the sites to load their data and compile.
        evaluation_timeout: seconds for one evaluation on the server.
        connection_timeout: seconds without a reply of the server before the command
            gives up.
        attempts: number of times that a job may fail without progress before the
            command gives up.
        local_code: whether server and sites run their own reviewed copies of a custom
            problem's file, so that the job contains no code.
        secure_sums: whether the server learns only the sum of the sites' updates, and
            no single one. Requires transforms.integer_bits.
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
    secure_sums: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.sites is not None and len(set(self.sites)) != len(self.sites or (0, 0)):
            raise SettingError(
                "sites",
                f"give at least one name, and each name once, not {list(self.sites)}.",
            )
