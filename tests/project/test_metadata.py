"""One version, one home and one list of dependencies, wherever a file names them."""

import re
import tomllib
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import fedbilevel
from fedbilevel.__main__ import main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
RECIPE = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
RELEASES = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)$", CHANGELOG, re.M)
REPOSITORY = PROJECT["urls"]["Repository"]
SITE = PROJECT["urls"]["Documentation"]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
"""Distributions that conda-forge has under another name."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", CONDA_NAMES.get(name, name)).lower()


def declared(requirements: list[str]) -> dict[str, SpecifierSet]:
    parsed = [Requirement(one) for one in requirements]
    return {normal(one.name): one.specifier for one in parsed}


def in_recipe(part: str) -> dict[str, SpecifierSet]:
    lines = [one.partition(" ") for one in RECIPE["requirements"][part]]
    return {
        normal(name): SpecifierSet(versions)
        for name, _, versions in lines
        if name != "python"
    }


def test_the_version_is_that_of_the_newest_release():
    newest, day = RELEASES[0]
    assert PROJECT["version"] == newest == CITATION["version"]
    assert CITATION["date-released"] == date.fromisoformat(day)
    assert RECIPE["context"]["version"] == newest


def test_the_package_knows_its_version(capsys):
    assert fedbilevel.__version__ == version("fedbilevel")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"fedbilevel {fedbilevel.__version__}\n"
    assert "__version__" not in fedbilevel.__all__


def test_the_changelog_has_a_link_for_each_release():
    assert CHANGELOG.index("## [Unreleased]") < CHANGELOG.index(f"[{RELEASES[0][0]}]")
    links = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", CHANGELOG, re.M))
    assert list(links) == ["Unreleased", *(number for number, _ in RELEASES)]
    assert links["Unreleased"] == f"{REPOSITORY}/compare/v{RELEASES[0][0]}...HEAD"
    assert all(one.startswith(REPOSITORY) for one in links.values())


def test_every_file_names_the_same_homes():
    # Its tags for functions are nothing that a safe loader knows.
    mkdocs = (ROOT / "mkdocs.yml").read_text()
    assert f"site_url: {SITE}\n" in mkdocs
    assert f"repo_url: {REPOSITORY}\n" in mkdocs
    assert (CITATION["url"], CITATION["repository-code"]) == (SITE, REPOSITORY)
    about = RECIPE["about"]
    assert (about["homepage"], about["repository"]) == (SITE, REPOSITORY)
    report = f"{REPOSITORY}/security/advisories/new"
    assert report in (ROOT / "SECURITY.md").read_text()
    assert report in (ROOT / ".github/ISSUE_TEMPLATE/config.yml").read_text()


def test_the_conda_recipe_has_the_dependencies_of_the_project():
    assert in_recipe("run") == declared(PROJECT["dependencies"])
    extra = PROJECT["optional-dependencies"]["commands"]
    assert in_recipe("run_constraints") == declared(extra)
    host = {name for name in in_recipe("host") if name != "pip"}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    assert host == set(declared(build["requires"]))
    python = RECIPE["context"]["python_min"]
    assert PROJECT["requires-python"] == f">={python}"
    (script,) = RECIPE["build"]["python"]["entry_points"]
    assert script == f"fedbilevel = {PROJECT['scripts']['fedbilevel']}"
    assert RECIPE["about"]["license"] == PROJECT["license"]
