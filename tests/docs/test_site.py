"""Tests of the strict build of the site: links, anchors, and the API reference."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.waiting import HANG
from tools.notebooks import TUTORIALS
from tools.public_names import public_names

pytestmark = pytest.mark.process

PARTS = ("mkdocs.yml", "CHANGELOG.md", "docs", "tools", "src")


def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        capture_output=True,
        text=True,
        check=False,
        cwd=project,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=HANG,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    directory = tmp_path_factory.mktemp("built") / "html"
    process = build(ROOT, directory)
    assert process.returncode == 0, process.stderr
    return directory


@pytest.fixture
def project(tmp_path):
    """Return a copy of the sources of the site."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, tmp_path / part)
    return tmp_path


def test_the_site_builds_without_a_warning_and_needs_no_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    fetched = re.compile(
        r'<(?:script|link(?! rel="canonical")|img|iframe)\b'
        r'[^>]*(?:src|href)="(?:https?:)?//'
    )
    for page in pages:
        assert not fetched.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        for target in re.findall(r"url\([\"']?([^)\"']+)", sheet.read_text()):
            if not target.startswith(("data:", "#")):
                assert (sheet.parent / target.split("?")[0]).exists(), target


def test_pages_and_search_work_without_a_server(site):
    # Browsers fetch nothing by script from file://, so the index is itself a script.
    assert (site / "search" / "search_index.js").read_text().startswith("var __index")
    page = (site / "tutorials" / "cleaning.html").read_text()
    assert 'src="../javascripts/iframe-worker/shim.js"' in page
    assert 'href="../index.html"' in page


def test_formulas_are_typeset_when_the_site_is_built(site):
    page = (site / "maths.html").read_text()
    assert page.count('class="katex-display"') > 5
    assert page.count("<math") > 20  # for screen readers
    assert "arithmatex" not in page
    assert "katex.min.css" in page


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_links_to_its_notebook(site, tutorial):
    page = (site / "tutorials" / f"{tutorial.stem}.html").read_text()
    assert f'href="../notebooks/{tutorial.stem}.ipynb"' in page
    assert (site / "notebooks" / f"{tutorial.stem}.ipynb").exists()


def test_an_entry_has_an_anchor_and_examples(site):
    page = (site / "reference" / "algorithms.html").read_text()
    assert 'id="fedbilevel.LocalBSGM"' in page
    assert '<span class="doc-section-title">Examples:</span>' in page


MISTAKES = {
    "an entry": (
        "docs/reference/algorithms.md",
        "::: fedbilevel.FedBiO\n",
        "",
        ["fedbilevel.FedBiO is public and has no entry"],
    ),
    "a link": (
        "docs/maths.md",
        "# The maths\n",
        "# The maths\n\n[gone](results.md#nowhere) and [lost](nowhere.md)\n",
        ["'nowhere.md'", "'results.md#nowhere'"],
    ),
    "a formula": (
        "docs/maths.md",
        "# The maths\n",
        "# The maths\n\n$\\nowhere$\n",
        [r"\nowhere"],
    ),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(["an entry", "a link"], id="an entry, a link"),
        *(pytest.param([mistake], id=mistake) for mistake in MISTAKES),
    ],
)
def test_the_build_fails_if_something_is_missing(project, tmp_path, missing):
    for file, old, new, _ in map(MISTAKES.__getitem__, missing):
        text = (project / file).read_text()
        assert old in text
        (project / file).write_text(text.replace(old, new))
    process = build(project, tmp_path / "html")
    assert process.returncode != 0
    for warning in (text for mistake in missing for text in MISTAKES[mistake][-1]):
        assert warning in process.stderr


def test_public_names_include_those_of_all_packages():
    import fedbilevel
    from fedbilevel import datasets, metrics, problems, theory

    names = set(public_names())
    for package in (fedbilevel, datasets, metrics, problems, theory):
        assert {f"{package.__name__}.{name}" for name in package.__all__} <= names
    assert "fedbilevel.data.partition" in names
    assert "fedbilevel.experiments.schema.Experiment" in names


def test_the_links_of_the_readme_exist():
    text = (ROOT / "README.md").read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", prose)
    assert links
    for path in links:
        assert (ROOT / path).exists(), path
