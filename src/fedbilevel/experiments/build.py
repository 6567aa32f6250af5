"""Build the task of an experiment: problem, data and starting point."""

import jax
import numpy as np

from fedbilevel.data.devices import InMemoryDevices, SizedDevices
from fedbilevel.data.weights import Weighting, Weights
from fedbilevel.experiments.custom_problem import custom_task
from fedbilevel.experiments.schema import CustomProblem, Experiment
from fedbilevel.experiments.split_data import split_data
from fedbilevel.problems.built_in import BundledProblem
from fedbilevel.problems.task import Task


def build_task(experiment: Experiment) -> Task:
    """Return the problem of an experiment with its data.

    Example:
        >>> from fedbilevel import FedBiO
        >>> build_task(Experiment(FedBiO(0.1))).devices.device_count
        8
    """
    task = _build_task(experiment)
    require_finite(task.devices)
    return task


def _build_task(experiment: Experiment) -> Task:
    problem = experiment.problem
    if isinstance(problem, CustomProblem):
        return custom_task(problem.file)
    if isinstance(problem, BundledProblem):
        return problem.task()
    data = split_data(experiment.data, experiment.partition)
    if experiment.weight_by_size:
        sizes = [len(rows) for rows in data.split.training_rows]
        data = data._replace(weights=sizes)
    return problem.build(data)


def weights_of(experiment: Experiment, devices: SizedDevices) -> Weighting:
    """Return the weights of the devices; None for equal weights.

    Weights by size are numbers of lower examples. If a device lacks a level, they are
    numbers of examples of each level.

    Example:
        >>> from fedbilevel import FedBiO
        >>> experiment = Experiment(FedBiO(0.1), weight_by_size=True)
        >>> weights_of(experiment, build_task(experiment).devices).sum()
        np.int64(1150)
    """
    if not experiment.weight_by_size:
        return None
    limit = experiment.size_limit
    upper, lower = (
        sizes if limit is None else np.asarray(np.minimum(sizes, limit))
        for sizes in (devices.upper_sizes, devices.lower_sizes)
    )
    return lower if (upper > 0).all() and (lower > 0).all() else Weights(upper, lower)


def require_finite(devices: InMemoryDevices) -> None:
    """Raise an error if an example has a NaN or an infinite number.

    Raises:
        ValueError: with the device and the row of the example.

    Example:
        >>> from fedbilevel import LocalExamples
        >>> good, bad = np.ones((2, 3)), np.array([[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]])
        >>> local = LocalExamples(upper=good, lower=bad)
        >>> require_finite(InMemoryDevices([local]))
        Traceback (most recent call last):
        ...
        ValueError: Device 0: row 1 of its lower examples has a number that is not
        finite (nan); replace the number, or remove the example.
    """
    data = devices.cohort(np.arange(devices.device_count))
    for level, stored, sizes in (
        ("upper", data.upper, devices.upper_sizes),
        ("lower", data.lower, devices.lower_sizes),
    ):
        for leaf in map(np.asarray, jax.tree.leaves(stored.arrays)):
            rows = leaf.reshape(len(leaf), -1)
            if not np.issubdtype(leaf.dtype, np.floating) or np.isfinite(rows).all():
                continue
            # A device without examples of the level has a copy of another's example.
            for device in np.flatnonzero(sizes):
                first = stored.offset[device]
                own = rows[first : first + sizes[device]]
                for row in np.flatnonzero(~np.isfinite(own).all(axis=1)):
                    value = own[row][~np.isfinite(own[row])][0]
                    raise ValueError(
                        f"Device {devices.names[device]}: row {row} of its {level} "
                        f"examples has a number that is not finite ({value}); replace "
                        "the number, or remove the example."
                    )
