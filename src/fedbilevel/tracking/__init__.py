"""Records of a run, and trackers that receive them.

The library of a tracker is imported only when that tracker begins.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
