"""Sites that refuse a job: their authorisation policy or their kit forbids it."""

import re
from collections.abc import Iterable, Mapping, Sequence

from fedbilevel.federation.transport import LONGEST
from fedbilevel.flare.administrator import Administrator

REFUSED = "refused the job"
NO_REPLY = f"{REFUSED}: no reply"
"""Prefix of the reason for a site that did not answer: it may accept the next job."""

CODE = "BYOC"
"""NVIDIA FLARE's name for a job that brings code."""
NO_RIGHT = 'Ask their operators to allow it (docs/operations.md, "Permissions").'
BROUGHT_CODE = (
    "The job contains its problem file. Ask the operators of the server and of all "
    "sites to review that file, and set local_code = true in [federation]: then the "
    'job contains no code (docs/operations.md, "Reviewed code").'
)


def refusals_of(
    administrator: Administrator, job: str, sites: Sequence[str]
) -> Mapping[str, str]:
    """Return the reason for each site that refused a job; empty if not known.

    Args:
        administrator: connection to the server.
        job: id of the job.
        sites: sites of the run.
    """
    try:
        refusals = refusals_in(administrator.deployment(job))
    except (ConnectionError, PermissionError):
        return {}
    return {site: reason for site, reason in refusals.items() if site in sites}


def refusals_in(detail: Iterable[str]) -> dict[str, str]:
    """Return the reason for each site that refused a job, by name.

    Args:
        detail: NVIDIA FLARE's deployment detail, a line for each site and the server.

    Example:
        >>> refusals_in(["server: OK", "east: OK", "west: not authorized"])
        {'west': 'refused the job: not authorized'}
    """
    named = (line.partition(": ") for line in detail)
    return {
        site: f"{REFUSED}: {reason[:LONGEST]}"
        for site, colon, reason in named
        if colon and site != "server" and reason != "OK"
    }


def blocking_sites(obstacle: str, sites: Iterable[str]) -> list[str]:
    """Return the sites that NVIDIA FLARE waits for.

    Args:
        obstacle: its reason for not starting a job.
        sites: sites of the job.

    Example:
        >>> blocking_sites("missing required site west-2", ["east", "west", "west-2"])
        ['west-2']
    """
    names = set(re.findall(r"[\w.-]+", obstacle))
    return [site for site in sites if site in names]


def explain_refusals(
    refused: Mapping[str, str], sites: Sequence[str], quorum: int
) -> str | None:
    """Return an error message if refusals make the quorum impossible, else None.

    Args:
        refused: reason for each site that refused the job, by name.
        sites: sites of the run.
        quorum: number of sites that the run needs.

    Example:
        >>> reason = "refused the job: not authorized"
        >>> explain_refusals({"west": reason}, ["west"], 1)
        'Fewer than quorum=1 sites accepted the job: west refused the job: not
        authorized. Ask their operators to allow it (docs/operations.md,
        "Permissions").'
    """
    final = {
        site: reason
        for site, reason in refused.items()
        if not reason.startswith(NO_REPLY)
    }
    if not final or len(sites) - len(final) >= quorum:
        return None
    reasons = "; ".join(f"{site} {reason}" for site, reason in final.items())
    cure = BROUGHT_CODE if CODE in reasons else NO_RIGHT
    return f"Fewer than quorum={quorum} sites accepted the job: {reasons}. {cure}"
