"""Engines: they run algorithms on one machine, on a mesh or in a federation.

All engines give the same numbers. The names here are those that a custom engine needs.
"""

from fedbilevel.engines.protocol import (
    Block,
    BlockEngine,
    Engine,
    Job,
    Moment,
    Participants,
    PhaseReference,
    PrivateEngine,
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
    "PrivateEngine",
    "Report",
    "RunState",
]
