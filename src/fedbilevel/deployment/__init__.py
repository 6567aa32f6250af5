"""An experiment carried out by a federation: what its server and its sites do.

Names are imported when first asked for: the process of a site's computation begins with
nothing, and imports what it is asked to.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
