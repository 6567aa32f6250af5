"""Tests of ε against dp-accounting's accountants and the closed form of a Gaussian."""

import math
from fractions import Fraction
from itertools import pairwise

import dp_accounting
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm, poisson

from fedbilevel.mathematics.settings import SettingError
from fedbilevel.privacy import (
    Budget,
    Everyone,
    GaussianRelease,
    Method,
    PoissonDraws,
    UnknownSampling,
    WithoutReplacement,
    WithReplacement,
    account,
    count_within,
    noise_for,
    spent,
)
from fedbilevel.privacy.distributions import distribution, profile_of
from fedbilevel.privacy.poisson import poisson_table

DELTA = 1e-5
RELATION = dp_accounting.NeighboringRelation


def closed_form(noise, delta):
    """Return ε of one Gaussian: Balle and Wang 2018, Theorem 8, solved for ε."""

    def excess(epsilon):
        second = epsilon + norm.logcdf(-1 / (2 * noise) - epsilon * noise)
        return norm.cdf(1 / (2 * noise) - epsilon * noise) - math.exp(second) - delta

    if excess(0.0) <= 0:
        return 0.0
    return brentq(excess, 0.0, 10 / noise**2 + 100 / noise, xtol=1e-13)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize("rounds", [1, 10, 1000])
@pytest.mark.parametrize("noise", [1.0, 20.0, 300.0])
def test_everyone_is_one_gaussian_mechanism(noise, rounds, delta):
    exact = closed_form(noise / math.sqrt(rounds), delta)
    epsilon = spent({GaussianRelease(noise): rounds}, delta)
    # From above; 1e-11 is the tolerance of the two solvers.
    assert epsilon >= exact - 1e-11
    assert epsilon == pytest.approx(exact, rel=1e-8, abs=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 1), (40.0, 1000)])
def test_everyone_has_the_epsilon_of_dp_accountings_loss_distributions(noise, rounds):
    accountant = dp_accounting.pld.PLDAccountant(RELATION.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
    # Their discretisation is pessimistic, by less than 1e-7 here.
    oracle = accountant.get_epsilon(DELTA)
    epsilon = spent({GaussianRelease(noise): rounds}, DELTA)
    assert epsilon <= oracle + 1e-9
    assert epsilon == pytest.approx(oracle, abs=1e-6)


@pytest.mark.slow
def test_different_noise_composes_as_in_dp_accounting():
    accountant = dp_accounting.pld.PLDAccountant(RELATION.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.GaussianDpEvent(5.0), 10)
    accountant.compose(dp_accounting.GaussianDpEvent(9.0), 20)
    releases = {GaussianRelease(5.0): 10, GaussianRelease(9.0, UnknownSampling()): 20}
    result = account(releases, DELTA)
    assert result.epsilon == pytest.approx(accountant.get_epsilon(DELTA), abs=1e-6)
    assert result.method is Method.GAUSSIAN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "sample", "rounds"), [(2.0, 10, 100), (5.0, 100, 100), (10.0, 500, 10)]
)
def test_samples_lie_between_poisson_sampling_and_renyi_accounting(
    noise, sample, rounds
):
    population = 1000
    poisson = dp_accounting.pld.PLDAccountant(RELATION.REPLACE_SPECIAL)
    event = dp_accounting.GaussianDpEvent(noise)
    share = sample / population
    poisson.compose(dp_accounting.PoissonSampledDpEvent(share, event), rounds)
    release = GaussianRelease(noise, WithoutReplacement(sample, population))
    result = account({release: rounds}, DELTA)
    assert poisson.get_epsilon(DELTA) < result.epsilon
    assert result.epsilon < renyi_of(noise, sample, population, rounds)
    assert result.epsilon < spent({GaussianRelease(noise): rounds}, DELTA)
    assert result.method is Method.SUBSAMPLED


def renyi_of(noise, sample, population, rounds):
    """Return ε by dp-accounting's accountant of samples without replacement."""
    # Its multiplier is relative to the change of the sum if a device of the sample is
    # replaced, which is two clips.
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        population, sample, dp_accounting.GaussianDpEvent(noise / 2)
    )
    accountant = dp_accounting.rdp.RdpAccountant(
        neighboring_relation=RELATION.REPLACE_ONE
    )
    return accountant.compose(event, rounds).get_epsilon(DELTA)


@pytest.mark.slow
def test_dp_accountings_two_accountants_scale_a_replacement_differently():
    # The reason for halving the noise multiplier in `renyi_of` alone.
    renyi = dp_accounting.rdp.RdpAccountant(neighboring_relation=RELATION.REPLACE_ONE)
    renyi.compose(dp_accounting.GaussianDpEvent(1.0))
    np.testing.assert_allclose(renyi.rdp, renyi.orders / 2)  # Distance 1.
    losses = dp_accounting.pld.PLDAccountant(RELATION.REPLACE_ONE)
    losses.compose(dp_accounting.GaussianDpEvent(1.0))
    expected = closed_form(1 / 2, DELTA)  # Distance 2.
    assert losses.get_epsilon(DELTA) == pytest.approx(expected, abs=1e-6)


