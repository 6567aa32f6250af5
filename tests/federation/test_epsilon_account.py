"""The ε by example of a site, over all runs, restarts and jobs at the same time."""

import math
import threading

import pytest

from fedbilevel import ExampleNoise, FedBiO, LocalExamples, with_transforms
from fedbilevel.engines.example_releases import BatchUse
from fedbilevel.engines.protocol import Moment
from fedbilevel.federation import Failure, RefusedError, SiteRules, run_charges
from fedbilevel.federation.epsilon_account import EpsilonAccount, charge_of
from fedbilevel.federation.exchange_counter import COUNT, ExchangeCounter
from fedbilevel.federation.task_record import TaskRecord
from fedbilevel.privacy import GaussianRelease, PoissonDraws, spent
from fedbilevel.transforms.private_batches import Level
from tests.federation.test_site_rules import rows, site, task

pytestmark = pytest.mark.slow

CLINIC = LocalExamples(rows(40), rows(60, seed=1))
"""A site with fewer examples than the default of `smallest_batch`."""
SETTINGS = {"fewest_examples": 20, "most_exchanges": 2**31 - 1}


def clinic(multiplier, directory=None, rules=None, run="first", **settings):
    algorithm = with_transforms(
        FedBiO(0.1, batch_size=8),
        ExampleNoise(1.0, multiplier, **settings),
    )
    rules = SiteRules(**{**SETTINGS, "largest_epsilon": 2.0, **(rules or {})})
    return site(
        algorithm=algorithm, held=CLINIC, rules=rules, directory=directory, run=run
    )


def by_hand(multiplier, rounds):
    """Return ε of FedBiO: one upper and three lower batches of 8 in each round."""
    return max(
        spent(
            {GaussianRelease(multiplier, PoissonDraws(8, size)): draws * rounds}, 1e-5
        )
        for size, draws in ((40, 1), (60, 3))
    )


@pytest.mark.nightly
def test_a_run_beyond_the_rule_is_refused_at_enrolment_with_its_figure():
    """With a multiplier of 1 a job could spend any ε, since nothing bounded rounds."""
    expected = by_hand(1.0, 1000)
    assert expected > 50
    with pytest.raises(RefusedError) as caught:
        clinic(1.0).require_epsilon(1000)
    # As the submitter gets it.
    assert Failure.decode(caught.value.failure.encode()).reason == (
        f"refused: the run would spend ε = {expected:.4g} by example at δ = 1e-05 with "
        "this site's 40 upper and 60 lower examples, and the site has spent 0 before: "
        f"together {expected:.4g}, but its rules allow 2 (largest_epsilon in its "
        "local/site_rules.toml, for all runs together). Raise example_noise, set fewer "
        "rounds or smaller batches, or ask its operator to raise largest_epsilon"
    )
    epsilon = clinic(8.0).require_epsilon(20)
    assert epsilon.run == pytest.approx(by_hand(8.0, 20))
    assert (epsilon.earlier, epsilon.delta) == (0.0, 1e-5)
    assert epsilon.together == epsilon.run < 2


@pytest.mark.slow
def test_a_run_that_stops_for_its_budget_is_counted_until_then():
    within = clinic(2.0, epsilon=1.5).require_epsilon(10_000)
    assert 1.3 < within.run <= 1.5


