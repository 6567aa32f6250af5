from .deadlines import Deadlines
from .local_code import UnknownCodeError
from .suspensions import Suspensions

__all__ = ["Deadlines", "Suspensions", "UnknownCodeError"]
