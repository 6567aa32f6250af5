"""Differential privacy: noised sums, the ε that they spend, and calibration of noise.

All of it holds for the zero-out relation: two inputs are neighbours if they differ in
one device (or example), whose terms are zero in one of them.
"""

from fedbilevel.privacy.accountant import Account, Method, account, spent
from fedbilevel.privacy.budget import Budget
from fedbilevel.privacy.calibration import count_within, noise_for
from fedbilevel.privacy.releases import (
    Everyone,
    GaussianRelease,
    PoissonDraws,
    Sampling,
    UnknownSampling,
    WithoutReplacement,
    WithReplacement,
)
from fedbilevel.privacy.renyi import renyi_spent

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
    "renyi_spent",
    "spent",
]
