"""Deployment of an experiment: the computations of a job's server and of its sites.

Names are imported on first use, so that the worker process of a site imports only the
modules that its computation needs.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
