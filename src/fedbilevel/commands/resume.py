"""`fedbilevel resume FOLDER`: a run goes on from its newest checkpoint."""

from collections.abc import Sequence
from pathlib import Path

from fedbilevel.commands.asking import asked
from fedbilevel.commands.following import follow
from fedbilevel.experiments.folders import EXPERIMENT
from fedbilevel.experiments.overrides import with_overrides
from fedbilevel.experiments.reading import read_experiment


def main(arguments: Sequence[str]) -> int:
    """Go on with a run.

    Example:
        >>> main.__name__
        'main'
    """
    given = asked("resume", "FOLDER", arguments)
    folder = Path(given.subject)
    if not (folder / EXPERIMENT).exists():
        raise ValueError(
            f"{folder} has no {EXPERIMENT}: it is no folder of a run; see what "
            "fedbilevel run said at its end."
        )
    experiment = with_overrides(
        read_experiment(folder / EXPERIMENT),
        given.options,
        f"fedbilevel resume {folder}",
    )
    return follow(experiment, folder, given.as_json)
