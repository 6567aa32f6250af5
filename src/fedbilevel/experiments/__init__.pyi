from .build import task_of
from .files.read import ExperimentError, read_experiment
from .files.write import write_experiment
from .outcome import Outcome, outcome_of
from .run import Step, Work, carry_out, work_of
from .run_directory.runs import Run, read_run
from .run_directory.solution import Learnt, read_learnt
from .schema import Experiment
from .split_data import split_data

__all__ = [
    "Experiment",
    "ExperimentError",
    "Learnt",
    "Outcome",
    "Run",
    "Step",
    "Work",
    "carry_out",
    "outcome_of",
    "read_experiment",
    "read_learnt",
    "read_run",
    "split_data",
    "task_of",
    "work_of",
    "write_experiment",
]
