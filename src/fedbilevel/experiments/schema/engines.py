"""Settings of the engines that an experiment file can select."""

from dataclasses import dataclass
from typing import TypeAlias

from fedbilevel.engines.debug import DebugSimulation
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.settings import Count, check_ranges


@dataclass(frozen=True)
class Sharded:
    """The sharded engine on all JAX devices.

    Attributes:
        cores: number of CPU cores of this machine to use; None to let JAX choose.
        chunk_size: number of devices computed at once on each JAX device; None to let
            the engine choose.
    """

    cores: Count | None = None
    chunk_size: Count | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


EngineChoice: TypeAlias = Simulation | Sharded | DebugSimulation
"""An engine that an experiment file can select."""
