"""`fedbilevel doctor`: check the installation, the hardware and the data sets."""

import argparse
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from fedbilevel.commands.formatting import JSON_HELP, format_table
from fedbilevel.datasets.known_sources import SOURCES
from fedbilevel.datasets.sources import find_directory
from fedbilevel.usage import with_plain_errors

PACKAGES = {
    "fedbilevel": "all commands",
    "jax": "all commands",
    "orbax-checkpoint": "checkpoints: pip install 'fedbilevel[commands]'",
    "matplotlib": "pictures: pip install 'fedbilevel[commands]'",
    "scikit-learn": "digits and newsgroups: pip install 'fedbilevel[commands]'",
    "optuna": "tuning: pip install 'fedbilevel[tune]'",
    "flwr-datasets": "partitions by class: pip install 'fedbilevel[partition]'",
    "nvflare": "federations of real sites: pip install 'fedbilevel[nvflare]'",
    "tensorboardX": "TensorBoard: pip install 'fedbilevel[tensorboard]'",
    "mlflow-skinny": "MLflow: pip install 'fedbilevel[mlflow]'",
    "wandb": "Weights & Biases: pip install 'fedbilevel[wandb]'",
}
"""Purpose of each package, and the command that installs it."""


def main(arguments: Sequence[str]) -> int:
    """Print packages, devices and data sets; the exit code is 0 even if some lack."""
    options = with_plain_errors(command_parser()).parse_args(arguments)
    packages = {name: _version(name) for name in PACKAGES}
    devices, data = _devices(), _data(packages["scikit-learn"] is not None)
    if options.json:
        versions = {"python": platform.python_version(), "packages": packages}
        print(json.dumps({**versions, "devices": devices, "data": data}))
        return 0
    print(f"Python {platform.python_version()}; JAX devices: {', '.join(devices)}")
    print("\nPackages")
    rows = [
        [
            f"  {name}",
            number or "–",
            "" if number else f"not installed, needed for {PACKAGES[name]}",
        ]
        for name, number in packages.items()
    ]
    print(format_table(rows, numbers=()))
    print("\nData sets")
    rows = [[f"  {name}", path or "not found"] for name, path in data.items()]
    print(format_table(rows, numbers=()))
    if None in data.values():
        print(
            "  (The error message of a missing data set names the source of its files.)"
        )
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel doctor",
        description="Check the installation, the hardware and the data sets, and print "
        "how to install what is missing.",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import jax

    return [str(device) for device in jax.devices()]


def _data(with_scikit_learn: bool) -> dict[str, str | None]:
    paths: dict[str, str | None] = {
        "digits": "scikit-learn" if with_scikit_learn else None
    }
    for source in SOURCES:
        path = find_directory(source)
        paths[source.name] = None if path is None else str(path)
    return paths
