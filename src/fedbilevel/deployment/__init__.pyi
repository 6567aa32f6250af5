from .deadlines import Deadlines
from .reviewed import UnreviewedError
from .suspensions import Suspensions

__all__ = ["Deadlines", "Suspensions", "UnreviewedError"]
