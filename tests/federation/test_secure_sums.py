"""Secure sums: equality with the plain sum, and dropouts in every request.

The small version of `test_secure_schedules`.
"""

import random

import numpy as np
import pytest

from fedbilevel.federation.secure_sums.context import Context, threshold
from fedbilevel.federation.secure_sums.server import SecureSumError
from tests.federation.authority import Authority, elliptic_key, rsa_key
from tests.federation.secure_exchange import (
    AUTHORITY,
    Exchange,
    context_of,
    names_of,
    plain_sum,
    vectors_of,
)

STEPS = Exchange.STEPS


def check_schedule(seed: int, largest: int = 12) -> bool:
    """Check one random schedule of dropouts; return whether it ended in a sum."""
    draw = random.Random(seed)
    count = draw.randint(3, largest)
    most = draw.randint(0, count // 3 + 1)
    drop: dict[str, list[str]] = {step: [] for step in STEPS}
    for name in draw.sample(names_of(count), most):
        drop[draw.choice(STEPS)].append(name)
    vectors = vectors_of(count, size=7, seed=seed)
    exchange = Exchange(context_of(count, exchange=seed), vectors, drop=drop)
    # The sites that are left after each request, computed from the schedule alone.
    left, last = count, {}
    for step in STEPS:
        left -= len(drop[step])
        last[step] = left
    enough = last["unmask"] >= threshold(count)
    if not enough:
        with pytest.raises(SecureSumError, match=r"of \d+ required sites answered"):
            exchange.finish()
        return False
    result = exchange.finish()
    away = {name for step in STEPS[:3] for name in drop[step]}
    expected = [name for name in exchange.context.roster if name not in away]
    assert list(result.survivors) == expected
    np.testing.assert_array_equal(result.total, plain_sum(vectors, expected))
    assert set(exchange.server.failures) == {n for step in STEPS for n in drop[step]}
    return True


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_secure_sum_equals_the_plain_sum_to_the_bit(count):
    vectors = vectors_of(count, size=1001)
    result = Exchange(context_of(count), vectors).finish()
    assert result.survivors == context_of(count).roster
    np.testing.assert_array_equal(result.total, plain_sum(vectors, vectors))
    assert result.total.dtype == np.uint32


def test_a_vector_of_several_blocks_is_summed():
    vectors = vectors_of(3, size=2 * 2**16 + 5)
    result = Exchange(context_of(3), vectors).finish()
    total = sum(vector.astype(np.uint64) for vector in vectors.values()) % 2**32
    np.testing.assert_array_equal(result.total, total)


@pytest.mark.parametrize("step", STEPS)
def test_a_site_may_drop_out_of_any_request(step):
    vectors = vectors_of(4, size=9)
    exchange = Exchange(context_of(4), vectors, drop={step: ["site-2"]})
    result = exchange.finish()
    early = STEPS.index(step) <= STEPS.index("mask")
    assert ("site-2" in result.survivors) is not early
    np.testing.assert_array_equal(result.total, plain_sum(vectors, result.survivors))
    assert exchange.server.failures == {"site-2": "no reply"}


@pytest.mark.parametrize("step", STEPS)
def test_too_few_sites_end_the_exchange_with_a_reason(step):
    drop = {step: ["site-2", "site-3"]}
    exchange = Exchange(context_of(4), vectors_of(4, size=9), drop=drop)
    with pytest.raises(SecureSumError) as caught:
        exchange.finish()
    assert str(caught.value) == (
        "Secure sum of run 'a1', round 3, exchange 0: 2 of 3 required sites answered "
        f'the request {step}. Site "site-2": no reply. Site "site-3": no reply. '
        "Correct these sites, or wait for them, and start a new exchange."
    )


def test_schedules_of_dropouts_end_in_the_right_sum_or_a_refusal():
    ends = [check_schedule(seed, largest=6) for seed in range(6)]
    assert True in ends
    assert False in ends


def test_the_caller_keeps_its_vector():
    vectors = vectors_of(3, size=9)
    copies = {name: vector.copy() for name, vector in vectors.items()}
    Exchange(context_of(3), vectors).finish()
    for name, vector in vectors.items():
        np.testing.assert_array_equal(vector, copies[name])


@pytest.mark.parametrize("key", [rsa_key, elliptic_key])
def test_keys_of_rsa_and_of_elliptic_curves_sign(key, monkeypatch):
    authority = Authority(key=key())
    monkeypatch.setattr("tests.federation.secure_exchange.AUTHORITY", authority)
    identities = {name: authority.identity(name, key()) for name in names_of(3)}
    vectors = vectors_of(3, size=5)
    result = Exchange(context_of(3), vectors, identities).finish()
    np.testing.assert_array_equal(result.total, plain_sum(vectors, vectors))


def test_names_of_sites_may_contain_any_printable_character():
    names = ("commitment", ":commitment", "Universitätsklinikum 1", "type", "a/b")
    identities = AUTHORITY.identities(names)
    context = Context("a1", 3, 0, names)
    vectors = dict(zip(names, vectors_of(5, size=4).values(), strict=True))
    drop = {"mask": ["type"]}
    result = Exchange(context, vectors, identities, drop).finish()
    assert set(result.survivors) == set(names) - {"type"}
    np.testing.assert_array_equal(result.total, plain_sum(vectors, result.survivors))


def test_the_threshold_is_two_thirds_and_always_a_majority():
    for count in range(2, 200):
        assert 3 * threshold(count) >= 2 * count
        assert 2 * threshold(count) > count
        assert threshold(count) <= count
        assert 3 * (threshold(count) - 1) < 2 * count or count == 2


@pytest.mark.parametrize("roster", [(), ("a",), ("a", "a"), ("a", "")])
def test_a_roster_that_is_not_valid_is_refused(roster):
    with pytest.raises(ValueError, match="roster"):
        Context("a1", 3, 0, roster)


def test_methods_of_the_server_in_another_order_are_refused():
    exchange = Exchange(context_of(3), vectors_of(3, size=4)).until("share")
    with pytest.raises(SecureSumError, match="share are next"):
        exchange.server.collect_masked({})
    with pytest.raises(SecureSumError, match="share are next"):
        exchange.server.collect_keys({})


def test_a_vector_of_another_type_is_refused():
    exchange = Exchange(context_of(3), vectors_of(3, size=4)).until("mask")
    site = exchange.sites["site-1"]
    # The type checker of the tests raises another error, with a shorter name.
    with pytest.raises(Exception, match=r"float64|f64"):
        site.mask(exchange.requests["site-1"], np.ones(4))
