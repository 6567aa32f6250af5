"""Sites enrolled once for a run, so that weights and numbers stay as they are."""

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from fedbilevel.atomic_write import replacing
from fedbilevel.data.devices import LocalExamples
from fedbilevel.federation import EnrolledDevices, Enrolment, RefusedError
from fedbilevel.federation.replies import NO_ANSWER
from fedbilevel.flare.collab_site import BROKEN
from fedbilevel.flare.transport import Calls

logger = logging.getLogger(__name__)


def enrolled(
    names: Sequence[str],
    form: LocalExamples,
    home: Path,
    calls: Calls,
    seconds: float,
    at_least: int,
    needed: int,
    quorum: int = 1,
) -> EnrolledDevices:
    """Ask the sites of a job for their enrolment, and keep what they said at first.

    To be called within the main function of a Collab server.

    Args:
        names: of all sites of the run.
        form: examples such as each must hold.
        home: the folder of the run at the server.
        calls: of the job's sites.
        seconds: for sites to load their data and compile.
        at_least: how many sites must have enrolled for the run to begin.
        needed: bytes of the largest message that sites must take.
        quorum: how many sites a run that has begun needs.

    Returns:
        All sites. One that has not enrolled yet, in a run that begins without it, has
        one example until it enrols in a later job.

    Raises:
        RunAborted: the job has been, meanwhile.
        RuntimeError: if too few sites have enrolled; says why.
        ValueError: as a run begins, if one site holds other examples than the problem
            asks for, cannot load them, or has rules that forbid to take part; later if
            so many cannot that the quorum is out of reach. Says why.

    Example:
        >>> enrolled.__name__
        'enrolled'
    """
    file = home / "enrolment.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    told, reasons = _ask(names, calls, seconds, needed)
    has_begun = file.exists()
    for name in told.keys() - known.keys() if has_begun else ():
        if reason := _misfit(name, told[name], form):
            reasons[name] = f"{BROKEN}: {reason}"
            del told[name]
    for name, text in told.items():
        if known.setdefault(name, text) != text:
            logger.warning(
                "%s tells other numbers of examples than when it enrolled; its weight "
                "stays as it was",
                name,
            )
    missing = [name for name in names if name not in known]
    failed = [name for name in names if name not in told and BROKEN in reasons[name]]
    # Whoever begins a run can mend it, or do without the site; later it stops nobody.
    ends = bool(failed) and (not has_begun or len(names) - len(failed) < quorum)
    if ends or len(known) < at_least:
        words = "; ".join(
            f"{name} {reasons[name].rstrip('.')}" for name in failed or missing
        )
        said = f"{len(known)} of {at_least} required sites have enrolled: {words}."
        # A loader that fails will fail again; what was killed, or is away, may not.
        raise ValueError(said) if ends else RuntimeError(said)
    found = {name: Enrolment.decode(known[name]) for name in names if name in known}
    absent = Enrolment.of(form)._replace(upper_size=1, lower_size=1)
    devices = EnrolledDevices({name: found.get(name, absent) for name in names}, form)
    # Once they fit: a site whose data are put right may enrol again.
    with replacing(file) as unfinished:
        unfinished.write_text(json.dumps(known))
    # Nor would they answer tasks; the next jobs do not wait for them as long again.
    for name in calls.present() - told.keys():
        if name in (*missing, *failed) or reasons[name] == _late(seconds):
            calls.drop(name, reasons[name])
    return devices


def _misfit(name: str, text: str, form: LocalExamples) -> str | None:
    """Return why a site's examples are not of the form that the problem asks for."""
    try:
        EnrolledDevices({name: Enrolment.decode(text)}, form)
    except ValueError as error:
        return str(error)
    return None


def _late(seconds: float) -> str:
    return f"did not enrol in {seconds:.0f} seconds"


def _ask(
    names: Sequence[str], calls: Calls, seconds: float, needed: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what sites tell, and why others do not."""
    told: dict[str, str] = {}
    reasons = dict.fromkeys(names, _late(seconds))
    until = time.monotonic() + seconds
    replies = calls.make(
        lambda group: group.enrol(needed), names, lambda: until - time.monotonic()
    )
    for name, message, failure in replies:
        if message is None:
            if failure not in (None, NO_ANSWER):
                reasons[name] = str(failure)
            continue
        try:
            Enrolment.decode(text := message.decode(errors="replace"))
            told[name] = text
        except RefusedError as error:
            reasons[name] = f"sent what was refused: {error}"
    return told, reasons
