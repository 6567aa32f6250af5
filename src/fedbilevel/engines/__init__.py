"""Engines: they run algorithms on one machine, on a mesh or in a federation.

All engines give the same numbers. The names here are those that a custom engine needs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
