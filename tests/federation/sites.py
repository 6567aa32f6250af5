"""Sites in this process, for tests of the server's loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedbilevel import FederatedAlgorithm
from fedbilevel.engines.federation import EnrolledDevices, Federation, Site
from fedbilevel.engines.federation.in_process import InProcess
from tests import quadratic
from tests.engines.federation import START, held


def sites(
    algorithm: Callable[[], FederatedAlgorithm], folder: Path | None = None
) -> dict[str, Site]:
    """Return sites that hold what the federation of every engine's tests holds."""
    # One problem and one algorithm, so that what sites do is compiled once.
    what = quadratic.problem(), algorithm()
    return {
        f"site-{number}": Site(
            number,
            *what,
            examples,
            *START,
            folder=None if folder is None else folder / f"site-{number}",
        )
        for number, examples in enumerate(held())
    }


def enrolled(among: dict[str, Site]) -> EnrolledDevices:
    return EnrolledDevices(
        {name: site.enrolment for name, site in among.items()}, form=held()[0]
    )


def federation(among: dict[str, Site], **settings: Any) -> Federation:
    fault = settings.pop("fault", lambda replies: replies)
    given = {"run": "first", "timeout": 60.0, **settings}
    return Federation(InProcess(among, fault), enrolled(among), **given)
