"""Tests of the optional dependency dp-accounting."""

import subprocess
import sys
from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement

from fedbilevel.privacy.library import check_version


def test_the_installed_version_is_new_enough():
    # An installer picks 0.0.2 if another package requires attrs 24 or newer.
    check_version(version("dp-accounting"))
    attrs = next(
        requirement
        for requirement in map(Requirement, requires("dp-accounting") or ())
        if requirement.name == "attrs"
    )
    assert attrs.specifier.contains(version("attrs"))


@pytest.mark.parametrize("text", [None, "0.0.2", "0.5.1"])
def test_an_old_or_missing_version_is_refused_with_the_cure(text):
    with pytest.raises(ImportError) as refusal:
        check_version(text)
    message = str(refusal.value)
    assert "dp-accounting 0.6 or newer" in message
    assert message.endswith("Run: pip install 'fedbilevel[privacy]'")
    assert text is None or text in message


@pytest.mark.parametrize("text", ["0.6.0", "0.10.1", "1.0.0rc1"])
def test_a_new_version_is_accepted(text):
    check_version(text)


@pytest.mark.process
def test_a_run_without_noise_imports_no_accountant():
    program = (
        "import sys, fedbilevel, fedbilevel.privacy as privacy; "
        "import fedbilevel.engines.run; privacy.GaussianRelease(1.0); "
        "heavy = {'dp_accounting', 'scipy.stats', 'scipy.optimize', 'scipy.special'}; "
        "sys.exit(bool(heavy.intersection(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
