"""`fedbilevel doctor`: what is installed, what it runs on, which data can be found."""

import argparse
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

PACKAGES = {
    "jax": "needed",
    "optax": "more schedules of the learning rate",
    "orbax-checkpoint": "checkpoints: pip install 'fedbilevel[checkpoints]'",
    "flwr-datasets": "partitions by class: pip install 'fedbilevel[partition]'",
    "tensorboardX": "tracking: pip install 'fedbilevel[tensorboard]'",
    "mlflow-skinny": "tracking: pip install 'fedbilevel[mlflow]'",
    "wandb": "tracking: pip install 'fedbilevel[wandb]'",
    "scikit-learn": "digits and newsgroups: pip install scikit-learn",
}
DATA_SETS = ("digits", "mnist", "fashion_mnist", "adult", "newsgroups")


def main(arguments: Sequence[str]) -> int:
    """Say what there is; the exit code is 0 whatever is missing.

    Example:
        >>> main.__name__
        'main'
    """
    parser = argparse.ArgumentParser(prog="fedbilevel doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="JSON, no words")
    given = parser.parse_args(arguments)
    found = {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "data": {name: _look_for(name) for name in DATA_SETS},
    }
    if given.json:
        print(json.dumps(found))
        return 0
    print(f"Python {found['python']}, JAX on {', '.join(_devices())}")
    for name, purpose in PACKAGES.items():
        print(f"  {name} {_version(name) or f'missing; for {purpose}'}")
    for name in DATA_SETS:
        print(f"  {name}: {_look_for(name) or 'found'}")
    return 0


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import jax

    return [str(device) for device in jax.devices()]


def _look_for(name: str) -> str | None:
    """Return what is the matter with a data set, if anything is."""
    from fedbilevel import datasets

    try:
        getattr(datasets, name)()
    except (ImportError, OSError, ValueError) as error:
        return str(error)
    return None
