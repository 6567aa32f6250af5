"""Sites without examples of a loss, weights by level and rows by site."""

import re
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from fedbilevel import (
    BilevelProblem,
    Clip,
    ExampleNoise,
    FedBiO,
    FixedPoint,
    InMemoryDevices,
    Limits,
    LocalExamples,
    Simulation,
    SiteRows,
    UniformSample,
    Weights,
    run,
    with_transforms,
    with_whole_batches,
)
from fedbilevel.data.weights import factors_of, with_levels
from fedbilevel.deployment.server_computation import federated_work
from fedbilevel.deployment.server_report import ServerReport
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import Moment, PhaseReference
from fedbilevel.experiments.schema import CustomProblem, Experiment, FederationSettings
from fedbilevel.federation import (
    REHEARSAL,
    Computation,
    EnrolledDevices,
    Enrolment,
    EnrolmentTerms,
    Federation,
    InProcess,
    RefusedError,
    Site,
    SiteRules,
    enrol,
)
from fedbilevel.federation.messages import Task
from fedbilevel.federation.server_enrolment import prepare_sites
from fedbilevel.federation.site import compute_on_device
from fedbilevel.federation.transport import PREPARE
from fedbilevel.federation.wire_format import decode, encode, pack
from fedbilevel.mathematics.settings import SettingError
from fedbilevel.problems import Model
from tests import quadratic
from tests.algorithms.table import ALGORITHMS, in_tiers
from tests.engines.test_levels import (
    LOWER,
    UPPER,
    K,
    Y,
    held,
    levels,
    lower_loss,
    numbers,
    start,
    upper_loss,
)
from tests.waiting import HANG

FORM = held()[0]
# The row of an absent site is the mean of equal uploads, which can differ from them in
# the last bit: 1e-16. Adam divides this change by its size plus 1e-8.
TOLERANCES = {"FedBiOAcc, Adam on the server": 1e-8}
BY_DAY = ("two exchanges, private state",)
PROBLEM = BilevelProblem(upper_loss, lower_loss)
PLAIN = quadratic.problem()
X = np.ones(quadratic.X_SIZE)


def sites_of(
    algorithm: Any, problem: Any = PROBLEM, x: Any = None, **settings: Any
) -> dict[str, Site]:
    """Return a site for each device of `levels`."""
    x = start()[0] if x is None else x
    devices = levels()
    return {
        name: Site(
            number,
            problem,
            algorithm,
            devices.local(number),
            x,
            Y,
            **{"form": FORM, "rules": REHEARSAL, **settings},
        )
        for number, name in enumerate(devices.names)
    }


def enrolled(sites: dict[str, Site]) -> EnrolledDevices:
    return EnrolledDevices({name: each.enrolment for name, each in sites.items()}, FORM)


def federated(sites: dict[str, Site], transport: Any = None) -> Federation:
    transport = transport or InProcess(sites)
    return Federation(transport, enrolled(sites), run="first", timeout=HANG)


class Recording(InProcess):
    """A transport that stores all messages to sites."""

    def __init__(self, sites):
        super().__init__(sites)
        self.sent: list[dict[str, bytes]] = []

    def exchange(self, messages, left):
        self.sent.append(dict(messages))
        yield from super().exchange(messages, left)


def follow(
    sites: dict[str, Site],
    algorithm: Any,
    problem: Any,
    x: Any,
    weights: Any,
    tolerance: float | None = None,
) -> None:
    """Compare the federation of sites with the simulation."""
    settings: dict[str, Any] = {
        "rounds": 3,
        "participation": UniformSample(4),
        "weights": weights,
    }
    arguments = algorithm, levels(), x, Y
    expected = numbers(run(problem, *arguments, engine=Simulation(), **settings))
    ours = numbers(
        run(
            problem,
            algorithm,
            enrolled(sites),
            x,
            Y,
            engine=federated(sites),
            **settings,
        )
    )
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance or 1e-10)


@in_tiers(quick=(), check=BY_DAY)
def test_sites_follow_the_simulation(name):
    algorithm, x = ALGORITHMS[name](), start()[0]
    sites = sites_of(algorithm)
    follow(sites, algorithm, PROBLEM, x, Weights(UPPER, LOWER), TOLERANCES.get(name))


