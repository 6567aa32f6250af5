"""`fedbilevel diagnose FILE`: is the federation homogeneous enough?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbilevel.algorithms.survey import Survey
from fedbilevel.commands.asking import asked
from fedbilevel.experiments.building import task_of
from fedbilevel.experiments.locating import located
from fedbilevel.experiments.overrides import with_overrides
from fedbilevel.experiments.reading import read_experiment
from fedbilevel.metrics.diagnosis import diagnose


def main(arguments: Sequence[str]) -> int:
    """Ask the devices of an experiment how much their own hypergradients differ.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("diagnose", "FILE", arguments)
    file = Path(given.subject)
    experiment = with_overrides(
        read_experiment(file), given.options, f"fedbilevel diagnose {file}"
    )
    experiment = located(experiment, file.parent)
    algorithm: Any = experiment.algorithm
    series = getattr(algorithm, "hypergradient", None) or getattr(
        algorithm, "series", None
    )
    if series is None:
        raise ValueError(
            f"{type(algorithm).__name__} has no series to diagnose with; name an "
            "algorithm that has, such as algorithm:local-bsgm with "
            "--algorithm.hypergradient.terms and --algorithm.hypergradient.scale."
        )
    task = task_of(experiment)
    survey = Survey(
        series,
        batch_size=algorithm.batch_size,
        warm_start=getattr(algorithm, "warm_start", None),
    )
    found = diagnose(task.problem, survey, task.devices, task.x, task.y)
    if given.as_json:
        print(json.dumps({"verdict": found.verdict.name, "words": str(found)}))
    else:
        print(found)
    return 0
