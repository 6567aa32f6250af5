"""A federation in containers: both images built, real kits, a run to its end.

The engine is docker or podman, or what `CONTAINER_ENGINE` says, with its options
("podman --runtime runc"). `CONTAINER_BASE` is the base image, where python:3.11-slim
cannot be had.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fedbilevel.flare import connected_sites
from fedbilevel.flare.provisioning import Kits, provision_kits
from tests.federation.experiments import federating, written
from tests.waiting import until

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
SITES = ["north", "east"]
BASE = os.environ.get("CONTAINER_BASE", "python:3.11-slim")
PREPARE = """
from pathlib import Path
from fedbilevel.flare import prepare
prepare(Path("/kit"))
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]} {done.stderr}"
    return done.stdout.strip()


@pytest.fixture(scope="module")
def engine() -> list[str]:
    found = [name for name in ("docker", "podman") if shutil.which(name)]
    chosen = shlex.split(os.environ.get("CONTAINER_ENGINE", found[0] if found else ""))
    if not chosen or subprocess.run([*chosen, "info"], capture_output=True).returncode:
        pytest.skip("there is no container engine that answers")
    if subprocess.run(
        [*chosen, "image", "inspect", BASE], capture_output=True
    ).returncode:
        pulled = subprocess.run([*chosen, "pull", BASE], capture_output=True)
        if pulled.returncode:
            pytest.skip(f"the base image {BASE} cannot be had")
    return chosen


@pytest.fixture(scope="module")
def images(
    engine: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Build both images without a network, from wheels; return their names."""
    program = ["python3", "-c", "import sys; print(sys.version_info[:2])"]
    python = run(*engine, "run", "--rm", BASE, *program)
    assert python == str(sys.version_info[:2]), "wheels are those of this Python"
    context = tmp_path_factory.mktemp("context")
    shutil.copy(ROOT / "constraints.txt", context)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet"]
    wheels = ["--wheel-dir", f"{context}/dist", "-c", f"{ROOT}/constraints.txt"]
    run(*pip, *wheels, f"{ROOT}[commands,nvflare]")
    for name in ("server", "site"):
        options = ["--build-arg", f"BASE={BASE}", "--build-arg", "PIP_NO_INDEX=1"]
        file = ROOT / "packaging/docker" / f"{name}.Dockerfile"
        tag = ["--tag", f"fedbilevel-{name}-test"]
        run(*engine, "build", *options, *tag, "--file", file, context)
    return {name: f"fedbilevel-{name}-test" for name in ("server", "site")}


def as_owner(kit: Path) -> list[str]:
    owner = kit.stat()
    return ["--user", f"{owner.st_uid}:{owner.st_gid}", "--volume", f"{kit}:/kit"]


@contextmanager
def container(engine: list[str], image: str, kit: Path) -> Iterator[str]:
    """Run a kit as its owner, with no right and a file system that is read-only."""
    options = ["--network", "host", "--init", "--read-only", "--tmpfs", "/tmp"]
    options += ["--cap-drop", "ALL", *as_owner(kit)]
    started = run(*engine, "run", "--detach", *options, image)
    try:
        yield started
    finally:
        run(*engine, "rm", "--force", started)


@pytest.fixture
def kits(engine: list[str], images: dict[str, str], tmp_path: Path) -> Kits:
    made = provision_kits(tmp_path / "kits", SITES)
    for kit in (made.server, *made.sites.values()):
        for path in (kit, *kit.rglob("*")):
            if os.getuid() == 0:
                os.chown(path, 10001, 10001)
    # The server's settings name its directory, which is /kit in the container.
    prepare = [images["server"], "python3", "-c", PREPARE]
    run(*engine, "run", "--rm", *as_owner(made.server), *prepare)
    return made


def test_two_sites_and_a_server_in_containers_run_an_experiment(
    engine, images, kits, tmp_path
):
    def all_connected() -> bool:
        try:
            return connected_sites(kits) == set(SITES)
        except ConnectionError:
            return False

    with ExitStack() as running:
        server = running.enter_context(container(engine, images["server"], kits.server))
        for kit in kits.sites.values():
            running.enter_context(container(engine, images["site"], kit))
        until(all_connected, lambda: run(*engine, "logs", server))
        if "podman" in engine[0]:
            run(*engine, "healthcheck", "run", server)
        file = written(tmp_path / "study", "LocalBSGM", "rounds = 3", SITES)
        with federating(file, "--federation.kit", str(kits.lead)) as command:
            command.until_its_end()
    (records,) = (tmp_path / "study").rglob("metrics.jsonl")
    assert json.loads(records.read_text().splitlines()[-1])["rounds"] == 3
