"""Federated bilevel optimization: two losses in, a tuned model out.

Start with `run`. Names are imported on first use (`__init__.pyi` lists them), so that
the command line can print help before JAX is loaded.
"""

from typing import Any

import lazy_loader

_load, _list_names, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Here, since importing it takes as long as importing this package.
        from importlib.metadata import version

        return version(__name__)
    return _load(name)


def __dir__() -> list[str]:
    return [*_list_names(), "__version__"]