@pytest.mark.slow
def test_weights_by_level_alone_are_followed_without_compiling_again():
    """Sites with both levels and a plain x get factors that they did not expect."""
    algorithm = FedBiO(0.1, 0.3, 0.5, 0.4)
    sites = sites_of(algorithm, PLAIN, X)
    follow(sites, algorithm, PLAIN, X, Weights(UPPER, LOWER))
    work: Any = compute_on_device
    compiled = work._cache_size()
    follow(sites, algorithm, PLAIN, X, Weights(UPPER[::-1] * (UPPER > 0) + UPPER))
    assert work._cache_size() == compiled


@pytest.mark.slow
def test_prepared_sites_compile_nothing_at_their_first_task(caplog):
    def compilations() -> int:
        text = "Compiling jit(compute_on_device)"
        return sum(text in message for message in caplog.messages)

    algorithm, weights = FedBiO(0.1, local_steps=7), Weights([2.0, 1.0])
    devices = InMemoryDevices(held()[:2])
    sites = {
        f"site {number}": Site(
            number, PLAIN, algorithm, devices.local(number), X, Y, rules=REHEARSAL
        )
        for number in range(2)
    }
    with jax.log_compiles(True):
        sites["site 0"].warm_up()
        assert compilations() == 1
        prepare_sites(InProcess(sites), list(sites), HANG)
        prepare_sites(InProcess(sites), list(sites), HANG)
        before = compilations()
        assert before == 2
        engine = federated(sites)
        list(
            run(
                PLAIN,
                algorithm,
                enrolled(sites),
                X,
                Y,
                rounds=2,
                weights=weights,
                engine=engine,
            )
        )
        assert compilations() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "transforms",
    [(ExampleNoise(0.5, 1.0, from_seed=True),), (Clip(0.5), FixedPoint())],
)
def test_rows_by_site_alone_allow_transforms_without_factors(transforms):
    algorithm = with_transforms(FedBiO(0.1, 0.3, 0.5, 0.4), *transforms)
    rows = np.linspace(-1, 1, 3 * quadratic.X_SIZE).reshape(3, -1)
    x, devices = SiteRows(rows), InMemoryDevices(held()[:3])
    sites = {
        f"site {number}": Site(
            number, PLAIN, algorithm, devices.local(number), x, Y, rules=REHEARSAL
        )
        for number in range(3)
    }
    ours, expected = (
        numbers(run(PLAIN, algorithm, held_by, x, Y, rounds=3, engine=engine))
        for held_by, engine in (
            (enrolled(sites), federated(sites)),
            (devices, Simulation()),
        )
    )
    assert np.abs(expected[-1] - expected[0]).max() > 1e-4
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_whole_batches_are_followed():
    algorithm = with_whole_batches(FedBiO(0.1, 0.3, 0.5, 0.4))
    x = start()[0]
    follow(sites_of(algorithm), algorithm, PROBLEM, x, Weights(UPPER, LOWER))


