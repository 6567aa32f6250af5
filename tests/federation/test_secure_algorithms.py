"""All algorithms with secure sums: the numbers of plain integers, to the bit."""

import jax
import numpy as np
import pytest

from fedbilevel import AdaptiveClip, Clip, FixedPoint, run, with_transforms
from fedbilevel.federation import REHEARSAL, Site
from tests import quadratic
from tests.algorithms.table import ALGORITHMS
from tests.engines.federation import START, held
from tests.federation.secure_exchange import ALL, AUTHORITY
from tests.federation.sites import enrolled, federation

pytestmark = pytest.mark.nightly
PROBLEM = quadratic.problem()
REFUSED = {"ShroFBO, unequal steps", "two exchanges, private state"}
"""They send counts and gradients without a bound."""


def states(name: str, *, secure: bool) -> list[np.ndarray]:
    """Return all numbers of the server after each of 3 rounds."""
    # Several bounds, since the variables of some algorithms have different units.
    clip = Clip(0.5) if name.startswith("SimFBO") else AdaptiveClip(first_norm=0.3)
    algorithm = with_transforms(ALGORITHMS[name](), clip, FixedPoint())
    # Sites of one size share compiled functions.
    among = {
        site: Site(
            number,
            PROBLEM,
            algorithm,
            held()[0],
            *START,
            rules=REHEARSAL,
            identity=identity if secure else None,
        )
        for number, (site, identity) in enumerate(list(ALL.items())[:4])
    }
    rounds = run(
        PROBLEM,
        algorithm,
        enrolled(among),
        *START,
        rounds=3,
        engine=federation(among, secure_sums=AUTHORITY.root if secure else None),
    )
    return [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(each.server)])
        for each in rounds
    ]


@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - REFUSED))
def test_a_secure_federation_equals_a_plain_one_to_the_bit(name):
    expected = states(name, secure=False)
    for one, other in zip(states(name, secure=True), expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_values_without_a_bound_are_refused(name):
    with pytest.raises(ValueError, match="which FixedPoint cannot round"):
        states(name, secure=False)
