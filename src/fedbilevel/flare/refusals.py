"""Sites that do not take a job: their rights of others, or their kit, forbid it."""

from collections.abc import Iterable, Mapping, Sequence

from fedbilevel.federation.transport import LONGEST
from fedbilevel.flare.administrator import Administrator

REFUSED = "did not take the job"
NO_REPLY = f"{REFUSED}: no reply"
"""How the words begin for a site that did not answer: it may take the next job."""

CODE = "BYOC"
"""What NVIDIA FLARE calls a job that brings code."""
NO_RIGHT = (
    'Let their operators allow it, as docs/operations.md says under "Who may do what".'
)
BROUGHT_CODE = (
    "The job brings the file of its problem. Have operators of the server and of all "
    "sites read that file, and set local_code = true in [federation]: then no code "
    'travels (docs/operations.md, "Code that was read first").'
)


def refusals_of(
    administrator: Administrator, job: str, sites: Sequence[str]
) -> Mapping[str, str]:
    """Return why sites did not take a job, by name, if that can be known.

    Args:
        administrator: asks the server.
        job: its number.
        sites: of the run.

    Example:
        >>> refusals_of.__name__
        'refusals_of'
    """
    try:
        found = refusals_in(administrator.deployment(job))
    except (ConnectionError, PermissionError):
        return {}
    return {site: reason for site, reason in found.items() if site in sites}


def refusals_in(detail: Iterable[str]) -> dict[str, str]:
    """Return why sites did not take a job, by name.

    Args:
        detail: a line for each site and the server, in NVIDIA FLARE's words.

    Example:
        >>> refusals_in(["server: OK", "east: OK", "west: not authorized"])
        {'west': 'did not take the job: not authorized'}
    """
    named = (line.partition(": ") for line in detail)
    return {
        site: f"{REFUSED}: {reason[:LONGEST]}"
        for site, colon, reason in named
        if colon and site != "server" and reason != "OK"
    }


def too_many(
    refused: Mapping[str, str], sites: Sequence[str], quorum: int
) -> str | None:
    """Return a sentence if no job could begin, since too many sites refuse it.

    Args:
        refused: why sites did not take the job, by name.
        sites: of the run.
        quorum: how many it needs.

    Example:
        >>> too_many({"west": "did not take the job: not authorized"}, ["west"], 1)
        'fewer than quorum=1 sites take the job: west did not take the job: not
        authorized. Let their operators allow it, as docs/operations.md says under "Who
        may do what".'
        >>> too_many({"west": "did not take the job: BYOC not permitted"}, ["west"], 1)
        'fewer than quorum=1 sites take the job: west did not take the job: BYOC not
        permitted. The job brings the file of its problem. Have operators of the server
        and of all sites read that file, and set local_code = true in [federation]: then
        no code travels (docs/operations.md, "Code that was read first").'
    """
    for_good = {
        site: reason
        for site, reason in refused.items()
        if not reason.startswith(NO_REPLY)
    }
    if not for_good or len(sites) - len(for_good) >= quorum:
        return None
    words = "; ".join(f"{site} {reason}" for site, reason in for_good.items())
    cure = BROUGHT_CODE if CODE in words else NO_RIGHT
    return f"fewer than quorum={quorum} sites take the job: {words}. {cure}"
