"""How far a run has come: stationarity, consensus, and what the truth would be."""

from fedbilevel.metrics.consensus import consensus_error
from fedbilevel.metrics.reference import Reference, newton_reference
from fedbilevel.metrics.stationarity import Stationarity, stationarity

__all__ = [
    "Reference",
    "Stationarity",
    "consensus_error",
    "newton_reference",
    "stationarity",
]
