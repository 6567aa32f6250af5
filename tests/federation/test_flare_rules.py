"""A site process with the default rules."""

import pytest

from fedbilevel.federation import SiteRules
from fedbilevel.federation.site_rules import RULES
from fedbilevel.flare.kit_settings import prepare
from fedbilevel.flare.provisioning import provision_kits
from tests.federation.experiments import SITES, federating, written
from tests.waiting import HANG


@pytest.mark.nightly
def test_a_site_refuses_a_run_in_a_sentence_that_ends_the_command(tmp_path):
    file = written(tmp_path, "LocalBSGM", "rounds = 3")
    kits = provision_kits(tmp_path / "runs" / "LocalBSGM-federated" / "kits", SITES)
    local = kits.sites["east"] / "local"
    (local / RULES).unlink()
    prepare(kits.sites["east"], SiteRules(fewest_examples=1), code_from_outside=True)
    with federating(file) as command:
        assert command.process.wait(timeout=HANG) == 2, command.output
    assert command.output.count(" starts.\n") == 1
    *_, last = command.output.splitlines()
    assert (
        "east could not begin: the algorithm draws batches of 2, but the site's rules"
        in last
    )
    assert f"lower smallest_batch in local/{RULES}" in last
