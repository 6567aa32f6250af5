"""The tasks that a site's rules refuse."""

import resource
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedbilevel import (
    AutoFedBiO,
    BilevelProblem,
    Clip,
    ExampleNoise,
    FedBiO,
    FedBiOAcc,
    FedNest,
    GaussianNoise,
    LFedNest,
    LocalBSGM,
    LocalExamples,
    NeumannSeries,
    WarmStart,
    with_transforms,
)
from fedbilevel.data.examples import StoredData, StoredExamples
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.federation import RefusedError, Site, SiteRules
from fedbilevel.federation.computation_timeout import RULES, computation_timeout
from fedbilevel.federation.messages import Answer, Task
from fedbilevel.federation.shared_entries import require_shared_entries
from fedbilevel.federation.task_record import ANSWERED
from fedbilevel.federation.wire_format import pack
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.metrics.survey import Survey

SALT = b"0123456789abcdef" * 2
FIRST = PhaseReference(opening=False, index=0)


def loss(x, y, batch):
    return jnp.mean((y - x * batch) ** 2)


PROBLEM = BilevelProblem(loss, loss)
ALGORITHM = FedBiO(0.1, batch_size=128)
SERIES, WARM = NeumannSeries(2, 0.5), WarmStart(0.1, batch_size=3)


def rows(size=200, seed=0):
    return np.random.default_rng(seed).normal(size=size)


HELD = LocalExamples(rows(), rows(300, seed=1))


def site(
    *, number=0, algorithm=ALGORITHM, held=HELD, salt=SALT, rules=None, **settings
):
    setting = PROBLEM, algorithm, held, 3.0, 0.0
    return Site(number, *setting, rules=rules or SiteRules(), salt=salt, **settings)


def task(round_number=0, *, x=3.0, run="first", seed=0, exchange=0):
    phase = FIRST.of(ALGORITHM, PROBLEM)
    server, _ = ALGORITHM.init(PROBLEM, jnp.asarray(x), jnp.zeros(()))
    downlink = pack(phase.broadcast(canonical(server)))
    key = np.asarray(jax.random.key_data(jax.random.key(seed)))
    moment = Moment(round_number, exchange)
    return Task(run, FIRST, moment, key, (0, 0), downlink).encode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transforms", "added"),
    [
        ((), "no noise by example"),
        ((ExampleNoise(1.0, 1.4),), "noise with the multiplier 1.4 by example"),
        # The server adds this noise, or does not.
        ((Clip(1.0), GaussianNoise(9.0)), "no noise by example"),
    ],
)
def test_a_job_with_too_little_noise_is_refused(transforms, added):
    rules = SiteRules(smallest_example_noise=1.5)
    algorithm = with_transforms(ALGORITHM, *transforms)
    with pytest.raises(RefusedError, match=f"adds {added}, .* at least 1.5"):
        site(algorithm=algorithm, rules=rules)
    enough = with_transforms(ALGORITHM, ExampleNoise(1.0, 1.5))
    assert site(algorithm=enough, rules=rules).enrolment.lower_size == 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "size"),
    [
        (FedBiO(0.1), 1),
        (FedBiOAcc(0.1, batch_size=128), 1),
        (AutoFedBiO(rounds=9), 16),
        (LocalBSGM(0.1, SERIES, batch_size=7), 7),
        (LocalBSGM(0.1, SERIES, warm_start=WARM, batch_size=128), 3),
    ],
    ids=lambda device: type(device).__name__,
)
def test_a_small_batch_is_refused_with_what_to_set(algorithm, size):
    with pytest.raises(RefusedError, match=f"draws batches of {size}, .* at least 128"):
        site(algorithm=algorithm)
    site(algorithm=algorithm, rules=SiteRules(smallest_batch=size))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "cause"),
    [
        (
            FedBiO(0.1, batch_size=3_000_000),
            r"draws \d+000000 examples at once, .* allow 10000. Set a smaller batch",
        ),
        (
            # A table of so large a batch took 69 s, then failed in Python.
            with_transforms(FedBiO(0.1, batch_size=3_000_000), ExampleNoise(1.0, 1.0)),
            "draws 3000000 examples at once, .* allow 10000. Set a smaller batch",
        ),
        (
            # Tracing 10,000 batches took 410 s.
            LocalBSGM(0.1, NeumannSeries(10_000, 0.5), batch_size=128),
            r"draws 128\d{4} examples at once, .* allow 10000. .* raise largest_batch",
        ),
        (
            LocalBSGM(0.1, NeumannSeries(80, 0.5), batch_size=128),
            r"draws 1\d{4} examples at once, .* allow 10000. .* raise largest_batch",
        ),
        (
            FedBiO(0.1, batch_size=128, local_steps=1_000_000),
            "repeats a computation 1000000 times in an exchange, .* allow 100000. Set "
            "fewer local_steps .* raise most_local_steps",
        ),
    ],
    ids=["batch", "private batch", "many terms", "terms", "steps"],
)
def test_a_job_with_too_much_work_is_refused_with_what_to_set(algorithm, cause):
    with pytest.raises(RefusedError, match=cause):
        site(algorithm=algorithm)


