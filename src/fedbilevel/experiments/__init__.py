"""Experiments: read a TOML file, build its task, run it, measure it, save the run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
