from .accountant import Account, Budget, Method, account, spent
from .calibration import count_within, noise_for
from .releases import (
    Everyone,
    GaussianRelease,
    PoissonDraws,
    Sampling,
    UnknownSampling,
    WithoutReplacement,
    WithReplacement,
)

__all__ = [
    "Account",
    "Budget",
    "Everyone",
    "GaussianRelease",
    "Method",
    "PoissonDraws",
    "Sampling",
    "UnknownSampling",
    "WithReplacement",
    "WithoutReplacement",
    "account",
    "count_within",
    "noise_for",
    "spent",
]
