"""Sites in this process, for tests of the server's loop."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbilevel import BilevelProblem, FederatedAlgorithm, LocalExamples
from fedbilevel.engines.federation import (
    REHEARSAL,
    EnrolledDevices,
    Federation,
    Site,
)
from fedbilevel.engines.federation.in_process import InProcess
from tests.engines.federation import START, held
from tests.waiting import HANG


def sites_holding(
    held: Sequence[LocalExamples],
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm,
    folder: Path | None = None,
) -> dict[str, Site]:
    """Return sites that share what is compiled, called site-0 and so on."""
    return {
        f"site-{number}": Site(
            number,
            problem,
            algorithm,
            examples,
            *START,
            folder=None if folder is None else folder / f"site-{number}",
            rules=REHEARSAL,
        )
        for number, examples in enumerate(held)
    }


def enrolled(among: Mapping[str, Site]) -> EnrolledDevices:
    return EnrolledDevices(
        {name: site.enrolment for name, site in among.items()}, form=held()[0]
    )


def federation(among: Mapping[str, Site], **settings: Any) -> Federation:
    fault = settings.pop("fault", lambda replies: replies)
    given = {"run": "first", "timeout": HANG, **settings}
    return Federation(InProcess(among, fault), enrolled(among), **given)
