"""A federation over any transport: the server's engine and the sites that answer it.

Names are imported on first use, so that the worker process of a site imports only the
modules that its computation needs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
