from .administrator import Administrator
from .deadlines import Deadlines
from .kit_settings import prepare
from .message_limits import message_limit
from .processes import stop
from .recipe import FederationRecipe
from .rehearsals import connected, rehearsal
from .reviewed import UnreviewedError, review
from .site_check import check_site
from .supervision import News, Supervision
from .suspensions import Suspensions

__all__ = [
    "Administrator",
    "Deadlines",
    "FederationRecipe",
    "News",
    "Supervision",
    "Suspensions",
    "UnreviewedError",
    "check_site",
    "connected",
    "message_limit",
    "prepare",
    "rehearsal",
    "review",
    "stop",
]