def test_no_accountant_of_dp_accounting_has_draws_with_replacement():
    event = dp_accounting.SampledWithReplacementDpEvent(
        100, 10, dp_accounting.GaussianDpEvent(1.0)
    )
    for relation in RELATION:
        assert not dp_accounting.pld.PLDAccountant(relation).supports(event)
        renyi = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
        assert not renyi.supports(event)


def test_one_draw_is_a_sample_of_one():
    draw = GaussianRelease(2.0, WithReplacement(1, population=50))
    sample = GaussianRelease(2.0, WithoutReplacement(1, population=50))
    assert spent({draw: 30}, DELTA) == pytest.approx(spent({sample: 30}, DELTA))


def test_repeated_draws_cost_more_than_distinct_ones():
    draws = GaussianRelease(4.0, WithReplacement(20, population=100))
    sample = GaussianRelease(4.0, WithoutReplacement(20, population=100))
    assert spent({draws: 20}, DELTA) > spent({sample: 20}, DELTA)


def test_a_sample_of_all_devices_is_not_amplified():
    sample = GaussianRelease(2.0, WithoutReplacement(7, population=7))
    assert spent([sample], DELTA) == spent([GaussianRelease(2.0)], DELTA)


@pytest.mark.slow
def test_a_finer_grid_hardly_lowers_epsilon(monkeypatch):
    from fedbilevel.privacy import distributions

    release = GaussianRelease(3.0, WithoutReplacement(10, population=1000))
    other = GaussianRelease(40.0)
    coarse = spent({release: 100, other: 2}, DELTA)
    monkeypatch.setattr(distributions, "POINTS", 2**15)
    # A δ that differs in the last bits avoids the cache.
    fine = spent({release: 100, other: 2}, DELTA * (1 + 1e-12))
    assert fine <= coarse <= 1.002 * fine


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [Everyone(), WithoutReplacement(20, 200), WithReplacement(5, 200)],
    ids=repr,
)
def test_epsilon_is_monotone(sampling):
    def epsilon(noise=4.0, rounds=20, delta=DELTA):
        return spent({GaussianRelease(noise, sampling): rounds}, delta)

    assert epsilon() < epsilon(rounds=21) < epsilon(rounds=40)
    assert epsilon() > epsilon(noise=4.5) > epsilon(noise=8.0)
    assert epsilon() > epsilon(delta=2e-5) > epsilon(delta=1e-3)


def test_larger_samples_cost_more():
    shares = [
        spent({GaussianRelease(4.0, WithoutReplacement(sample, 200)): 20}, DELTA)
        for sample in (1, 10, 50, 199, 200)
    ]
    assert shares == sorted(shares)


def test_little_noise_is_accounted_without_amplification():
    release = GaussianRelease(0.01, WithoutReplacement(5, population=50))
    assert account([release], DELTA).method is Method.GAUSSIAN
    assert spent([release], DELTA) == spent([GaussianRelease(0.01)], DELTA)


def test_no_noise_protects_nothing_and_no_release_spends_nothing():
    assert spent([GaussianRelease(1.0), GaussianRelease(0.0)], DELTA) == math.inf
    assert account([GaussianRelease(0.0)], DELTA).method is Method.NONE
    assert spent({}, DELTA) == spent({GaussianRelease(1.0): 0}, DELTA) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [Everyone(), WithoutReplacement(50, population=1000)], ids=repr
)
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_calibrated_noise_reaches_the_budget_and_never_exceeds_it(epsilon, sampling):
    noise = noise_for(epsilon, DELTA, rounds=50, sampling=sampling)
    result = spent({GaussianRelease(noise, sampling): 50}, DELTA)
    assert 0.998 * epsilon <= result <= epsilon


def test_calibrated_noise_of_everyone_is_dp_accountings():
    expected = dp_accounting.get_sigma_gaussian(2.0, DELTA) * math.sqrt(100)
    noise = noise_for(2.0, DELTA, rounds=100)
    assert expected <= noise <= 1.0003 * expected


@pytest.mark.slow
def test_the_number_within_a_budget_is_the_largest():
    budget = Budget(2.0, DELTA)
    release = GaussianRelease(8.0, WithoutReplacement(25, population=100))
    earlier = {release: 5}
    number = count_within(budget, release, earlier)
    assert number > 5
    assert spent({release: 5 + number}, DELTA) <= 2.0
    assert spent({release: 6 + number}, DELTA) > 2.0


