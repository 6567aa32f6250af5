"""Dockerfiles follow good practice, and start what a startup kit starts.

`test_containers` builds both images and runs a federation in them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "packaging/docker").glob("*.Dockerfile"))


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "hadolint"
    return subprocess.run([program, *files], capture_output=True, text=True)


@pytest.mark.process
def test_hadolint_finds_nothing():
    assert [file.stem for file in FILES] == ["server", "site"]
    done = lint(*FILES)
    assert done.returncode == 0, done.stdout


@pytest.mark.process
def test_hadolint_finds_a_mistake(tmp_path):
    text = FILES[0].read_text().replace("RUN useradd", "RUN sudo useradd")
    (tmp_path / "Dockerfile").write_text(text)
    assert "DL3004" in lint(tmp_path / "Dockerfile").stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_image_runs_a_kit_without_rights(file: Path):
    lines = file.read_text().splitlines()
    assert "USER 10001" in lines
    assert lines[-1] == 'CMD ["/kit/startup/sub_start.sh", "--once"]'


def test_the_images_differ_in_the_port_of_the_server_alone():
    server, site = (set(file.read_text().splitlines()[5:]) for file in FILES)
    assert site < server
    assert "EXPOSE 8002" in server - site