@pytest.mark.parametrize(
    "settings",
    [
        lambda: WarmStart(0.1, exchanges=2**31 - 1),
        lambda: FedNest(0.1, NeumannSeries(2**31 - 1, 0.5)),
        lambda: FedNest(0.1, SERIES, lower_rounds=2**31 - 1),
        lambda: LFedNest(0.1, SERIES, lower_rounds=2**31 - 1),
    ],
)
def test_a_job_cannot_fill_memory_with_exchanges(settings):
    """A tuple of these has 17 GB, and is made before rules are checked."""
    with pytest.raises(SettingError, match=r"2147483647, expected .* at most 100000"):
        settings()


def test_steps_are_counted_with_the_loops_within_them():
    def looped(x, y, batch):
        return jax.lax.fori_loop(0, 1000, lambda _, value: value, loss(x, y, batch))

    problem = BilevelProblem(loss, looped)
    algorithm = FedBiO(0.1, batch_size=128, local_steps=1000)
    with pytest.raises(RefusedError, match="repeats a computation 1000000 times"):
        Site(0, problem, algorithm, HELD, 3.0, 0.0)


def test_the_timeout_of_a_job_is_within_the_sites():
    device = site(rules=SiteRules(most_seconds=60))
    device.require_timeout(60.0)
    for timeout in (60.1, 1e9, float("nan")):
        with pytest.raises(RefusedError, match=r"Set timeout of .* most_seconds"):
            device.require_timeout(timeout)


@pytest.mark.parametrize(
    ("text", "seconds", "result"),
    [
        ("most_seconds = 60", 1e10, 60.0),
        ("most_seconds = 60", 5.0, 5.0),
        ("most_seconds = 60", float("nan"), 60.0),
        ("most_seconds = 1e9", 1e10, 3600.0),
        ("most_seconds = ", 1e10, 3600.0),
        ("", 1e10, 3600.0),
    ],
)
def test_a_computation_ends_by_the_clock_of_the_site(tmp_path, text, seconds, result):
    (tmp_path / RULES).write_text(text)
    assert computation_timeout(tmp_path, seconds) == result


@pytest.mark.slow
def test_a_mean_over_all_examples_is_a_batch_of_all():
    site(algorithm=Survey(batch_size=4))


@pytest.mark.parametrize("level", LocalExamples._fields)
def test_few_examples_are_refused(level):
    held = HELD._replace(**{level: rows(127)})
    with pytest.raises(RefusedError, match=f"has 127 {level} examples"):
        site(held=held)
    site(held=held, rules=SiteRules(fewest_examples=127))


def numbered(x, y, batch):
    return jnp.mean(jax.nn.sigmoid(x[batch]) * (y - 1.0) ** 2)


def penalised(x, y, batch):
    return numbered(x, y, batch) + jnp.sum(x**2) * y**2


