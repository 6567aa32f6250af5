"""Federations on NVIDIA FLARE: separate processes, mutual TLS, fault tolerance."""

from importlib.util import find_spec

import lazy_loader

if find_spec("nvflare") is None:
    raise ImportError(
        "nvflare is not installed; run: pip install 'fedbilevel[nvflare]'"
    )

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
