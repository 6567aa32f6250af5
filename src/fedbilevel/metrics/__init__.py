"""Metrics of runs: stationarity, consensus, reference solutions and diagnoses."""

from fedbilevel.metrics.consensus import consensus_error
from fedbilevel.metrics.curvature import largest_curvature
from fedbilevel.metrics.diagnosis import Diagnosis, Verdict, diagnose
from fedbilevel.metrics.estimation import estimate_assumptions
from fedbilevel.metrics.instability import Instability, find_instabilities
from fedbilevel.metrics.metric import FullProblem, Metric, Point
from fedbilevel.metrics.obstacles import (
    DiagnosisProgress,
    Obstacle,
    ObstacleCause,
    Stage,
)
from fedbilevel.metrics.reference import Reference, newton_reference
from fedbilevel.metrics.stationarity import Stationarity, stationarity
from fedbilevel.metrics.survey import Survey

__all__ = [
    "Diagnosis",
    "DiagnosisProgress",
    "FullProblem",
    "Instability",
    "Metric",
    "Obstacle",
    "ObstacleCause",
    "Point",
    "Reference",
    "Stage",
    "Stationarity",
    "Survey",
    "Verdict",
    "consensus_error",
    "diagnose",
    "estimate_assumptions",
    "find_instabilities",
    "largest_curvature",
    "newton_reference",
    "stationarity",
]
