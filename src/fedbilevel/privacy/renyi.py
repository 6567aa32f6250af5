"""ε by dp-accounting's own accountant of uniform samples, for comparison.

`RdpAccountant` supports samples without replacement for the relation that replaces a
device (Wang, Balle and Kasiviswanathan, "Subsampled Rényi differential privacy and
analytical moments accountant", 2019, Theorem 27). Its noise multiplier is the standard
deviation of the noise divided by the change of the sum when a device of the sample is
replaced, which is two clips. So it is half of `GaussianRelease.noise_multiplier`. The
half is needed for the zero-out relation too: the proof compares a sample with the
device with one that has another device in its place. (dp-accounting's `PLDAccountant`
has another scale: it doubles the distance itself for this relation.)
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from fedbilevel.mathematics.settings import SettingError
from fedbilevel.privacy.accountant import Releases, amplifies, count
from fedbilevel.privacy.budget import Budget
from fedbilevel.privacy.library import dp_accounting
from fedbilevel.privacy.releases import (
    GaussianRelease,
    PoissonDraws,
    WithoutReplacement,
    WithReplacement,
)


def renyi_spent(releases: Releases, delta: float) -> float:
    """Return the ε of releases by Rényi differential privacy; `spent` is smaller.

    Args:
        releases: numbers of equal releases, or releases one after another.
        delta: δ, above 0 and below 1.

    Raises:
        SettingError: if a release draws with replacement, which no accountant of
            dp-accounting 0.6 supports.

    Example:
        >>> from fedbilevel.privacy import WithoutReplacement, spent
        >>> release = GaussianRelease(2.0, WithoutReplacement(10, population=1000))
        >>> renyi_spent({release: 100}, 1e-5) > spent({release: 100}, 1e-5)
        True
    """
    Budget(1.0, delta)
    counts = count(releases)
    if not counts:
        return 0.0
    if any(release.noise_multiplier == 0 for release in counts):
        return math.inf
    library = dp_accounting()
    orders = np.array(library.rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    total = sum(number * _curve(release) for release, number in counts.items())
    epsilon, _ = library.rdp.compute_epsilon(orders, total, delta)
    return float(epsilon)


@lru_cache(maxsize=256)
def _curve(release: GaussianRelease) -> Any:
    """Return the Rényi divergence of one release at dp-accounting's orders."""
    library = dp_accounting()
    sampling, noise = release.sampling, release.noise_multiplier
    event: Any = library.GaussianDpEvent(noise)
    if isinstance(sampling, WithReplacement | PoissonDraws):
        raise SettingError(
            "sampling",
            "use spent, since RdpAccountant has no draws with replacement.",
            f"sampling is {sampling}, which RdpAccountant does not support. Call spent "
            "instead of renyi_spent.",
        )
    if isinstance(sampling, WithoutReplacement) and amplifies(release):
        event = library.SampledWithoutReplacementDpEvent(
            sampling.population, sampling.sample, library.GaussianDpEvent(noise / 2)
        )
    accountant = library.rdp.RdpAccountant(
        neighboring_relation=library.NeighboringRelation.REPLACE_ONE
    )
    return accountant.compose(event).rdp
