"""What runs algorithms: each engine gives the same numbers, each in its own place.

The names here are what writing another one takes.
"""

from fedbilevel.engines.protocol import (
    Block,
    BlockEngine,
    Engine,
    Job,
    Moment,
    Participants,
    PhaseReference,
    Report,
    RunState,
)

__all__ = [
    "Block",
    "BlockEngine",
    "Engine",
    "Job",
    "Moment",
    "Participants",
    "PhaseReference",
    "Report",
    "RunState",
]
