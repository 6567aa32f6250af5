"""Workflows of GitHub run what a developer runs: targets of the Makefile."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = {
    file.stem: yaml.safe_load(file.read_text())
    for file in sorted((GITHUB / "workflows").glob("*.yml"))
}
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
SCHEMAS = {
    "github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "github-issue-forms": [
        GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml"
        for name in ("bug", "feature", "question")
    ],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "dependabot": [GITHUB / "dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
PROGRAMS = Path(sys.executable).parent


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow, content in WORKFLOWS.items():
        for name, job in content["jobs"].items():
            yield f"{workflow}.{name}", job


def steps(key: str) -> Iterator[tuple[str, Any]]:
    for name, job in jobs():
        yield from ((name, step[key]) for step in job["steps"] if key in step)


def check(*command: str | Path) -> subprocess.CompletedProcess[str]:
    program = PROGRAMS / command[0]
    return subprocess.run([program, *command[1:]], capture_output=True, text=True)


def test_every_command_of_a_workflow_is_a_target_of_the_makefile():
    commands = list(steps("run"))
    assert {"make quick", "make check", "make nightly", "make newest-jax"} <= {
        command for _, command in commands
    }
    for name, command in commands:
        target = re.fullmatch(r"make ([\w-]+)", command)
        assert target, f"{name} runs {command!r}, which is no target of the Makefile"
        assert target[1] in TARGETS, f"{name}: the Makefile has no target {target[1]}"


def test_python_versions_are_those_of_the_classifiers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(
        r"Programming Language :: Python :: (3\.\d+)", str(project["classifiers"])
    )
    matrix = WORKFLOWS["check"]["jobs"]["quick"]["strategy"]["matrix"]
    assert matrix["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    for name, settings in steps("with"):
        version = settings.get("python-version", named[0])
        assert version in (*named, "${{ matrix.python }}"), name


def test_jobs_end_and_have_no_right_that_they_do_not_need():
    for content in WORKFLOWS.values():
        assert content["permissions"] == {"contents": "read"}
        assert content["concurrency"]["group"]
    granted = {name: job["permissions"] for name, job in jobs() if "permissions" in job}
    assert granted == {
        "docs.publish": {"pages": "write", "id-token": "write"},
        "release.publish": {"id-token": "write"},
    }
    assert all(job["timeout-minutes"] <= 360 for _, job in jobs())


def test_actions_are_pinned_to_a_major_version_at_least():
    for name, action in steps("uses"):
        assert re.search(r"@(v\d|release/v\d|[0-9a-f]{40}$)", action), (name, action)


@pytest.mark.process
@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_have_the_form_that_github_asks_for(schema):
    command = ("check-jsonschema", "--builtin-schema", f"vendor.{schema}")
    done = check(*command, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout


@pytest.mark.process
def test_a_mistake_in_a_workflow_is_found(tmp_path):
    broken = tmp_path / "check.yml"
    text = (GITHUB / "workflows" / "check.yml").read_text()
    broken.write_text(text.replace("runs-on: ubuntu-latest", "runs-in: ubuntu-latest"))
    schema = "vendor.github-workflows"
    assert check("check-jsonschema", "--builtin-schema", schema, broken).returncode == 1


@pytest.mark.process
def test_workflows_have_no_known_weakness():
    # Offline: which commits an action's tags point to is not looked up.
    done = check("zizmor", "--offline", "--no-progress", "--persona=pedantic", GITHUB)
    assert done.returncode == 0, done.stdout
