"""Sites enrolled once for a run, so that weights and numbers stay as they are."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

from fedbilevel.data.devices import LocalExamples
from fedbilevel.engines.federation import EnrolledDevices, Enrolment, RefusedError
from fedbilevel.replacing import replacing

logger = logging.getLogger(__name__)

PATIENCE = 600.0
"""Seconds for a site to load its data and compile."""


def enrolled(names: Sequence[str], form: LocalExamples, home: Path) -> EnrolledDevices:
    """Ask the sites of a job for their enrolment, and keep what they said at first.

    To be called within the main function of a Collab server.

    Args:
        names: of all sites of the run.
        form: examples such as each must hold.
        home: the folder of the run at the server.

    Raises:
        RunAborted: the job has been, meanwhile.
        RuntimeError: if a site has never enrolled; says why.
        ValueError: if one holds other examples than the problem asks for, or cannot
            load them.

    Example:
        >>> enrolled.__name__
        'enrolled'
    """
    file = home / "enrolment.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    told, reasons = _ask(names)
    for name, text in told.items():
        if known.setdefault(name, text) != text:
            logger.warning(
                "%s tells other numbers of examples than when it enrolled; its weight "
                "stays as it was",
                name,
            )
    missing = [name for name in names if name not in known]
    if missing:
        words = "; ".join(
            f"{name} {reasons.get(name, 'is not connected')}" for name in missing
        )
        said = f"a run begins with all of its sites, but: {words}."
        # A loader that fails will fail again; what was killed, or is away, may not.
        if any("could not begin" in reasons.get(name, "") for name in missing):
            raise ValueError(said)
        raise RuntimeError(said)
    found = {name: Enrolment.decode(known[name]) for name in names}
    devices = EnrolledDevices(found, form)
    # Once they fit: a site whose data are put right may enrol again.
    with replacing(file) as unfinished:
        unfinished.write_text(json.dumps(known))
    return devices


def _ask(names: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return what sites tell, and why others do not."""
    present = [proxy.name for proxy in collab.clients if proxy.name in names]
    told, reasons = {}, {}
    results = collab.get_clients(present)(timeout=PATIENCE).enrol()
    if collab.is_aborted:
        raise RunAborted("the job was aborted while sites enrolled")
    for name, found in results:
        if type(found) is not bytes:
            reasons[name] = str(found)[:300]
            continue
        try:
            Enrolment.decode(text := found.decode(errors="replace"))
            told[name] = text
        except RefusedError as error:
            reasons[name] = f"sent what was refused: {error}"
    for name, failure in results.failures.items():
        reasons[name] = f"could not be reached: {failure}"
    return told, reasons
