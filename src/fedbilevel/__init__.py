"""Federated bilevel optimization: two losses in, a tuned model out.

Start with `run`. Names are imported on first use (`__init__.pyi` lists them), so that
the command line can print help before JAX is loaded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