@pytest.mark.slow
def test_answers_are_charged_over_runs_restarts_and_repetitions(tmp_path):
    """A server that ignores the enrolment gets no more answers than the rule allows."""
    most = by_hand(1.0, 5) * 1.001
    rules = {"largest_epsilon": most}

    def restarted(run="first"):
        return clinic(1.0, tmp_path, rules, run)

    restarted().answer(task(0))
    restarted().answer(task(0))  # The same task has the same answer.
    restarted().answer(task(1))
    # A repetition with another downlink is another answer.
    restarted().answer(task(1, x=4.0))
    device = restarted("second")
    device.answer(task(0, run="second"))
    epsilon = device.require_epsilon(2)
    assert epsilon.earlier == pytest.approx(by_hand(1.0, 4))
    assert epsilon.together == pytest.approx(by_hand(1.0, 5))
    with pytest.raises(RefusedError, match=r"has spent .* before: together"):
        device.require_epsilon(3)
    device.answer(task(1, run="second"))
    with pytest.raises(RefusedError, match=r"would be .* above .*largest_epsilon"):
        restarted("third").answer(task(0, run="third"))
    lines = (tmp_path / COUNT).read_text().splitlines()
    assert len(lines) == 5
    assert lines[0] == "first 0 0 upper:1.0:8:40:1,lower:1.0:8:60:3"


def test_jobs_at_the_same_time_share_one_account(tmp_path):
    use = BatchUse(Level.LOWER, batch_size=8, answers=1)
    charge = charge_of({use: 1}, 1.0, {Level.LOWER: 60})
    release = GaussianRelease(1.0, PoissonDraws(8, 60))
    rules = SiteRules(largest_epsilon=spent({release: 6}, 1e-5) * 1.001)
    answered = []

    def work(name):
        count = ExchangeCounter(tmp_path)
        record = TaskRecord(rules, tmp_path / name, count)
        for number in range(6):
            try:
                record.admit(Moment(number, 0), "aa", charge)
            except RefusedError:
                return
            answered.append(name)

    threads = [threading.Thread(target=work, args=(f"r{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == 6


@pytest.mark.slow
def test_answers_without_noise_leave_no_epsilon(tmp_path):
    site(directory=tmp_path).answer(task())
    assert (tmp_path / COUNT).read_text() == "first 0 0 none\n"
    with pytest.raises(RefusedError, match=r"1 exchange without noise .* another kit"):
        clinic(8.0, tmp_path, run="second").require_epsilon(1)
    # Lines of earlier versions do not say what was answered.
    (tmp_path / COUNT).write_text("first 0 0\n")
    account = ExchangeCounter(tmp_path)
    with account.lock():
        charges = account.charges
    assert EpsilonAccount(SiteRules(), account).epsilon_of(charges) == math.inf


@pytest.mark.slow
def test_a_site_traces_charges_before_the_first_exchange(monkeypatch):
    device = clinic(8.0)
    device.warm_up()
    # An exchange has a timeout, and nothing is traced in it.
    monkeypatch.delattr(run_charges, "exchange_uses")
    assert device.answer(task())


def test_a_damaged_charge_is_refused(tmp_path):
    (tmp_path / COUNT).write_text("first 0 0 lower:1.0\n")
    with pytest.raises(RefusedError, match=r"exchanges.txt .* ends with 'lower:1.0'"):
        clinic(8.0, tmp_path).require_epsilon(1)


def test_noise_that_the_rules_demand_replaces_the_smallest_batch():
    clinic(1.0)
    clinic(1.0, rules={"largest_epsilon": math.inf, "smallest_example_noise": 1.0})
    # Some noise alone does not, nor does noise of the server.
    with pytest.raises(RefusedError, match=r"draws batches of 8, .* at least 128"):
        clinic(1e-3, rules={"largest_epsilon": math.inf})


def test_a_job_without_noise_is_refused():
    with pytest.raises(RefusedError, match=r"so ε has no bound, .* allow at most 2"):
        site(rules=SiteRules(largest_epsilon=2.0))


@pytest.mark.slow
def test_a_site_accounts_for_its_own_number_of_examples():
    algorithm = with_transforms(FedBiO(0.1, batch_size=8), ExampleNoise(1.0, 2.0))
    rules = SiteRules(largest_epsilon=2.0)
    held = LocalExamples(rows(400), rows(600, seed=1))
    larger = site(algorithm=algorithm, held=held, rules=rules, run="first")
    assert larger.require_epsilon(20).run < 0.3 * by_hand(2.0, 20)