def recorded_tasks(problem: Any, x: Any, weights: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of the tasks of a round, by site."""
    algorithm = FedBiO(0.1, 0.3, 0.5, 0.4)
    sites = sites_of(algorithm, problem, x)
    transport = Recording(sites)
    engine = federated(sites, transport)
    next(
        run(
            problem,
            algorithm,
            enrolled(sites),
            x,
            Y,
            rounds=1,
            weights=weights,
            engine=engine,
        )
    )
    (messages,) = transport.sent
    return {name: decode(message) for name, message in messages.items()}


@pytest.mark.slow
def test_each_site_gets_its_own_factors_and_no_others():
    weights = Weights(UPPER, LOWER)
    tasks = recorded_tasks(PLAIN, X, weights)
    factors = factors_of(with_levels(levels(), weights)[0])
    assert factors is not None
    for expected, name in zip(factors, levels().names, strict=True):
        np.testing.assert_array_equal(tasks[name]["factors"], expected)
    common = ["run", "phase", "moment", "key"]
    names = list(tasks["site 0"])
    assert names[:4] == common
    assert names[-2:] == ["factors", "counted"]


@pytest.mark.slow
def test_messages_have_no_factors_if_both_losses_have_the_same_weights():
    x = start()[0]
    same = [0.0, 1.0, 0.0, 0.0, 2.0]
    tasks = recorded_tasks(PROBLEM, x, same)
    assert sorted(tasks) == ["site 1", "site 4"]
    for fields in tasks.values():
        assert "factors" not in fields


def task_for(site: Site, **changes: Any) -> dict[str, np.ndarray]:
    """Return the fields of a task for a site of `sites_of(algorithm, PLAIN, X)`."""
    algorithm = FedBiO(0.1, 0.3, 0.5, 0.4)
    server, _ = canonical(algorithm.init(PLAIN, X, Y))
    phase = PhaseReference(False, 0)
    downlink = phase.of(algorithm, PLAIN).broadcast(server)
    key = np.zeros(2, np.uint32)
    arrays = pack(jax.tree.map(np.asarray, downlink))
    task = Task("first", phase, Moment(0, 0), key, (0, 0), arrays, (1.0, 1.0))
    return decode(task.encode()) | changes


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        (
            np.array([1.0, 2e6]),
            "factors of the upper and the lower loss are 1 and 2e+06",
        ),
        (np.array([np.nan, 1.0]), "are nan and 1, but a site accepts 0 to 1000000"),
        (np.array([-0.5, 1.0]), "are -0.5 and 1, but"),
        (np.array([1.0, np.inf]), "are 1 and inf, but"),
        (np.array([1.0]), "are not two numbers of float64"),
        (np.ones(2, np.float32), "are not two numbers of float64"),
        (
            np.array([0.5, 1.0]),
            "the factor 0.5 for the upper loss, but the site has no",
        ),
        (None, "the factor 1 for the upper loss, but the site has no upper examples"),
    ],
)
def test_factors_that_a_site_cannot_accept_are_refused(factors, text):
    site = sites_of(FedBiO(0.1, 0.3, 0.5, 0.4), PLAIN, X)["site 0"]
    fields = task_for(site)
    last = fields.pop("counted")
    fields = fields | {"factors": factors, "counted": last}
    if factors is None:
        del fields["factors"]
    with pytest.raises(RefusedError, match=re.escape(text)):
        site.answer(encode(fields))
    site.answer(encode(task_for(site, factors=np.array([0.0, 1.0]))))


def test_other_factors_are_another_task_with_other_samples():
    """The record of tasks covers factors, as it covers the downlink."""
    algorithm = FedBiO(0.1, 0.3, 0.5, 0.4)
    rules = SiteRules(1, 1, 1, most_rollbacks=0)
    site = sites_of(algorithm, PLAIN, X, rules=rules)["site 1"]
    key = np.zeros(2, np.uint32)
    first = encode(task_for(site, key=key))
    assert site.answer(first) == site.answer(first)
    with pytest.raises(RefusedError, match="most_rollbacks"):
        site.answer(encode(task_for(site, factors=np.array([1.0, 0.5]))))


def test_a_site_without_a_level_obeys_the_rules_of_the_other():
    rules = SiteRules(smallest_batch=1, fewest_examples=3, fewest_per_entry=1)
    sites = sites_of(FedBiO(0.1), PLAIN, X, rules=rules)
    assert sites["site 0"].enrolment.levels == ("lower",)
    with pytest.raises(RefusedError, match="3 lower examples, but its rules require"):
        sites_of(FedBiO(0.1), PLAIN, X, rules=SiteRules(1, fewest_examples=4))


def test_the_placeholder_of_a_level_is_no_small_batch():
    rules = SiteRules(smallest_batch=3, fewest_examples=1, fewest_per_entry=1)
    algorithm = with_whole_batches(FedBiO(0.1))
    assert len(sites_of(algorithm, PLAIN, X, rules=rules)) == K


def test_a_site_without_a_level_needs_the_form_of_the_model():
    with pytest.raises(ValueError, match=r"no upper examples.*argument form"):
        sites_of(FedBiO(0.1), PLAIN, X, form=None)


def test_a_site_beyond_the_rows_of_x_is_refused():
    x = start()[0] | {"own": SiteRows(np.zeros((2, 2)))}
    with pytest.raises(RefusedError, match=r"x\['own'\] has 2 rows.* is 3\."):
        sites_of(FedBiO(0.1), PROBLEM, x)


@pytest.mark.slow
def test_all_sites_compute_the_same_and_enrol(tmp_path):
    x, algorithm = start()[0], FedBiO(0.1)
    sites = sites_of(algorithm)
    result = enrol(
        InProcess(sites),
        list(sites),
        FORM,
        tmp_path,
        computation=Computation.of(PROBLEM, algorithm, FORM, x, Y),
        terms=EnrolmentTerms(HANG, at_least=K),
    )
    assert result.devices.upper_sizes.tolist() == levels().upper_sizes.tolist()
    assert result.devices.lower_sizes.tolist() == levels().lower_sizes.tolist()
    assert result.devices.names == levels().names
    assert not result.absent
    assert not result.warnings


@pytest.mark.slow
def test_a_site_without_a_level_cannot_join_later(tmp_path):
    """The others' factors are fixed when a run begins."""
    algorithm = FedBiO(0.1)
    sites = sites_of(algorithm, PLAIN, X)
    settings: dict[str, Any] = {
        "computation": Computation.of(PLAIN, algorithm, FORM, X, Y),
        "terms": EnrolmentTerms(1.0, at_least=1),
    }

    class Late(InProcess):
        def enrol(self, names, left):
            yield from super().enrol([name for name in names if name != "site 0"], left)

    names = list(sites)
    enrol(Late(sites), names, FORM, tmp_path, **settings)
    result = enrol(InProcess(sites), names, FORM, tmp_path, **settings)
    assert "no upper examples, but it was counted" in result.absent["site 0"]


@pytest.mark.parametrize("sizes", [(0, 0), (-1, 3), (0, 2)])
def test_sizes_that_fit_no_examples_are_refused(sizes):
    sent = Enrolment.of(FORM)._replace(upper_size=sizes[0], lower_size=sizes[1])
    with pytest.raises(RefusedError, match="not a valid enrolment"):
        Enrolment.decode(sent.encode())


def test_a_device_without_any_examples_cannot_enrol():
    with pytest.raises(ValueError, match="neither upper nor lower examples"):
        Enrolment.of(LocalExamples(None, None))


@pytest.mark.slow
def test_noise_by_example_excludes_levels():
    algorithm = with_transforms(FedBiO(0.1), ExampleNoise(1.0, 1.0))
    text = "excludes different weights of the devices in the two losses"
    for devices, weights in (
        (levels(), None),
        (InMemoryDevices(held()[:2]), Weights(upper=[1.0, 2.0])),
    ):
        with pytest.raises(SettingError, match=text):
            next(run(PLAIN, algorithm, devices, X, Y, rounds=1, weights=weights))
    with pytest.raises(RefusedError, match="no upper examples, but the algorithm has"):
        sites_of(algorithm, PLAIN, X)


@pytest.mark.slow
def test_the_server_of_a_job_prepares_sites_and_drops_the_distance_limit(tmp_path):
    """The median site is no measure for the only site with upper examples."""
    sites = sites_of(FedBiO(0.1), PLAIN, X)
    experiment = Experiment(
        FedBiO(0.1),
        problem=CustomProblem(tmp_path / "unread.py"),
        norm_limit=1e6,
        distance_limit=10.0,
        federation=FederationSettings(sites=tuple(sites)),
    )
    transport = Recording(sites)
    reports = Mock(spec=ServerReport)
    work = federated_work(
        experiment,
        Model(PLAIN, X, Y, {}, FORM),
        "first",
        tmp_path,
        transport,
        reports,
        lambda absent: None,
        tmp_path,
    )
    assert transport.sent == [dict.fromkeys(sites, PREPARE)]
    assert work.limits == Limits(norm=1e6)
    (warnings,) = reports.warn.call_args.args
    assert sorted(warnings) == ["site 0", "site 2", "site 3"]
    assert warnings["site 3"].startswith("has no lower examples, so distance_limit")
