from .build import build_task
from .files.read import ExperimentError, read_experiment
from .files.write import write_experiment
from .outcome import Outcome, outcome_of
from .run import PreparedRun, Step, prepare_run, run_experiment
from .run_directory.runs import Run, read_run
from .run_directory.solution import Solution, read_solution
from .schema import Experiment
from .split_data import split_data

__all__ = [
    "Experiment",
    "ExperimentError",
    "Outcome",
    "PreparedRun",
    "Run",
    "Solution",
    "Step",
    "build_task",
    "outcome_of",
    "prepare_run",
    "read_experiment",
    "read_run",
    "read_solution",
    "run_experiment",
    "split_data",
    "write_experiment",
]
