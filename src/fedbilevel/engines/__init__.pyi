from .protocol import (
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
