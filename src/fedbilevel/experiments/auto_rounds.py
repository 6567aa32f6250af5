"""The number of rounds that sets the rates of "auto", when a run is extended."""

from dataclasses import replace

from fedbilevel.experiments.schema import Experiment


def with_initial_rounds(old: Experiment, new: Experiment) -> Experiment:
    """Return the new experiment with the rates of the old one.

    `AutoFedBiO` derives its rates from its number of rounds, so a run with more rounds
    could not resume from its checkpoint otherwise.

    Args:
        old: the experiment that the run started with.
        new: the experiment that it is resumed with.

    Example:
        >>> from fedbilevel.experiments.schema import Auto
        >>> old, new = Experiment(Auto(), rounds=3), Experiment(Auto(), rounds=5)
        >>> with_initial_rounds(old, new).federated_algorithm.rounds
        3
    """
    if old.auto is None or new.auto is None or new.auto.rounds is not None:
        return new
    rounds = old.auto.over(old.rounds).rounds
    return replace(new, algorithm=replace(new.auto, rounds=rounds))
