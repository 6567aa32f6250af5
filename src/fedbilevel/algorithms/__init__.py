"""Federated bilevel algorithms, as pure functions independent of the engine.

This package exports the names for writing a custom algorithm.
"""

from fedbilevel.algorithms.notices import Noticing
from fedbilevel.algorithms.optional import (
    Conflict,
    Conflicting,
    MovedByServer,
    PlannedRounds,
)
from fedbilevel.algorithms.protocol import (
    Aggregation,
    Beside,
    FederatedAlgorithm,
    Phase,
    Shares,
    Units,
    Upload,
)
from fedbilevel.algorithms.sampling import draw_samples
from fedbilevel.algorithms.validation import check_settings
from fedbilevel.algorithms.wrapper import Wrapper, innermost, map_phases
from fedbilevel.data.examples import DeviceData, Examples, RandomKey
from fedbilevel.mathematics import tree
from fedbilevel.mathematics.hypergradients import Samples
from fedbilevel.mathematics.schedules import LearningRate, rate_at
from fedbilevel.mathematics.settings import (
    AdjointRate,
    BatchSize,
    Count,
    Fraction,
    LocalSteps,
    LowerMixing,
    LowerRate,
    Mixing,
    Range,
    Rate,
    Role,
    ServerRate,
    SettingError,
    SquaredMixing,
    Switch,
    UpperRate,
    check_ranges,
    register,
)

__all__ = [
    "AdjointRate",
    "Aggregation",
    "BatchSize",
    "Beside",
    "Conflict",
    "Conflicting",
    "Count",
    "DeviceData",
    "Examples",
    "FederatedAlgorithm",
    "Fraction",
    "LearningRate",
    "LocalSteps",
    "LowerMixing",
    "LowerRate",
    "Mixing",
    "MovedByServer",
    "Noticing",
    "Phase",
    "PlannedRounds",
    "RandomKey",
    "Range",
    "Rate",
    "Role",
    "Samples",
    "ServerRate",
    "SettingError",
    "Shares",
    "SquaredMixing",
    "Switch",
    "Units",
    "Upload",
    "UpperRate",
    "Wrapper",
    "check_ranges",
    "check_settings",
    "draw_samples",
    "innermost",
    "map_phases",
    "rate_at",
    "register",
    "tree",
]
