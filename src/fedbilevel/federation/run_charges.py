"""The charges of a run's exchanges at one site, for its account of ε."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.examples import DeviceData
from fedbilevel.engines.example_releases import BatchUse
from fedbilevel.engines.protocol import PhaseReference, RunState
from fedbilevel.engines.spending import exchange_uses, spending_of_examples
from fedbilevel.federation.enrolment import Enrolment
from fedbilevel.federation.epsilon_account import (
    WITHOUT_NOISE,
    EpsilonAccount,
    SiteEpsilon,
    charge_of,
)
from fedbilevel.federation.transport import RefusedError
from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.transforms.private_batches import Level
from fedbilevel.transforms.transformed import noise_of

Uses = Sequence[Mapping[BatchUse, int]]
"""The uses of batches in each exchange of a round."""


class Charges:
    """The noised answers of each exchange of an algorithm, with a site's examples.

    Args:
        algorithm: algorithm with its transforms.
        problem: the two losses.
        state: first state of the server and of the site.
        data: data of the site.
        enrolment: numbers of the site's examples.
        is_secret: whether the server does not know the noise.
    """

    def __init__(
        self,
        algorithm: FederatedAlgorithm,
        problem: BilevelProblem,
        state: RunState,
        data: DeviceData,
        enrolment: Enrolment,
        *,
        is_secret: bool,
    ) -> None:
        noise = noise_of(algorithm)
        self._noise: ExampleNoise | None = None
        if isinstance(noise, ExampleNoise) and is_secret:
            self._noise = noise
        self._inputs = algorithm, problem, state, data
        self._sizes = {
            Level.UPPER: enrolment.upper_size,
            Level.LOWER: enrolment.lower_size,
        }

    def of(self, reference: PhaseReference) -> str:
        """Return the charge of an exchange."""
        if self._noise is None:
            return WITHOUT_NOISE
        opening, usual = self._uses
        return self._charge((opening if reference.opening else usual)[reference.index])

    def require_run(
        self, account: EpsilonAccount, rounds: int, last: tuple[int, int] | None
    ) -> SiteEpsilon | None:
        """Return the ε of a run; raise if the account forbids it.

        Args:
            account: account of the site.
            rounds: number of rounds of the run.
            last: round and exchange that the site answered last; None at the start.

        Raises:
            RefusedError: if it does.
        """
        noise = self._noise
        if noise is None:
            return None
        opening, usual = self._uses
        if noise.epsilon is not None:
            # The server stops for its budget, which counts the fewest examples of all
            # sites: not after the round at which this site would stop.
            spending = spending_of_examples(noise, opening, usual, self._sizes)
            rounds = spending.rounds_within(rounds)
        answered = 0
        if last is not None:
            started, exchanges = last
            answered = exchanges + 1
            if started:
                answered += len(opening) + (started - 1) * len(usual)
        whole = [*opening, *list(usual) * (rounds - 1)] if rounds else []
        charges = [self._charge(uses) for uses in whole]
        return account.require_run(
            Counter(charges), Counter(charges[answered:]), self._sizes
        )

    @cached_property
    def _uses(self) -> tuple[Uses, Uses]:
        try:
            return exchange_uses(*self._inputs)
        except ValueError as error:
            raise RefusedError(str(error).rstrip(".")) from error

    def _charge(self, uses: Mapping[BatchUse, int]) -> str:
        assert self._noise is not None, "called with noise only"
        return charge_of(uses, float(self._noise.multiplier), self._sizes)
