"""The number of sites that may sign two sums of one exchange.

A server can compute an exchange twice, over other survivors: the difference of both
sums is the vector of the sites that are in one of them only. A site refuses a second
sum by not signing its list of survivors. Its refusal alone does not help it, since the
second sum is one without it, so each site signs with its keys whether it refuses.

Let t be the threshold, a the number of sites of an attempt, and p the number of those
that sign several sums. At least t - p refusing sites sign the sum, and at most a - t
other sites are in it. Sites require equal shares. Suppose that a combination of sums,
of any attempts over any sites, is the vector of one refusing site. Each other refusing
site has signed at most one of these sums and its vector cancels, so it is also in one
that it has not signed. So in these sums together, refusing sites that have signed are
at most one more than refusing sites that have not. If t - p > a - t in every attempt,
then there is one sum only. It has at least t - p refusing sites: for t - p > 1, it is
not the vector of one.
"""

from fedbilevel.federation.secure_sums.advertisement import Advertisements
from fedbilevel.federation.secure_sums.context import Context
from fedbilevel.federation.transport import RefusedError, readable


def most_permitting(sites: int, threshold: int) -> int:
    """Return how many sites of an attempt may sign a second sum.

    Args:
        sites: number of sites that have sent their keys.
        threshold: number of signatures that a sum requires.

    Example:
        >>> from fedbilevel.federation.secure_sums.context import threshold
        >>> [most_permitting(n, threshold(n)) for n in (2, 3, 4, 5, 6, 9, 32)]
        [0, 0, 1, 2, 1, 2, 11]
        >>> most_permitting(3, threshold(4))  # one of four is absent
        1
    """
    return min(2 * threshold - sites - 1, threshold - 2)


def require_refusals(context: Context, advertisements: Advertisements) -> None:
    """Raise if so many sites sign second sums that two sums could show one vector.

    Args:
        context: the exchange.
        advertisements: the signed keys and rules of its sites.

    Raises:
        RefusedError: if too many do; the message names them.

    Example:
        >>> require_refusals(
        ...     Context("a1", 3, 0, ("north", "south")), Advertisements({}, b"")
        ... )
    """
    by_name = advertisements.by_name
    permitting = [
        name for name, each in by_name.items() if not each.refuses_second_sums
    ]
    most = max(0, most_permitting(len(by_name), context.threshold))
    if len(permitting) > most:
        shown = readable(", ".join(permitting[:10]))
        rest = f" and {len(permitting) - 10} others" if len(permitting) > 10 else ""
        allowed = f"at most {most} of them may" if most else "none of them may"
        raise RefusedError(
            f"{len(permitting)} of the {len(by_name)} sites of the exchange sign a "
            f"second sum over other sites ({shown}{rest}), but {allowed}: the "
            "difference of two sums could be the upload of this site. Ask their "
            "operators to set most_second_sums = 0 in local/site_rules.toml"
        )
