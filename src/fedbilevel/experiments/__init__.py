"""Experiments: what a file asks for, read, built, run, measured and written down."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
