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
NODE_24 = {
    "actions/cache": 5,
    "actions/checkout": 5,
    "actions/deploy-pages": 5,
    "actions/download-artifact": 7,
    "actions/setup-python": 6,
    "actions/upload-artifact": 6,
    "actions/upload-pages-artifact": 5,
}
"""The first major version of each action that runs on Node.js 24."""
WITHOUT_NODE = {"pypa/gh-action-pypi-publish"}
CACHES = ["actions/setup-python", "actions/cache"]


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


def test_actions_run_on_node_24():
    names = set()
    for job, action in steps("uses"):
        name, _, version = action.partition("@")
        names.add(name)
        if name not in WITHOUT_NODE:
            assert int(version.removeprefix("v")) >= NODE_24[name], (job, action)
    assert names == NODE_24.keys() | WITHOUT_NODE


def test_every_job_keeps_the_downloads_of_pip_and_uv_except_a_release():
    for name, job in jobs():
        runs = [step["run"] for step in job["steps"] if "run" in step]
        caches = [
            step["uses"].partition("@")[0]
            for step in job["steps"]
            if step.get("with", {}).get("cache") == "pip"
            or step.get("with", {}).get("path") == "~/.cache/uv"
        ]
        assert caches == (CACHES if runs and name != "release.build" else []), name
        setups = [step for step in job["steps"] if "python-version" in str(step)]
        keys = [s["with"]["key"] for s in job["steps"] if "key" in s.get("with", {})]
        for setup, key in zip(setups, keys, strict=False):
            # Wheels of another Python would stay in the cache without use.
            assert setup["with"]["python-version"] in key
            assert "hashFiles('constraints.txt')" in key


def test_the_index_of_pytorch_is_a_variable_of_the_repository():
    for name, content in WORKFLOWS.items():
        assert content["env"] == {"TORCH_INDEX": "${{ vars.TORCH_INDEX }}"}, name


def test_a_release_checks_its_tag_before_anything_is_built():
    runs = [
        step for step in WORKFLOWS["release"]["jobs"]["build"]["steps"] if "run" in step
    ]
    assert [step["run"] for step in runs] == [
        "make release-check",
        "make check",
        "make build",
    ]
    assert runs[0]["env"] == {"TAG": "${{ github.ref_name }}"}


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.process
def test_a_tag_must_be_that_of_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert make("release-check", f"TAG=v{version}").returncode == 0
    for tag in ("", version, f"v{version}.1", "v$(false)"):
        done = make("release-check", f"TAG={tag.replace('$', '$$')}")
        assert done.returncode != 0
        assert f"The tag is {tag!r}, but the version" in done.stderr
        assert f"needs 'v{version}'" in done.stderr


@pytest.mark.process
def test_pytorch_comes_from_the_index_that_a_variable_names():
    def torch(*arguments: str) -> str:
        lines = make("--dry-run", "--always-make", "setup", *arguments).stdout
        joined = lines.replace("\\\n", "").splitlines()
        (command,) = [line for line in joined if line.endswith(" torch")]
        return " ".join(command.split()).removeprefix(".venv/bin/python -m ")

    ordinary = "pip install --quiet --no-compile -c constraints.txt"
    assert torch("TORCH_INDEX=") == f"{ordinary} torch"
    index = "https://example.org/cpu"
    own = f'{ordinary} --no-deps --index-url "{index}" torch'
    assert torch(f"TORCH_INDEX={index}") == own


@pytest.mark.process
def test_a_build_begins_without_older_files():
    lines = make("--dry-run", "build").stdout.splitlines()
    build = next(n for n, line in enumerate(lines) if line.endswith("-m build"))
    assert lines[build - 1] == "rm -rf dist"


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
