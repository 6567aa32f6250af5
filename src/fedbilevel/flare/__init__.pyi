from .administrator import Administrator
from .kit_settings import prepare
from .kits import review
from .message_limits import message_limit
from .processes import stop
from .recipe import FederationRecipe
from .rehearsals import connected_sites, rehearsal
from .site_check import check_site
from .supervision import JobEvent, Supervision

__all__ = [
    "Administrator",
    "FederationRecipe",
    "JobEvent",
    "Supervision",
    "check_site",
    "connected_sites",
    "message_limit",
    "prepare",
    "rehearsal",
    "review",
    "stop",
]
