"""A rehearsal refuses a directory with a space in its path."""

import pytest

from fedbilevel.flare.provisioning import provision_kits


@pytest.mark.parametrize("name", ["a b", "a\tb", "a\u00a0b"])
def test_a_space_in_the_path_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"contains a space, .* give a --directory"):
        provision_kits(tmp_path / name, ["site-1"])
    assert not [*tmp_path.iterdir()]
