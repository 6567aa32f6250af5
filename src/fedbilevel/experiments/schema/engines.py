"""The engines that an experiment file can name."""

from dataclasses import dataclass
from typing import TypeAlias

from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.settings import Count, check_ranges


@dataclass(frozen=True)
class Sharded:
    """The sharded engine on all JAX devices.

    Attributes:
        cores: of this machine's CPU to use; none to leave that to JAX.
        chunk_size: devices in a chunk.

    Example:
        >>> Sharded(cores=2).cores
        2
    """

    cores: Count | None = None
    chunk_size: Count | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


EngineChoice: TypeAlias = Simulation | Sharded | DebugSimulation
"""The engines that a file can name."""
