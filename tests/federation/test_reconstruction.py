"""The examples that a server can reconstruct, with and without the site's rules.

docs/security.md has the numbers; `python -m tests.federation.reconstruction` prints
them.
"""

from dataclasses import replace

import pytest

from fedbilevel import Clip, DeviceNoise, ExampleNoise, FedBiO, with_transforms
from fedbilevel.federation import REHEARSAL, SiteRules
from fedbilevel.privacy import noise_for
from fedbilevel.problems import hyper_cleaning, regularisation
from tests.federation.cones import read_by_cones
from tests.federation.reconstruction import (
    CLEANING,
    COUNT,
    QUESTIONS,
    SHARED,
    UPLOADS,
    Victim,
    held,
    matched,
    overheard,
    read_by_weights,
    read_lone,
    read_separated,
)

pytestmark = pytest.mark.slow

LARGE = SiteRules().smallest_batch
FULL = pytest.mark.nightly
# With too few sums the separation fails and warns that it has not converged.
SEPARATED = pytest.mark.filterwarnings("ignore:FastICA did not converge")
"""Attacks at full size, run nightly."""


@pytest.mark.parametrize("count", [24, pytest.param(COUNT, marks=FULL)])
def test_without_rules_a_server_reads_every_example_that_has_a_weight(count):
    problem = held(hyper_cleaning, count)
    victim = Victim(problem, CLEANING, REHEARSAL)
    assert matched(read_by_weights(victim, QUESTIONS), problem) == count
    assert victim.questions < 8 * count


@pytest.mark.parametrize("size", [CLEANING.batch_size, LARGE])
def test_by_default_it_reads_no_example_that_has_a_weight(size):
    problem = held(hyper_cleaning, COUNT)
    victim = Victim(problem, replace(CLEANING, batch_size=size), SiteRules())
    claims = read_by_weights(victim, QUESTIONS)
    assert matched(claims, problem) <= COUNT // 100
    assert victim.answered == 0
    assert "lower" in victim.reason


def uploads_read(algorithm, rules, uploads, **settings):
    """Return the number of uploads of a run that reveal an example."""
    problem = held(regularisation, COUNT)
    victim = Victim(problem, algorithm, rules)
    claims = overheard(victim, uploads, **settings)
    return sum(matched(each, problem) > 0 for each in claims), victim.answered


@pytest.mark.parametrize("uploads", [5, pytest.param(UPLOADS, marks=FULL)])
def test_without_rules_each_upload_of_the_defaults_holds_an_example(uploads):
    assert uploads_read(FedBiO(0.1), REHEARSAL, uploads) == (uploads, uploads)


@pytest.mark.parametrize("uploads", [5, pytest.param(UPLOADS, marks=FULL)])
def test_by_default_no_upload_does(uploads):
    assert uploads_read(FedBiO(0.1), SiteRules(), uploads) == (0, 0)
    allowed = FedBiO(0.1, batch_size=LARGE)
    assert uploads_read(allowed, SiteRules(), uploads) == (0, uploads)


@pytest.mark.nightly
@pytest.mark.parametrize("uploads", [5, pytest.param(UPLOADS, marks=FULL)])
def test_noise_of_devices_hides_the_examples_of_uploads(uploads):
    """The noise of a site among 100 of ε = 4 for 50 uploads at δ = 1e-5."""
    clip, noise = Clip(1.0), noise_for(4.0, 1e-5, UPLOADS)
    # Clipping alone is no protection: the attack reads every upload.
    clipped = with_transforms(FedBiO(0.1), clip)
    assert uploads_read(clipped, REHEARSAL, uploads) == (uploads, uploads)
    noised = with_transforms(FedBiO(0.1), clip, DeviceNoise(noise, devices=100))
    assert uploads_read(noised, REHEARSAL, uploads) == (0, uploads)


@pytest.mark.parametrize("uploads", [10, pytest.param(UPLOADS, marks=FULL)])
def test_noise_by_example_hides_the_examples_of_a_lone_site(uploads):
    # Clipped examples without noise are no protection: a batch of one example is read.
    # A batch has one with a probability of 1 / e, and often none.
    quiet = with_transforms(FedBiO(0.1), ExampleNoise(1.0, 1e-9))
    read, answered = uploads_read(quiet, REHEARSAL, uploads, moves=False)
    assert read >= uploads // 5
    assert answered == uploads
    noised = with_transforms(FedBiO(0.1), ExampleNoise(1.0, 1.0))
    assert uploads_read(noised, REHEARSAL, uploads, moves=False) == (0, uploads)


def test_without_rules_a_server_reads_images_that_are_alone_of_their_class():
    problem = held(regularisation, COUNT)
    victim = Victim(problem, SHARED, REHEARSAL)
    assert matched(read_lone(victim, 150), problem) > COUNT // 4


@pytest.mark.nightly
@SEPARATED
def test_by_default_no_sums_of_images_are_taken_apart():
    problem = held(regularisation, COUNT)
    victim = Victim(problem, replace(SHARED, batch_size=LARGE), SiteRules())
    assert matched(read_separated(victim, QUESTIONS), problem) <= COUNT // 100
    assert victim.answered == SiteRules().most_exchanges


@pytest.mark.nightly
@SEPARATED
def test_more_exchanges_than_the_default_take_sums_apart():
    """Only the bound on exchanges protects, as docs/security.md states."""
    problem = held(regularisation, COUNT)
    rules = replace(SiteRules(), most_exchanges=QUESTIONS)
    victim = Victim(problem, replace(SHARED, batch_size=LARGE), rules)
    assert matched(read_separated(victim, QUESTIONS), problem) > COUNT // 2


@pytest.mark.nightly
def test_within_the_default_rules_curvature_gives_half_of_the_images_away():
    """No rule of a site stops this attack, as docs/security.md states."""
    problem = held(regularisation, COUNT)
    victim = Victim(problem, replace(SHARED, batch_size=LARGE), SiteRules())
    claims = read_by_cones(victim, SiteRules().most_exchanges)
    assert matched(claims, problem) > COUNT // 3
    assert victim.answered == SiteRules().most_exchanges