def test_a_budget_may_allow_nothing():
    assert count_within(Budget(0.1, DELTA), GaussianRelease(1.0)) == 0
    assert count_within(Budget(0.1, DELTA), GaussianRelease(0.0)) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianRelease(math.nan), "noise_multiplier is nan"),
        (lambda: GaussianRelease(-1.0), "noise_multiplier is -1.0"),
        (lambda: WithoutReplacement(5, 4), "sample is 5, expected at most the pop"),
        (lambda: WithoutReplacement(0, 4), "sample is 0"),
        (lambda: WithReplacement(0, 4), "draws is 0"),
        (lambda: Budget(0.0, DELTA), "epsilon is 0.0"),
        (lambda: Budget(1.0, 0.0), "delta is 0.0"),
        (lambda: spent([GaussianRelease(1.0)], 1.0), "delta is 1.0"),
        (lambda: spent({GaussianRelease(1.0): -1}, DELTA), "is -1, expected a whole"),
        (lambda: spent({GaussianRelease(1.0): 0.5}, DELTA), "is 0.5, expected a whole"),
        (lambda: noise_for(1.0, DELTA, rounds=0), "rounds is 0"),
        (lambda: noise_for(-1.0, DELTA, rounds=1), "epsilon is -1.0"),
    ],
)
def test_an_invalid_value_is_refused_with_a_sentence(call, message):
    with pytest.raises((SettingError, TypeError)) as refusal:
        call()
    text = str(refusal.value)
    assert message in text
    assert text.endswith(".")
    assert "\n" not in text


# SciPy's sum of exponentials overflows in dp-accounting, for improbable losses.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("noise", "draws", "population", "rounds"), [(8.0, 64, 400, 200), (3.0, 4, 50, 10)]
)
def test_poisson_draws_have_the_epsilon_of_dp_accountings_mixture(
    noise, draws, population, rounds
):
    sampling = PoissonDraws(draws, population)
    shares = {0: math.exp(-draws / population), **sampling.occurrences()}
    event = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        noise, list(shares), list(shares.values())
    )
    interval = 2.0**-8
    accountant = dp_accounting.pld.PLDAccountant(
        RELATION.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
    )
    accountant.compose(event, rounds)
    release = GaussianRelease(noise, sampling)
    # The same grid of losses: both round up.
    ours = distribution(release, interval).self_compose(rounds)
    assert ours.get_epsilon_for_delta(DELTA) == pytest.approx(
        accountant.get_epsilon(DELTA), abs=1e-6
    )
    # `spent` has a finer grid.
    epsilon = spent({release: rounds}, DELTA)
    assert epsilon < accountant.get_epsilon(DELTA) + 1e-6
    assert epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=0.05)


def test_poisson_draws_need_less_noise_than_a_fixed_number():
    few = GaussianRelease(4.0, PoissonDraws(128, 1000))
    fixed = GaussianRelease(4.0, WithReplacement(128, 1000))
    assert spent({few: 100}, DELTA) < 0.6 * spent({fixed: 100}, DELTA)


def test_a_fixed_number_of_draws_is_not_dominated_by_the_mixture():
    """The displaced examples matter: ε of the mixture would be wrong for them.

    One draw of N examples, of which all but one have the term +1 and that one −1 or 0.
    """
    population, noise, epsilon = 10, 2.0, 0.05
    grid = np.linspace(-40, 40, 200_001)
    share = 1 / population

    def density(center):
        return (1 - share) * norm.pdf(grid, 1, noise) + share * norm.pdf(
            grid, center, noise
        )

    excess = np.maximum(density(-1.0) - math.exp(epsilon) * density(0.0), 0.0)
    exact = np.trapezoid(excess, grid)
    shown = profile_of(
        GaussianRelease(noise, PoissonDraws(1, population)), np.array([epsilon])
    )
    bound = profile_of(
        GaussianRelease(noise, WithReplacement(1, population)), np.array([epsilon])
    )
    assert shown.with_device[0] < exact <= bound.with_device[0]


@pytest.mark.parametrize("mean", [1, 8, 128])
def test_batch_sizes_are_dominated_by_poisson_numbers_exactly(mean):
    """Ratios to Poisson probabilities never increase: δ has no part for cut batches."""
    table = poisson_table(mean)
    high, low = (leaf.tolist() for leaf in table[1:])
    thresholds = [2**32 * upper + lower for upper, lower in zip(high, low, strict=True)]
    weights = [b - a for a, b in pairwise([0, *thresholds, 2**64])]
    # P(n) is in proportion to mean^n / n!.
    scaled = [
        Fraction(weight * math.factorial(number), mean**number)
        for number, weight in enumerate(weights)
    ]
    assert all(first >= then for first, then in pairwise(scaled))
    assert poisson.sf(table.capacity, mean) < 1e-16
    probabilities = [weight / 2**64 for weight in weights]
    expected = poisson.pmf(range(len(weights)), mean)
    np.testing.assert_allclose(probabilities, expected, atol=1e-11)
