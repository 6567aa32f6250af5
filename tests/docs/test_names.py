"""Tests that names of the package in the documentation exist, and lists are whole."""

import importlib
import re
from types import ModuleType

import pytest

from tests.docs.pages import PAGES, ROOT
from tools.layers import layers

TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
NAME = re.compile(r"`(fedbilevel(?:\.\w+)+)[^`\n]*`")
"""A dotted name at the beginning of inline code, as in `fedbilevel.run(...)`."""


def exists(name: str) -> bool:
    """Return whether a dotted name is a module or an attribute of one."""
    package, *parts = name.split(".")
    value: object = importlib.import_module(package)
    for part in parts:
        if isinstance(value, ModuleType) and not hasattr(value, part):
            try:
                value = importlib.import_module(f"{value.__name__}.{part}")
            except ModuleNotFoundError:
                return False
        elif hasattr(value, part):
            value = getattr(value, part)
        else:
            return False
    return True


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_dotted_name_exists(page):
    names = set(NAME.findall(page.read_text("utf-8")))
    assert [name for name in sorted(names) if not exists(name)] == []


def test_a_name_that_does_not_exist_is_noticed():
    assert NAME.findall(
        "`fedbilevel.run(...)`, `fedbilevel run`, `fedbilevel.a.b`"
    ) == [
        "fedbilevel.run",
        "fedbilevel.a.b",
    ]
    assert exists("fedbilevel.InMemoryDevices.cohort")
    assert not exists("fedbilevel.a.b")
    assert not exists("fedbilevel.run.b")


def test_the_design_lists_every_layer_in_its_order():
    design = (ROOT / "docs/design.md").read_text("utf-8")
    listed = design.partition("```\n")[2].partition("```")[0]
    assert re.findall(r"^(\w+)  ", listed, re.M) == [
        name.rpartition(".")[2] for name in layers()
    ]


def test_the_index_of_the_reference_lists_every_page_of_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = re.findall(r"- reference/([\w-]+\.md)$", navigation, re.M)
    index = (ROOT / "docs/reference/index.md").read_text("utf-8")
    rows = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", index, re.M)
    assert rows == [page for page in pages if page != "index.md"]


def test_links_to_the_site_are_addresses_of_its_pages():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    (site,) = re.findall(r"^site_url: (\S+)$", navigation, re.M)
    # The plug-in writes page.html instead of page/index.html, for readers of files.
    assert "  - offline" in navigation
    links = [
        link
        for page in TEXTS
        for link in re.findall(rf"{re.escape(site)}/([^)\s]+)", page.read_text("utf-8"))
    ]
    assert "stability.html" in links
    sources = [ROOT / "docs" / link.replace(".html", ".md") for link in links]
    assert [str(file) for file in sources if not file.is_file()] == []
