"""The length that the rates of "auto" are made for, when a run gets more rounds."""

from dataclasses import replace

from fedbilevel.experiments.schema import Auto, Experiment


def with_initial_rounds(then: Experiment, now: Experiment) -> Experiment:
    """Return an experiment whose rates are those of the run that was begun.

    `AutoFedBiO` makes its rates from its number of rounds, so a run that is given more
    would otherwise not resume from its own checkpoint.

    Args:
        then: what the run was asked when it began.
        now: what it is asked to resume with.

    Example:
        >>> then, now = Experiment(Auto(), rounds=3), Experiment(Auto(), rounds=5)
        >>> with_initial_rounds(then, now).federated_algorithm.rounds
        3
    """
    if not isinstance(then.algorithm, Auto) or not isinstance(now.algorithm, Auto):
        return now
    if now.algorithm.rounds is not None:
        return now
    length = then.algorithm.over(then.rounds).rounds
    return replace(now, algorithm=replace(now.algorithm, rounds=length))
