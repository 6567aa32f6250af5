"""Hostile bytes in a secure sum: sites and the server refuse them, and nothing else.

The small version of `test_secure_fuzz`.
"""

import pytest

from tests.federation.secure_fuzz import fresh, fuzz, is_accepted_by_site

pytestmark = pytest.mark.slow


def test_random_changes_of_messages_are_refused():
    ends = fuzz(seed=1, inputs=100)
    assert ends["site refused"] > 70
    assert ends["server refused"] > 60


@pytest.mark.parametrize("step", ["share", "mask", "confirm", "unmask"])
def test_the_fuzzer_knows_valid_messages(step):
    exchange = fresh(step)
    assert is_accepted_by_site(exchange, step, exchange.requests["site-1"])


def test_a_large_message_is_refused_before_it_is_read():
    exchange = fresh("share")
    assert not is_accepted_by_site(exchange, "share", bytes(10**7))
