"""Thousands of random changes of the messages of a secure sum."""

import pytest

from tests.federation.secure_fuzz import fuzz

pytestmark = pytest.mark.nightly


def test_six_thousand_random_changes_of_messages_are_refused():
    ends = fuzz(seed=2, inputs=6000)
    assert ends["site refused"] > 4800
    assert ends["server refused"] > 4000
