from . import datasets as datasets
from . import metrics as metrics
from . import problems as problems
from .algorithms.auto_fedbio import AutoFedBiO
from .algorithms.f2sa import F2SA
from .algorithms.fedbio import FedBiO
from .algorithms.fedbio_acc import FedBiOAcc
from .algorithms.fednest import FedNest
from .algorithms.lfednest import LFedNest
from .algorithms.local_bsgm import LocalBSGM
from .algorithms.local_bsgvrm import LocalBSGVRM
from .algorithms.protocol import FederatedAlgorithm, Phase, Upload
from .algorithms.scaling import plan_from, rescale, with_plan
from .algorithms.server_optimiser import WithServerOptimiser, with_server_optimiser
from .algorithms.shrofbo import ShroFBO
from .algorithms.simfbo import SimFBO
from .algorithms.warm_start import WarmStart
from .algorithms.whole_batches import WithWholeBatches, with_whole_batches
from .data.devices import (
    Devices,
    InMemoryDevices,
    LocalExamples,
    OnDemandDevices,
)
from .data.weights import Weights
from .engines.checkpoints.options import CheckpointError, Checkpoints
from .engines.costs import Costs
from .engines.debug import DebugSimulation, DeviceError
from .engines.inspection import NoUploadsError
from .engines.limits import Limits
from .engines.participation import FullParticipation, Participation, UniformSample
from .engines.predicted_costs import predict_costs
from .engines.protocol import Engine
from .engines.round import Round
from .engines.run import Run, run
from .engines.sharded.engine import Sharded
from .engines.simulation import Simulation
from .engines.sweep import Sweep, sweep
from .mathematics.hypergradients import (
    ConjugateGradient,
    Hypergradient,
    NeumannSeries,
    Samples,
)
from .mathematics.optax_optimiser import OptaxOptimiser, optax_optimiser
from .mathematics.optax_schedule import OptaxSchedule, optax_schedule
from .mathematics.problem import BilevelProblem
from .mathematics.schedules import CubeRootDecay, Schedule
from .mathematics.sites import SiteRows, SiteWeights
from .metrics.suggestion import Suggestion, suggest
from .transforms.clip import AdaptiveClip, Clip, ClipEach
from .transforms.compressor import Chain, Compressor
from .transforms.download import Download
from .transforms.example_noise import ExampleNoise
from .transforms.feedback import Feedback
from .transforms.fixed_point import FixedPoint
from .transforms.noise import DeviceNoise, GaussianNoise
from .transforms.quantise import Quantise
from .transforms.robust_means import CentredClipping, GeometricMedian, TrimmedMean
from .transforms.sparsify import RandomK, TopK
from .transforms.stages import Stage
from .transforms.transformed import with_transforms
from .tuning.space import Setting, Space, search_space
from .tuning.study import Trial
from .tuning.tuner import TuningProgress, TuningResult, tune

__version__: str

__all__ = [
    "F2SA",
    "AdaptiveClip",
    "AutoFedBiO",
    "BilevelProblem",
    "CentredClipping",
    "Chain",
    "CheckpointError",
    "Checkpoints",
    "Clip",
    "ClipEach",
    "Compressor",
    "ConjugateGradient",
    "Costs",
    "CubeRootDecay",
    "DebugSimulation",
    "DeviceError",
    "DeviceNoise",
    "Devices",
    "Download",
    "Engine",
    "ExampleNoise",
    "FedBiO",
    "FedBiOAcc",
    "FedNest",
    "FederatedAlgorithm",
    "Feedback",
    "FixedPoint",
    "FullParticipation",
    "GaussianNoise",
    "GeometricMedian",
    "Hypergradient",
    "InMemoryDevices",
    "LFedNest",
    "Limits",
    "LocalBSGM",
    "LocalBSGVRM",
    "LocalExamples",
    "NeumannSeries",
    "NoUploadsError",
    "OnDemandDevices",
    "OptaxOptimiser",
    "OptaxSchedule",
    "Participation",
    "Phase",
    "Quantise",
    "RandomK",
    "Round",
    "Run",
    "Samples",
    "Schedule",
    "Setting",
    "Sharded",
    "ShroFBO",
    "SimFBO",
    "Simulation",
    "SiteRows",
    "SiteWeights",
    "Space",
    "Stage",
    "Suggestion",
    "Sweep",
    "TopK",
    "Trial",
    "TrimmedMean",
    "TuningProgress",
    "TuningResult",
    "UniformSample",
    "Upload",
    "WarmStart",
    "Weights",
    "WithServerOptimiser",
    "WithWholeBatches",
    "datasets",
    "metrics",
    "optax_optimiser",
    "optax_schedule",
    "plan_from",
    "predict_costs",
    "problems",
    "rescale",
    "run",
    "search_space",
    "suggest",
    "sweep",
    "tune",
    "with_plan",
    "with_server_optimiser",
    "with_transforms",
    "with_whole_batches",
]
