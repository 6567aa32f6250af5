"""The ε by example that a site's answers have spent, in all runs together.

The file of answered exchanges is the account: each line ends with a charge, the noised
answers of the exchange. It is written before the answer leaves the site, also for an
exchange that a server repeats with another task. The same task has the same answer, and
is charged at least once: again, if the site fails after the charge and before it has
recorded the task.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from fedbilevel.engines.example_releases import BatchUse
from fedbilevel.federation.exchange_counter import COUNT, ExchangeCounter
from fedbilevel.federation.site_rules import RULES, SiteRules
from fedbilevel.federation.transport import RefusedError, readable
from fedbilevel.plurals import count_noun
from fedbilevel.privacy import GaussianRelease, PoissonDraws, spent
from fedbilevel.transforms.private_batches import Level

WITHOUT_NOISE = "none"
"""The charge of an exchange without noise that the server does not know."""
NOTHING = "-"
"""The charge of an exchange whose answer reads no examples."""


class SiteEpsilon(NamedTuple):
    """The ε by example of a run at a site.

    Attributes:
        run: ε of the whole run.
        earlier: ε of all exchanges that the site has answered in any run.
        together: ε of both; it is below their sum.
        delta: δ of all three.

    Example:
        >>> SiteEpsilon(run=1.0, earlier=0.0, together=1.0, delta=1e-5).together
        1.0
    """

    run: float
    earlier: float
    together: float
    delta: float


class EpsilonAccount:
    """The ε of a site, and the rule that bounds it.

    Args:
        rules: rules of the site.
        answers: counter of the site, with the charges of all runs.

    Example:
        >>> use = BatchUse(Level.LOWER, batch_size=16, answers=1)
        >>> charge = charge_of({use: 3}, 2.0, {Level.LOWER: 200})
        >>> charge
        'lower:2.0:16:200:3'
        >>> account = EpsilonAccount(SiteRules(largest_epsilon=1.0), ExchangeCounter())
        >>> round(account.epsilon_of(Counter({charge: 10})), 2)
        1.07
        >>> account.epsilon_of(Counter({WITHOUT_NOISE: 1}))
        inf
    """

    def __init__(self, rules: SiteRules, answers: ExchangeCounter) -> None:
        self._most, self._delta = rules.largest_epsilon, rules.delta
        self._answers = answers
        # Charges whose ε is known to be within the rule: fewer spend less.
        self._within: Counter[str] = Counter()

    def require(self, charge: str) -> None:
        """Raise if the next answer would exceed the rule; call it with the lock held.

        Raises:
            RefusedError: if it would.
        """
        if math.isinf(self._most):
            return
        charges = self._answers.charges + Counter([charge])
        if charges <= self._within:
            return
        epsilon = self.epsilon_of(charges)
        if epsilon > self._most:
            self._refuse_without_noise(charges)
            raise RefusedError(
                "the site has spent the ε that its rules allow: with this answer it "
                f"would be {epsilon:.4g} at δ = {self._delta:g}, above "
                f"{self._most:g} (largest_epsilon in its local/{RULES}, for all runs "
                "together). Ask its operator to raise largest_epsilon"
            )
        self._within = charges

    def require_run(
        self, run: Counter[str], remaining: Counter[str], sizes: Mapping[Level, int]
    ) -> SiteEpsilon:
        """Return the ε of a run; raise if it would exceed the rule.

        Args:
            run: charges of the whole run.
            remaining: charges of the exchanges that the site has not answered.
            sizes: numbers of the site's examples, for the message.

        Raises:
            RefusedError: if it would.
        """
        with self._answers.lock():
            charges = self._answers.charges
        epsilon = SiteEpsilon(
            self.epsilon_of(run),
            self.epsilon_of(charges),
            self.epsilon_of(charges + remaining),
            self._delta,
        )
        if epsilon.together > self._most:
            held = " and ".join(
                f"{size} {level.name.lower()}" for level, size in sizes.items()
            )
            self._refuse_without_noise(charges)
            raise RefusedError(
                f"the run would spend ε = {epsilon.run:.4g} by example at δ = "
                f"{self._delta:g} with this site's {held} examples, and the site has "
                f"spent {epsilon.earlier:.4g} before: together {epsilon.together:.4g}, "
                f"but its rules allow {self._most:g} (largest_epsilon in its "
                f"local/{RULES}, for all runs together). Raise example_noise, set "
                "fewer rounds or smaller batches, or ask its operator to raise "
                "largest_epsilon"
            )
        self._within = charges + remaining
        return epsilon

    def _refuse_without_noise(self, charges: Mapping[str, int]) -> None:
        """Raise if there are answers without noise, after which ε has no bound."""
        # Lines of versions without an account have no charge.
        exchanges = charges.get(WITHOUT_NOISE, 0) + charges.get("", 0)
        if exchanges:
            raise RefusedError(
                f"the site has answered {count_noun(exchanges, 'exchange')} without "
                f"noise by example, or with an earlier version, so its ε is inf, above "
                f"{self._most:g} (largest_epsilon in its local/{RULES}, for all runs "
                "together). No noise undoes that: use other examples in another kit, "
                "or ask its operator to remove the rule"
            )

    def epsilon_of(self, charges: Mapping[str, int]) -> float:
        """Return the ε of exchanges: the larger one of both sets of examples.

        Args:
            charges: number of exchanges of each charge.

        Raises:
            RefusedError: if a charge is damaged, or dp-accounting is not installed.
        """
        totals: dict[Level, Counter[GaussianRelease]] = {}
        for charge, exchanges in charges.items():
            if charge in (WITHOUT_NOISE, ""):
                return math.inf
            for level, release, number in _releases(charge):
                total = totals.setdefault(level, Counter())
                total[release] += number * exchanges
        try:
            return max(
                (spent(total, self._delta) for total in totals.values()), default=0.0
            )
        except ImportError as error:
            raise RefusedError(f"the site cannot compute ε: {error}") from error


def charge_of(
    uses: Mapping[BatchUse, int], multiplier: float, sizes: Mapping[Level, int]
) -> str:
    """Return the charge of an exchange: its noised answers as a text.

    Args:
        uses: uses of batches.
        multiplier: noise multiplier.
        sizes: numbers of the site's examples.
    """
    parts = [
        f"{use.level.name.lower()}:{multiplier / use.answers**0.5!r}:{use.batch_size}:"
        f"{sizes[use.level]}:{number}"
        for use, number in sorted(uses.items())
    ]
    return ",".join(parts) or NOTHING


def _releases(charge: str) -> list[tuple[Level, GaussianRelease, int]]:
    if charge == NOTHING:
        return []
    try:
        result = []
        for part in charge.split(","):
            level, multiplier, draws, size, number = part.split(":")
            sampling = PoissonDraws(int(draws), int(size))
            release = GaussianRelease(float(multiplier), sampling)
            result.append((Level[level.upper()], release, int(number)))
        return result
    except (ValueError, KeyError):
        raise RefusedError(
            f"a line of {COUNT} in the site's kit is damaged: it ends with "
            f"{readable(charge[:50])!r}. Ask its operator to restore the file"
        ) from None
