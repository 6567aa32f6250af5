"""Sites enrolled once for a run, so that weights and numbers stay as they are."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_replace
from fedbilevel.data.devices import LocalExamples
from fedbilevel.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.federation.transport import (
    Cause,
    Failure,
    RefusedError,
    Transport,
    readable,
)

logger = logging.getLogger(__name__)


class Enrolled(NamedTuple):
    """Who takes part, and who does not for now.

    Attributes:
        devices: all sites of the run. One that has not enrolled yet, in a run that
            begins without it, has one example until it enrols later.
        absent: why sites would not answer tasks, by name.

    Example:
        >>> Enrolled._fields
        ('devices', 'absent')
    """

    devices: EnrolledDevices
    absent: Mapping[str, str]


def enrol(
    transport: Transport,
    names: Sequence[str],
    form: LocalExamples,
    home: Path,
    *,
    seconds: float,
    at_least: int,
    quorum: int = 1,
) -> Enrolled:
    """Ask sites for their enrolment, and keep what they said at first.

    Args:
        transport: reaches the sites.
        names: of all sites of the run.
        form: examples such as each must hold.
        home: the directory of the run at the server.
        seconds: for sites to load their data and compile.
        at_least: how many sites must have enrolled for the run to begin.
        quorum: how many sites a run that has begun needs.

    Raises:
        RuntimeError: if too few sites have enrolled; says why.
        ValueError: as a run begins, if one site holds other examples than the problem
            asks for, cannot load them, or has rules that forbid to take part; later if
            so many cannot that the quorum is out of reach. Says why.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> from fedbilevel.federation import REHEARSAL, InProcess, Site
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> held = LocalExamples(np.ones(4), np.ones(6))
        >>> what = BilevelProblem(loss, loss), FedBiO(0.1), held, 3.0, 0.0
        >>> transport = InProcess({"a": Site(0, *what, rules=REHEARSAL)})
        >>> home = Path(tempfile.mkdtemp())
        >>> found = enrol(transport, ["a"], held, home, seconds=60.0, at_least=1)
        >>> found.devices.lower_sizes
        array([6], dtype=int32)
    """
    file = home / "enrolment.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    told, reasons = _ask(transport, names, seconds)
    has_begun = file.exists()
    for name in told.keys() - known.keys() if has_begun else ():
        if reason := _misfit(name, told[name], form):
            words = readable(f"could not begin: {reason}")
            reasons[name] = Failure(Cause.UNABLE, words)
            del told[name]
    for name, text in told.items():
        if known.setdefault(name, text) != text:
            logger.warning(
                "%s tells other numbers of examples than when it enrolled; its weight "
                "stays as it was",
                name,
            )
    missing = [name for name in names if name not in known]
    failed = [
        name
        for name in names
        if name not in told and reasons[name].cause is Cause.UNABLE
    ]
    # Whoever begins a run can mend it, or do without the site; later it stops nobody.
    ends = bool(failed) and (not has_begun or len(names) - len(failed) < quorum)
    if ends or len(known) < at_least:
        words = "; ".join(
            f"{name} {reasons[name].words.rstrip('.')}" for name in failed or missing
        )
        said = f"{len(known)} sites have enrolled, {at_least} are required: {words}."
        # A loader that fails will fail again; what was killed, or is away, may not.
        raise ValueError(said) if ends else RuntimeError(said)
    found = {
        name: Enrolment.decode(known[name].encode()) for name in names if name in known
    }
    unknown = Enrolment.of(form)._replace(upper_size=1, lower_size=1)
    devices = EnrolledDevices({name: found.get(name, unknown) for name in names}, form)
    # Once they fit: a site whose data are put right may enrol again.
    with atomic_replace(file) as unfinished:
        unfinished.write_text(json.dumps(known))
    absent = {
        name: reasons[name].words
        for name in names
        if name not in told
        and (name in (*missing, *failed) or reasons[name].cause is Cause.LATE)
    }
    return Enrolled(devices, absent)


def _misfit(name: str, text: str, form: LocalExamples) -> str | None:
    """Return why a site's examples are not of the form that the problem asks for."""
    try:
        EnrolledDevices({name: Enrolment.decode(text.encode())}, form)
    except ValueError as error:
        return str(error)
    return None


def _ask(
    transport: Transport, names: Sequence[str], seconds: float
) -> tuple[dict[str, str], dict[str, Failure]]:
    """Return what sites tell, and why others do not."""
    told: dict[str, str] = {}
    late = Failure(Cause.LATE, f"did not enrol in {seconds:.0f} seconds")
    reasons = dict.fromkeys(names, late)
    until = time.monotonic() + seconds
    awaited = set(names)
    for reply in transport.enrol(names, lambda: until - time.monotonic()):
        if reply.device not in awaited:
            continue
        if reply.message is None:
            if reply.failure is not None and reply.failure.cause is not Cause.LATE:
                cause, words = reply.failure
                reasons[reply.device] = Failure(cause, readable(words))
                awaited.discard(reply.device)
        else:
            awaited.discard(reply.device)
            try:
                Enrolment.decode(reply.message)
                told[reply.device] = reply.message.decode()
            except (RefusedError, UnicodeDecodeError) as error:
                words = readable(f"sent what was refused: {error}")
                reasons[reply.device] = Failure(Cause.FAILED, words)
        if not awaited or time.monotonic() > until:
            break
    return told, reasons
