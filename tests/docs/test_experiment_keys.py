"""Tests of the page with all keys of an experiment file."""

from fedbilevel.experiments.schema import Experiment
from fedbilevel.experiments.schema.registry import TABLES, list_types
from tests.docs.test_words import keys
from tools.experiment_keys import PAGE, page

TEXT = PAGE.read_text("utf-8")


def test_the_page_is_that_of_the_classes():
    assert page() == TEXT, "run: python -m tools.experiment_keys"


def test_the_page_has_every_key_and_every_type():
    # Independently of the tool: a key of any table is a first cell of a row.
    for key in keys(Experiment):
        if not key.startswith("server_optimiser."):  # arguments of optax
            assert f"| `{key.rpartition('.')[2]}` |" in TEXT, key
    for table in TABLES:
        for name, cls in list_types(table).items():
            if cls.__module__.startswith("fedbilevel."):
                assert f"\n### {name}\n" in TEXT, name


def test_defaults_and_ranges_are_stated():
    assert "| `rounds` | integer at least 1 | `100` | number of rounds |" in TEXT
    assert "| `file` | path | required |" in TEXT
    assert "| `participants` | integer at least 1 | None |" in TEXT
