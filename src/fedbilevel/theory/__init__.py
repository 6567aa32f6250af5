"""The paper's constants, its theorems' ceilings and bounds, and scaling laws.

`docs/paper-notes.md` explains how inconsistencies of the paper are resolved.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
