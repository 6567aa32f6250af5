"""The engines that an experiment file can name."""

from dataclasses import dataclass
from typing import TypeAlias

from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.simulation import Simulation
from fedbilevel.experiments.possible import at_least


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

    cores: int | None = None
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        at_least(1, self, "cores", "chunk_size")


EngineChoice: TypeAlias = Simulation | Sharded | DebugSimulation
"""The engines that a file can name."""
