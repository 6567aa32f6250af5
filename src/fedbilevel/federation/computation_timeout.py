"""The timeout of a site's computation: the job's, within the rule of the site.

Read by the process that starts the computation, without the modules of the computation,
such as JAX.
"""

import tomllib
from pathlib import Path

RULES = "site_rules.toml"
"""Name of the rules file in the directory `local` of a site's kit."""
DEFAULT_SECONDS = 3600
"""Default of the rule `most_seconds`."""


def computation_timeout(local: Path, seconds: float) -> float:
    """Return the seconds after which a computation of a site is killed.

    Args:
        local: directory `local` of the site's kit. If its rules are not valid, the
            default holds: the computation refuses the job and names the mistake.
        seconds: timeout of the job.

    Example:
        >>> computation_timeout(Path("/nowhere"), 1e10)
        3600.0
        >>> computation_timeout(Path("/nowhere"), 60.0)
        60.0
    """
    try:
        rules = tomllib.loads((local / RULES).read_text())
    except (OSError, ValueError, RecursionError):
        rules = {}
    most = rules.get("most_seconds")
    if type(most) is not int or most < 1:
        most = DEFAULT_SECONDS
    # In this order, NaN is not the minimum.
    return min(float(most), seconds)
