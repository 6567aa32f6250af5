"""The wheel and the source distribution work where the repository is not.

Dependencies are those of this environment, which the fresh one sees.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import fedbilevel

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
PROGRAM = """
import fedbilevel
from fedbilevel import FedBiO, Simulation
from fedbilevel.problems import Cleaning

reveal_type(fedbilevel.__version__)
reveal_type(FedBiO(learning_rate=0.1))
reveal_type(Cleaning())
Simulation(chunk_size="large")
"""
# Reading the types of JAX and NumPy took 8 minutes on a busy machine.
SETTINGS = """
[mypy]
strict = true
[mypy-jax.*,jaxlib.*,jaxtyping.*,numpy.*,optax.*,scipy.*]
follow_imports = skip
follow_imports_for_stubs = true
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("distributions")
    # The wheel is built from the source distribution, as on PyPI.
    command = ["-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    done(sys.executable, *command)
    return directory


@pytest.fixture(scope="module")
def unpacked(distributions: Path) -> Path:
    (file,) = distributions.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        archive.extractall(distributions, filter="data")
    return distributions / file.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def python(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment into which the wheel was installed."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True, with_pip=False)
    python = directory / "bin" / "python"
    (wheel,) = distributions.glob("*.whl")
    uv = Path(sys.executable).parent / "uv"
    done(str(uv), "pip", "install", "--no-deps", "--python", str(python), str(wheel))
    packages = Path(done(str(python), "-c", LIBRARY).strip())
    # Only the distributions that this environment has: its own fedbilevel comes later.
    (packages / "dependencies.pth").write_text("\n".join(site_packages()))
    return python


LIBRARY = "import sysconfig; print(sysconfig.get_path('purelib'))"


def site_packages() -> list[str]:
    places = {sysconfig.get_path("purelib"), *sys.path}
    return sorted(one for one in places if one.endswith("site-packages"))


def done(*command: str, directory: Path = ROOT, code: int = 0) -> str:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def test_the_installed_package_has_its_version_and_its_types(python, tmp_path):
    shown = done(
        str(python),
        "-c",
        "import fedbilevel; print(fedbilevel.__version__, fedbilevel.__file__)",
        directory=tmp_path,
    )
    number, file = shown.split()
    assert number == fedbilevel.__version__
    assert Path(file).is_relative_to(python.parents[1])
    assert (Path(file).parent / "py.typed").exists()
    assert (Path(file).parent / "__init__.pyi").exists()


def test_the_page_on_a_package_index_has_no_relative_link(distributions):
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (file for file in archive.namelist() if file.endswith("/METADATA"))
        header, _, page = archive.read(name).decode().partition("\n\n")
    assert "\nDescription-Content-Type: text/markdown" in header
    targets = re.findall(r"\]\(([^)]*)\)", page)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert not re.search(r"(?:src|href)=\"(?!https://)", page)
    # The same page otherwise, with links to files that the site or the repository has.
    readme = (ROOT / "README.md").read_text()
    assert re.sub(r"\]\([^)]*\)", "", page) == re.sub(r"\]\([^)]*\)", "", readme)
    site = "https://fedbilevel.github.io/fedbilevel/"
    files = "https://github.com/fedbilevel/fedbilevel/blob/main/"
    linked = [
        ROOT / "docs" / re.sub(r"\.html(#.*)?$", ".md", target.removeprefix(site))
        for target in targets
        if target.startswith(site)
    ]
    linked += [ROOT / t.removeprefix(files) for t in targets if t.startswith(files)]
    assert ROOT / "docs/images/report.png" in linked
    assert [file for file in linked if not file.exists()] == []


@pytest.mark.nightly
def test_type_checkers_see_the_types_of_the_installed_package(python, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    options = ["--python-executable", str(python), "--no-incremental"]
    command = [sys.executable, "-m", "mypy", *options, "program.py"]
    shown = done(*command, directory=tmp_path, code=1)
    assert 'Revealed type is "str"' in shown
    assert 'Revealed type is "fedbilevel.algorithms.fedbio.FedBiO"' in shown
    assert 'Revealed type is "fedbilevel.problems.hyper_cleaning.Cleaning"' in shown
    (error,) = [line for line in shown.splitlines() if ": error:" in line]
    assert error.startswith("program.py:9:")
    assert '"Simulation" has incompatible type "str"' in error


def test_the_tests_of_the_source_distribution_run_from_it(unpacked):
    # One file of mathematics, and those that read files beside src and tests.
    tests = ["mathematics/test_hypergradients.py", "project", "test_dependencies.py"]
    shown = done(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "quick",
        "--override-ini",
        f"pythonpath={unpacked / 'src'} {unpacked}",
        *(f"tests/{one}" for one in tests),
        directory=unpacked,
    )
    assert " passed" in shown
    assert " failed" not in shown


def test_the_source_distribution_has_what_the_repository_has(unpacked):
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("this is no repository of git")
    left_out = (".ci/", ".gitignore")
    missing = [
        file
        for file in listed.stdout.splitlines()
        if not (unpacked / file).exists() and (ROOT / file).exists()
    ]
    assert [file for file in missing if not file.startswith(left_out)] == []
