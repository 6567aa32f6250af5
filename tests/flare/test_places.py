"""Where a rehearsal cannot be, it is not begun."""

import pytest

from fedbilevel.flare.provisioning import provision_kits


@pytest.mark.parametrize("name", ["a b", "a\tb", "a\u00a0b"])
def test_a_space_in_the_path_is_told_at_once(name, tmp_path):
    with pytest.raises(ValueError, match=r"has a space in it, .* give a --directory"):
        provision_kits(tmp_path / name, ["site-1"])
    assert not [*tmp_path.iterdir()]
