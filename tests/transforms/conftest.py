"""One secret for the noise of tests of transforms: statistical tests must repeat."""

import pytest

from fedbilevel.engines import noise_secret


@pytest.fixture(autouse=True)
def secret_of_tests(monkeypatch):
    monkeypatch.setattr(noise_secret, "new_secret", lambda: bytes(range(32)))
