"""`fedbilevel doctor`: what is installed, what it runs on, which data can be found."""

import argparse
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from fedbilevel.commands.words import aligned
from fedbilevel.datasets.adult import ADULT
from fedbilevel.datasets.mnist import FASHION_MNIST, MNIST
from fedbilevel.datasets.newsgroups import NEWSGROUPS
from fedbilevel.datasets.sources import found_in

PACKAGES = {
    "fedbilevel": "everything",
    "jax": "everything",
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
"""What else each is needed for."""


def main(arguments: Sequence[str]) -> int:
    """Say what there is; the exit code is 0 whatever is missing.

    Example:
        >>> main.__name__
        'main'
    """
    given = command_parser().parse_args(arguments)
    packages = {name: _version(name) for name in PACKAGES}
    devices, data = _devices(), _data(packages["scikit-learn"] is not None)
    if given.json:
        found = {"python": platform.python_version(), "packages": packages}
        print(json.dumps({**found, "devices": devices, "data": data}))
        return 0
    print(f"Python {platform.python_version()}; JAX computes on {', '.join(devices)}")
    print("\npackages")
    rows = [
        [f"  {name}", found or "–", "" if found else f"missing, for {PACKAGES[name]}"]
        for name, found in packages.items()
    ]
    print(aligned(rows, numbers=()))
    print("\ndata sets")
    rows = [[f"  {name}", where or "not found"] for name, where in data.items()]
    print(aligned(rows, numbers=()))
    if None in data.values():
        print("  (loading one that was not found says where its files come from)")
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the subcommand.

    Example:
        >>> command_parser().prog
        'fedbilevel doctor'
    """
    parser = argparse.ArgumentParser(prog="fedbilevel doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON, no words")
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
    found: dict[str, str | None] = {
        "digits": "scikit-learn" if with_scikit_learn else None
    }
    for source in (MNIST, FASHION_MNIST, ADULT, NEWSGROUPS):
        place = found_in(source)
        found[source.name] = None if place is None else str(place)
    return found
