"""Federated bilevel optimization: two losses in, a tuned model out.

See `run` for the way in. Names are imported when first asked for (`__init__.pyi` lists
them), so that the command line answers before JAX is loaded.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
