"""A federation on NVIDIA FLARE: real processes, mutual TLS, sites that may fail."""

from importlib.util import find_spec

if find_spec("nvflare") is None:
    raise ImportError(
        "nvflare is not installed; run: pip install 'fedbilevel[nvflare]'"
    )
