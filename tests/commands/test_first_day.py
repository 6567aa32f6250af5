"""First use of the command line: help, messages, titles."""

import importlib
import json
import logging
import sys
from pathlib import Path

import pytest

from fedbilevel import Costs, FedBiO
from fedbilevel.__main__ import main
from fedbilevel.commands.run_monitor import headline
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.pictures.report import report
from fedbilevel.tracking.records import Record

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def same_logging(monkeypatch):
    """Restore the library's logger after the command line has changed it."""
    logger = logging.getLogger("fedbilevel")
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    monkeypatch.setattr(logger, "handlers", list(logger.handlers))


@pytest.fixture
def without_nvflare(monkeypatch):
    """Make nvflare fail to import, and remove modules that import it."""
    monkeypatch.setitem(sys.modules, "nvflare", None)
    for name in list(sys.modules):
        if name.startswith(("fedbilevel.flare", "fedbilevel.commands.federate")):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize("file", [[], ["first.toml"]])
def test_federate_has_help_without_nvflare(
    file, without_nvflare, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    main(["new", "first", "--ready", "regularisation"])
    with pytest.raises(SystemExit) as ended:
        main(["federate", *file, "--help"])
    assert ended.value.code == 0
    assert "fedbilevel federate" in capsys.readouterr().out


def test_federate_without_nvflare_names_what_to_install(
    without_nvflare, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    main(["new", "first", "--ready", "regularisation"])
    assert main(["federate", "first.toml"]) == 2
    assert capsys.readouterr().err == (
        "fedbilevel federate: nvflare is not installed; run: pip install "
        "'fedbilevel[nvflare]'\n"
    )
    assert [one.name for one in tmp_path.iterdir()] == ["first.toml"]


def test_the_doctor_looks_for_nvflare(monkeypatch, capsys):
    main(["doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["packages"]["nvflare"]
    monkeypatch.setattr("fedbilevel.commands.doctor._version", lambda name: None)
    main(["doctor"])
    text = capsys.readouterr().out
    assert "not installed, needed for federations of real sites: pip" in text


def test_a_scaffold_explains_that_a_loss_is_a_mean(tmp_path):
    main(["new", "ridge", "--directory", str(tmp_path)])
    text = "A loss must be the mean over the examples of its batch"
    assert text in (tmp_path / "ridge.py").read_text()


@pytest.mark.single_precision
def test_a_scaffolds_test_explains_a_loss_that_is_not_convex(tmp_path, monkeypatch):
    main(["new", "bumpy", "--directory", str(tmp_path)])
    file = tmp_path / "bumpy.py"
    convex = "error + 0.5 * jnp.sum(jnp.exp(x) * y**2)"
    assert convex in file.read_text()
    file.write_text(file.read_text().replace(convex, "error - 2.0 * jnp.sum(y**2)"))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("test_bumpy")
    expected = (
        r"lower_loss of bumpy\.py has curvature -\d\.\d+ in some direction of y.*"
        r"Add 0\.5 \* c \* jnp\.sum\(y\*\*2\) to lower_loss, with c above \d\.\d+"
    )
    with pytest.raises(AssertionError, match=expected):
        module.test_the_lower_loss_is_strongly_convex()


def test_a_custom_problem_gives_its_name_to_headline_and_report(tmp_path):
    file = tmp_path / "fairness.py"
    file.write_text('"""Equal errors in all groups."""')
    experiment = Experiment(FedBiO(0.1), problem=CustomProblem(file))
    directory = tmp_path / "first"
    assert headline(experiment, directory) == f"fairness by FedBiO, in {directory}"
    page = report(directory, experiment, [Record(0, 0.1, Costs(), {"loss": 1.0})], [])
    assert "<title>first: fairness by FedBiO</title>" in page
    ready = headline(Experiment(FedBiO(0.1)), Path("runs/first"))
    assert ready == "Regularisation by FedBiO, in runs/first"
