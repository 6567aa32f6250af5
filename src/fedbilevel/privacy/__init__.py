"""Differential privacy: noised sums, the ε that they spend, and calibration of noise.

All of it holds for the zero-out relation: two inputs are neighbours if they differ in
one device (or example), whose terms are zero in one of them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
