"""Enrolment at the server, saved for the run so that weights and numbers stay fixed."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedbilevel.atomic_write import atomic_write
from fedbilevel.data.devices import LocalExamples
from fedbilevel.federation.computation import (
    Computation,
    EnrolmentMessage,
    compare,
)
from fedbilevel.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.federation.transport import (
    PREPARE,
    Failure,
    FailureCause,
    RefusedError,
    Transport,
    readable,
)

logger = logging.getLogger(__name__)


class EnrolmentResult(NamedTuple):
    """The enrolled devices, and the sites that are absent.

    Attributes:
        devices: all sites of the run. A site that has not enrolled yet counts as one
            with one example.
        absent: reason for each site that would not answer tasks, by name.
        warnings: difference between a site's computation and the server's that the
            submitter should know, by name of the site.
    """

    devices: EnrolledDevices
    absent: Mapping[str, str]
    warnings: Mapping[str, str]


class EnrolmentTerms(NamedTuple):
    """The times and numbers of an enrolment.

    Attributes:
        seconds: timeout, in which sites load their data and compile.
        at_least: number of enrolled sites that the run needs to begin.
        quorum: number of sites that the run needs once it has begun.
    """

    seconds: float
    at_least: int
    quorum: int = 1


def enrol(
    transport: Transport,
    names: Sequence[str],
    form: LocalExamples,
    directory: Path,
    *,
    computation: Computation,
    terms: EnrolmentTerms,
) -> EnrolmentResult:
    """Request enrolments from sites, and save the first of each site.

    Args:
        transport: connection to the sites.
        names: names of all sites of the run.
        form: examples with the required shapes and types.
        directory: run directory at the server.
        computation: computation of the server, with which each site's is compared.
        terms: times and numbers of the enrolment.

    Raises:
        RuntimeError: if too few sites have enrolled.
        ValueError: if a site cannot participate when the run begins, because its
            examples have the wrong shape or cannot be loaded, because its programs are
            not those of the server, or because its rules forbid it; later, if so many
            sites cannot that the quorum is impossible.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO
        >>> from fedbilevel.federation import REHEARSAL, InProcess, Site
        >>> loss = lambda x, y, batch: jnp.mean((y - x * batch) ** 2)
        >>> held = LocalExamples(np.ones(4), np.ones(6))
        >>> setting = BilevelProblem(loss, loss), FedBiO(0.1), held, 3.0, 0.0
        >>> transport = InProcess({"a": Site(0, *setting, rules=REHEARSAL)})
        >>> directory = Path(tempfile.mkdtemp())
        >>> result = enrol(
        ...     transport,
        ...     ["a"],
        ...     held,
        ...     directory,
        ...     computation=Computation.of(*setting),
        ...     terms=EnrolmentTerms(seconds=60.0, at_least=1),
        ... )
        >>> result.devices.lower_sizes
        array([6], dtype=int32)
    """
    file = directory / "enrolment.json"
    known: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    replies, computations, reasons = _request(transport, names, terms.seconds)
    has_begun = file.exists()
    warnings: dict[str, str] = {}
    for name in list(replies):
        comparison = compare(computations[name], computation)
        refusal = comparison.refusal
        if refusal is None and has_begun and name not in known:
            refusal = _misfit(name, replies[name], form)
        if refusal is not None:
            reasons[name] = Failure(FailureCause.UNABLE, f"could not begin: {refusal}")
            del replies[name]
        elif comparison.warning is not None:
            warnings[name] = comparison.warning
            logger.warning("%s: %s", name, warnings[name])
    for name, text in replies.items():
        if known.setdefault(name, text) != text:
            logger.warning(
                "%s: its examples have changed since it enrolled; its weight stays the "
                "same",
                name,
            )
    missing = [name for name in names if name not in known]
    failed = [
        name
        for name in names
        if name not in replies and reasons[name].cause is FailureCause.UNABLE
    ]
    # When a run begins, its submitter can fix the site or run without it. Later a
    # failed site must not stop the others.
    ends = bool(failed) and (not has_begun or len(names) - len(failed) < terms.quorum)
    if ends or len(known) < terms.at_least:
        causes = "; ".join(
            f"{name} {reasons[name].reason.rstrip('.')}" for name in failed or missing
        )
        sites = "1 site has" if len(known) == 1 else f"{len(known)} sites have"
        message = f"{sites} enrolled, {terms.at_least} are required: {causes}."
        # A failing loader fails again; a killed or disconnected site may return.
        raise ValueError(message) if ends else RuntimeError(message)
    enrolments = {
        name: Enrolment.decode(known[name].encode()) for name in names if name in known
    }
    unknown = Enrolment.of(form)._replace(upper_size=1, lower_size=1)
    devices = EnrolledDevices(
        {name: enrolments.get(name, unknown) for name in names}, form
    )
    # Saved only if all fit, so that a site can enrol again with corrected data.
    atomic_write(file, json.dumps(known))
    absent = {
        name: reasons[name].reason
        for name in names
        if name not in replies
        and (name in (*missing, *failed) or reasons[name].cause is FailureCause.LATE)
    }
    return EnrolmentResult(devices, absent, warnings)


def prepare_sites(transport: Transport, names: Sequence[str], seconds: float) -> None:
    """Let sites compile for tasks with factors, which none of them could foresee.

    A site that does not answer compiles at its first task.

    Args:
        transport: connection to the sites.
        names: names of the enrolled sites.
        seconds: timeout.

    Example:
        >>> from fedbilevel.federation import InProcess
        >>> prepare_sites(InProcess({}), [], seconds=1.0)
    """
    until, awaited = time.monotonic() + seconds, set(names)
    messages = dict.fromkeys(names, PREPARE)
    for reply in transport.exchange(messages, lambda: until - time.monotonic()):
        awaited.discard(reply.device)
        if not awaited:
            break


def _misfit(name: str, text: str, form: LocalExamples) -> str | None:
    """Return why a site cannot join a run that has begun; None if it can."""
    enrolment = Enrolment.decode(text.encode())
    try:
        EnrolledDevices({name: enrolment}, form)
    except ValueError as error:
        return readable(str(error))
    for level in LocalExamples._fields:
        if level not in enrolment.levels:
            return (
                f"it has no {level} examples, but it was counted as a site with both "
                "when the run began. Start another run with it"
            )
    return None


def _request(
    transport: Transport, names: Sequence[str], seconds: float
) -> tuple[dict[str, str], dict[str, Computation], dict[str, Failure]]:
    """Return enrolments as text, computations, and the failures of the other sites."""
    replies: dict[str, str] = {}
    computations: dict[str, Computation] = {}
    late = Failure(FailureCause.LATE, f"did not enrol in {seconds:.0f} seconds")
    reasons = dict.fromkeys(names, late)
    until = time.monotonic() + seconds
    awaited = set(names)
    for reply in transport.enrol(names, lambda: until - time.monotonic()):
        if reply.device not in awaited:
            continue
        if reply.message is None:
            if (
                reply.failure is not None
                and reply.failure.cause is not FailureCause.LATE
            ):
                cause, reason = reply.failure
                reasons[reply.device] = Failure(cause, readable(reason))
                awaited.discard(reply.device)
        else:
            awaited.discard(reply.device)
            try:
                sent = EnrolmentMessage.decode(reply.message)
                replies[reply.device] = sent.enrolment.encode().decode()
                computations[reply.device] = sent.computation
            except (RefusedError, UnicodeDecodeError) as error:
                reason = readable(f"sent an invalid enrolment: {error}")
                reasons[reply.device] = Failure(FailureCause.UNABLE, reason)
        if not awaited or time.monotonic() > until:
            break
    return replies, computations, reasons
