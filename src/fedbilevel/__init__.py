"""Federated bilevel optimization: two losses in, a tuned model out.

See `run` for the way in.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedbilevel.algorithms.fedbio import FedBiO
from fedbilevel.algorithms.fedbio_acc import FedBiOAcc
from fedbilevel.algorithms.fednest import FedNest
from fedbilevel.algorithms.lfednest import LFedNest
from fedbilevel.algorithms.local_bsgm import LocalBSGM
from fedbilevel.algorithms.local_bsgvrm import LocalBSGVRM
from fedbilevel.algorithms.planning import plan_of, with_plan
from fedbilevel.algorithms.protocol import FederatedAlgorithm, Phase
from fedbilevel.algorithms.rescale import rescale
from fedbilevel.algorithms.shrofbo import ShroFBO
from fedbilevel.algorithms.simfbo import SimFBO
from fedbilevel.algorithms.warm_start import WarmStart
from fedbilevel.data.devices import (
    Devices,
    InMemoryDevices,
    LocalExamples,
    OnDemandDevices,
)
from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.checkpoints import CheckpointError, Checkpoints
from fedbilevel.engines.debug import DebugSimulation, DeviceError
from fedbilevel.engines.participation import Everyone, Participation, UniformSample
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.round import Round
from fedbilevel.engines.rounds import best_round, resume, run
from fedbilevel.engines.screening import NoUploadsError
from fedbilevel.engines.sharded import Sharded
from fedbilevel.engines.simulation import Simulation
from fedbilevel.engines.sweep import Sweep, sweep
from fedbilevel.mathematics.hypergradients import (
    ConjugateGradient,
    Hypergradient,
    NeumannSeries,
    Samples,
)
from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.mathematics.schedules import CubeRootDecay, Schedule

if TYPE_CHECKING:
    from fedbilevel import datasets, metrics, problems

__all__ = [
    "BilevelProblem",
    "CheckpointError",
    "Checkpoints",
    "ConjugateGradient",
    "Costs",
    "CubeRootDecay",
    "DebugSimulation",
    "DeviceError",
    "Devices",
    "Engine",
    "Everyone",
    "FedBiO",
    "FedBiOAcc",
    "FedNest",
    "FederatedAlgorithm",
    "Hypergradient",
    "InMemoryDevices",
    "LFedNest",
    "LocalBSGM",
    "LocalBSGVRM",
    "LocalExamples",
    "NeumannSeries",
    "NoUploadsError",
    "OnDemandDevices",
    "Participation",
    "Phase",
    "Round",
    "Samples",
    "Schedule",
    "Sharded",
    "ShroFBO",
    "SimFBO",
    "Simulation",
    "Sweep",
    "UniformSample",
    "WarmStart",
    "best_round",
    "datasets",
    "metrics",
    "plan_of",
    "problems",
    "rescale",
    "resume",
    "run",
    "sweep",
    "with_plan",
]


def __getattr__(name: str) -> Any:
    # Imported when first asked for: what they need takes longer than all the rest.
    if name in ("datasets", "metrics", "problems"):
        return import_module(f"fedbilevel.{name}")
    raise AttributeError(f"module 'fedbilevel' has no attribute {name!r}")