def grouped(size):
    def weighed(x, y, batch):
        return numbered(x, y, batch // size)

    return weighed


@pytest.mark.slow
@pytest.mark.parametrize("lower", [numbered, penalised, grouped(4)])
def test_an_entry_of_x_for_each_example_is_refused(lower):
    held = LocalExamples(rows(128), np.arange(128))
    setting = BilevelProblem(loss_of_y, lower), ALGORITHM, held
    with pytest.raises(RefusedError, match="influenced by fewer than 5 lower examples"):
        Site(0, *setting, np.zeros(128), 0.0)
    Site(0, *setting, np.zeros(128), 0.0, rules=SiteRules(fewest_per_entry=1))


def loss_of_y(x, y, batch):
    return jnp.mean((y - batch) ** 2)


def of_no_example(x, y, batch):
    return loss_of_y(x, y, batch.astype(float)) + jnp.sum(x**2) * y**2


@pytest.mark.slow
@pytest.mark.parametrize("lower", [grouped(5), of_no_example])
def test_an_x_that_examples_share_is_fine(lower):
    held = LocalExamples(rows(128), np.arange(130))
    Site(0, BilevelProblem(loss_of_y, lower), ALGORITHM, held, np.zeros(26), 0.0)


def rooted(x, y, batch):
    return numbered(x, y, batch) * jnp.mean(jnp.sqrt(10.0 - x[batch]))


@pytest.mark.slow
@pytest.mark.parametrize(("lower", "start"), [(numbered, -1000.0), (rooted, 20.0)])
def test_a_start_where_no_example_is_seen_to_move_x_is_no_way_around(lower, start):
    numbers = StoredExamples(jnp.arange(128), jnp.array(0), jnp.array(128))
    point = jnp.full(128, start), jnp.zeros(())
    setting = BilevelProblem(numbered, lower), *point, StoredData(numbers, numbers)
    text = "128 of 128 entries of x are influenced by fewer than 5 upper examples"
    with pytest.raises(RefusedError, match=text):
        require_shared_entries(SiteRules(), *setting)


def test_derivatives_that_are_nowhere_finite_are_refused():
    numbers = StoredExamples(jnp.arange(128), jnp.array(0), jnp.array(128))

    def nowhere(x, y, batch):
        return jnp.mean(jnp.sqrt(x[batch // 64] - 1000.0)) * y**2

    problem = BilevelProblem(grouped(64), nowhere)
    setting = problem, jnp.zeros(2), jnp.zeros(()), StoredData(numbers, numbers)
    with pytest.raises(RefusedError, match=r"lower loss .* are not finite"):
        require_shared_entries(SiteRules(), *setting)


@pytest.mark.slow
def test_a_repeated_task_gets_the_same_bytes_and_another_one_other_samples(tmp_path):
    device = site(directory=tmp_path)
    first = device.answer(task())
    assert device.answer(task()) == first
    device.answer(task(1))
    assert device.answer(task()) == first
    # The same after a restart.
    again = site(directory=tmp_path)
    assert again.answer(task()) == first
    # The samples depend on every part of the task.
    others = [task(2), task(2, seed=1), task(2, x=4.0)]
    drawn = {np.asarray(_moved(device.answer(other))).tobytes() for other in others}
    assert len(drawn) == 3


def _moved(answer):
    return np.concatenate(
        [np.ravel(array) for array in Answer.decode(answer).arrays.values()]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"algorithm": replace(ALGORITHM, batch_size=129)},
        {"algorithm": replace(ALGORITHM, learning_rate=0.2)},
        {"held": LocalExamples(rows(), rows(299))},
        {"number": 1},
    ],
    ids=["batch", "rate", "examples", "number"],
)
def test_the_same_message_with_other_settings_is_another_task(other, tmp_path):
    """The mean of 129 draws minus that of the same 128 would reveal an example."""
    rules = SiteRules(most_rollbacks=0)
    site(rules=rules, directory=tmp_path).answer(task())
    changed = site(rules=rules, directory=tmp_path, **other)
    with pytest.raises(RefusedError, match="or other settings than the task"):
        changed.answer(task())
    # If rollbacks are allowed, it counts as one and draws other samples.
    rules = SiteRules(most_exchanges=2)
    site(rules=rules, directory=tmp_path, **other).answer(task())
    with pytest.raises(RefusedError, match="most_exchanges = 2 "):
        site(rules=rules, directory=tmp_path).answer(task())


@pytest.mark.slow
def test_another_batch_draws_other_samples():
    sizes = 128, 129
    weighted = [
        size
        * _moved(site(algorithm=replace(ALGORITHM, batch_size=size)).answer(task()))
        for size in sizes
    ]
    # y started at 0 and moved by 6 rates times the mean of the samples.
    drawn = (weighted[1] - weighted[0]) / (6 * 0.1)
    distances = np.abs(drawn[:, None] - HELD.lower[None, :])
    assert np.min(distances) > 1e-9


@pytest.mark.slow
def test_samples_are_not_the_servers_to_know():
    same = task(5)
    simulated = site(rules=replace(SiteRules(), simulated_draws=True)).answer(same)
    answers = [site(salt=salt).answer(same) for salt in (SALT, b"other", None, None)]
    assert len({simulated, *answers}) == 5
    assert site().answer(same) == answers[0]


def test_another_downlink_for_an_answered_exchange_is_refused():
    device = site(rules=SiteRules(most_rollbacks=0))
    device.answer(task(3))
    for other in (task(3, x=4.0), task(3, seed=1), task(2)):
        with pytest.raises(RefusedError, match="has another downlink"):
            device.answer(other)
    device.answer(task(3))
    device.answer(task(4))


def test_a_server_may_go_back_so_many_times_and_a_restart_clears_nothing(tmp_path):
    rules = SiteRules(most_rollbacks=2)
    device = site(rules=rules, directory=tmp_path)
    for number in range(5):
        device.answer(task(number))
    # An honest server resumed at round 2 repeats a task, then sends another.
    for number in (2, 3, 4):
        device.answer(task(number))
    device.answer(task(3, x=4.0))
    device.answer(task(4, x=4.0))
    device = site(rules=rules, directory=tmp_path)
    device.answer(task(1, x=5.0))
    for other in (task(1, x=6.0), task(0, x=5.0)):
        with pytest.raises(RefusedError, match="allows 2 rollbacks"):
            device.answer(other)
    device.answer(task(2, x=5.0))
    device.answer(task(0))  # The same as the first answer.


def test_exchanges_are_bounded_and_a_restart_clears_nothing(tmp_path):
    rules = SiteRules(most_exchanges=3)
    for number in range(3):
        site(rules=rules, directory=tmp_path).answer(task(number))
    device = site(rules=rules, directory=tmp_path)
    with pytest.raises(RefusedError, match=r"most_exchanges = 3 .* all runs"):
        device.answer(task(3))
    device.answer(task(2))


@pytest.mark.parametrize("in_memory", [True, False])
def test_another_run_finds_the_same_bound(tmp_path, in_memory):
    directory = None if in_memory else tmp_path
    device = site(rules=SiteRules(most_exchanges=3), directory=directory)
    for number, run in enumerate(["first", "second", "first"]):
        device.answer(task(number, run=run))
    for run in ("first", "second", "third"):
        with pytest.raises(RefusedError, match=r"most_exchanges = 3 .* all runs"):
            device.answer(task(3, run=run))


def test_a_line_that_was_not_finished_is_cut_off(tmp_path):
    site(directory=tmp_path).answer(task())
    file = tmp_path / "first" / ANSWERED
    whole = file.read_text()
    file.write_text(whole + "1 0 abc")
    device = site(directory=tmp_path)
    device.answer(task(1))
    assert file.read_text().startswith(whole + "1 0 ")
    assert len(file.read_text().splitlines()) == 2
    assert site(directory=tmp_path).answer(task(1)) == device.answer(task(1))


def test_a_damaged_list_is_no_clean_slate(tmp_path):
    site(directory=tmp_path).answer(task())
    (tmp_path / "first" / ANSWERED).write_text("nonsense\n")
    with pytest.raises(RefusedError, match=r"answered.txt .* is damaged: 'nonsense'"):
        site(directory=tmp_path).answer(task())


def test_a_task_that_cannot_be_recorded_is_not_answered(tmp_path):
    (tmp_path / "first").write_text("no directory")
    with pytest.raises(RefusedError, match="cannot record the task"):
        site(directory=tmp_path).answer(task())


def test_half_a_line_is_taken_back(tmp_path):
    device = site(directory=tmp_path)
    device.answer(task())
    file = tmp_path / "first" / ANSWERED
    before = file.read_text()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 9, limits[1]))
    try:
        with pytest.raises(RefusedError, match="cannot record the task"):
            device.answer(task(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_text() == before
    device.answer(task(1))
    assert len(file.read_text().splitlines()) == 2


def test_only_the_run_that_it_enrolled_in_is_answered():
    device = site(run="first")
    device.answer(task())
    with pytest.raises(RefusedError, match="the site answers first only"):
        device.answer(task(run="second"))


@pytest.mark.nightly
def test_draws_of_a_simulation_are_those_of_its_key():
    rules = replace(SiteRules(), simulated_draws=True)
    uplink = _moved(site(rules=rules, salt=b"any").answer(task(2)))
    assert np.array_equal(uplink, _moved(site(rules=rules).answer(task(2))))
