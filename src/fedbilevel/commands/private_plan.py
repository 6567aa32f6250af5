"""`fedbilevel plan FILE --epsilon ε`: the noise of differential privacy."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbilevel.commands.formatting import format_table
from fedbilevel.data.devices import InMemoryDevices
from fedbilevel.data.examples import one_device
from fedbilevel.engines.example_releases import BatchUse
from fedbilevel.engines.participation import FullParticipation, UniformSample
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import RunState
from fedbilevel.engines.spending import (
    exchange_uses,
    populations_of,
    sampling_of,
    spending_of_examples,
    spending_of_means,
)
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.federation import model_of, sites_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.plurals import count_noun
from fedbilevel.privacy import Sampling
from fedbilevel.privacy.calibration import smallest_noise
from fedbilevel.transforms.example_noise import ExampleNoise

COHORTS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of the devices that participate in a round, to choose from."""
FEWEST = 10
"""The fewest participants of a round that are suggested."""
LONGEST = 3.0
"""Length of the noise on a mean, over the longest update or the longest mean of clipped
gradients, above which plan warns."""
MARGIN = 1e-3
"""Relative amount by which a noise multiplier is raised before it is rounded."""


class Choice(NamedTuple):
    """A number of participants and its noise.

    Attributes:
        participants: number of devices in each round.
        noise: noise multiplier of an exchange.
        length: length of the noise on a mean update over the largest norm of one
            device's update; the mean of honest updates is shorter than 1.
    """

    participants: int
    noise: float
    length: float


class Planned(NamedTuple):
    """The part of a task that a plan reads: no example.

    Attributes:
        problem: the two losses.
        x: initial upper variable.
        y: initial lower variable.
        devices: devices, of which only numbers and forms matter.
    """

    problem: BilevelProblem
    x: Upper
    y: Lower
    devices: InMemoryDevices | EnrolledDevices


def print_private_plan(
    experiment: Experiment,
    epsilon: float,
    delta: float,
    as_json: bool,
    sizes: tuple[int, int] | None = None,
) -> None:
    """Print the noise for an ε: by example if the file has `example_noise`.

    Args:
        experiment: experiment.
        epsilon: ε.
        delta: δ.
        as_json: whether to print JSON.
        sizes: smallest numbers of upper and lower examples of a device, with which the
            data are not read; None to read the data.
    """
    task = _planned(experiment, sizes)
    by_example = experiment.transforms.example_noise is not None
    print_plan = _print_example_plan if by_example else _print_device_plan
    print_plan(experiment, task, epsilon, delta, as_json)


def _planned(experiment: Experiment, sizes: tuple[int, int] | None) -> Planned:
    if sizes is None:
        try:
            task = build_task(experiment)
        except ValueError as error:
            # The file of a federation has model() and examples(site) instead.
            if "has no function task()" not in str(error):
                raise
            raise ValueError(
                f"{error} To plan a federation without its data, give --examples "
                "UPPER,LOWER, the smallest numbers of examples of a site."
            ) from None
        return Planned(task.problem, task.x, task.y, task.devices)
    model, (upper, lower) = model_of(experiment), sizes
    enrolment = Enrolment.of(model.form)._replace(upper_size=upper, lower_size=lower)
    enrolled = dict.fromkeys(sites_of(experiment), enrolment)
    devices = EnrolledDevices(enrolled, model.form)
    return Planned(model.problem, model.x, model.y, devices)


def _print_device_plan(
    experiment: Experiment, task: Planned, epsilon: float, delta: float, as_json: bool
) -> None:
    """Print the noise for an ε by device, with several numbers of participants."""
    wanted = experiment.participants or task.devices.device_count
    choices = _choices(experiment, task, epsilon, delta)
    chosen = next(choice for choice in choices if choice.participants == wanted)
    if as_json:
        fields = {"epsilon": epsilon, "delta": delta, "rounds": experiment.rounds}
        rows = [choice._asdict() for choice in choices]
        print(json.dumps({**fields, "noise": chosen.noise, "choices": rows}))
        return
    titles = ["participants", "noise", "length of noise / clip"]
    table = [
        [f"{choice.participants:,}", f"{choice.noise:.4g}", f"{choice.length:.3g}"]
        for choice in choices
    ]
    print(format_table([titles, *table], numbers=(0, 1, 2)))
    print(
        f"For ε = {epsilon:g} at δ = {delta:g} after "
        f"{count_noun(experiment.rounds, 'round')} with "
        f"{count_noun(wanted, 'participant')}, write:\n\n"
        f"[transforms]\n{_bounds(experiment)}noise = {chosen.noise:.4g}\n"
        f"epsilon = {epsilon:g}\ndelta = {delta:g}\n"
    )
    if len(choices) > 1:
        print(
            "A sample lowers ε only if nobody knows the participants, so not in a "
            "federation. For privacy by example set example_clip and example_noise in "
            "[transforms], and run this command again."
        )
    if chosen.length > LONGEST:
        print(
            f"Warning: the noise is {chosen.length:.3g} times as long as the longest "
            "update, so training is unlikely to improve. Let more devices participate, "
            "tune fewer variables, or give fewer rounds or a larger --epsilon.",
            file=sys.stderr,
        )


def _choices(
    experiment: Experiment, task: Planned, epsilon: float, delta: float
) -> list[Choice]:
    """Return the noise for several numbers of participants, the largest first."""
    count = task.devices.device_count
    wanted = experiment.participants or count
    sizes = {max(1, round(share * count)) for share in COHORTS}
    # A mean of few updates has more noise than signal.
    sizes = {size for size in sizes if size >= FEWEST} | {wanted, count}
    algorithm: Any = experiment.inner_algorithm
    usual = len(algorithm.phases(task.problem))
    opening = len(algorithm.opening(task.problem)) or usual
    entries = _entries(algorithm, task)
    weights = weights_of(experiment, task.devices)
    weights = np.ones(count) if weights is None else np.asarray(weights)
    _, private = experiment.federated_algorithm.init(task.problem, task.x, task.y)

    def sampling(size: int) -> Sampling:
        everyone = size == count
        participation = FullParticipation() if everyone else UniformSample(size)
        return sampling_of(participation, experiment.engine, weights, private)

    return [
        choice_of(
            size,
            sampling(size),
            experiment.rounds,
            opening,
            usual,
            epsilon,
            delta,
            entries,
        )
        for size in sorted(sizes, reverse=True)
    ]


def _print_example_plan(
    experiment: Experiment, task: Planned, epsilon: float, delta: float, as_json: bool
) -> None:
    """Print the noise for an ε by example."""
    algorithm: Any = experiment.federated_algorithm
    server, private = canonical(algorithm.init(task.problem, task.x, task.y))
    data = one_device(task.devices.cohort(np.array([0])))
    state = RunState(server, private)
    uses = exchange_uses(algorithm, task.problem, state, data)
    populations = populations_of(task.devices)
    clip = experiment.transforms.example_clip
    assert clip is not None, "the settings require it with example_noise"

    def spend(noise: float) -> float:
        example_noise = ExampleNoise(clip, noise, delta)
        spending = spending_of_examples(example_noise, *uses, populations)
        return spending.epsilon_after(experiment.rounds)

    noise = _printed_noise(spend, epsilon)
    sizes = {level.name.lower(): size for level, size in populations.items()}
    length = _example_length(algorithm, task, uses[1], noise)
    if as_json:
        fields = {"epsilon": epsilon, "delta": delta, "rounds": experiment.rounds}
        result = {"example_noise": noise, "fewest_examples": sizes, "length": length}
        print(json.dumps({**fields, **result}))
        return
    print(
        f"For ε = {epsilon:g} by example at δ = {delta:g} after "
        f"{count_noun(experiment.rounds, 'round')}, with at least {sizes['upper']:,} "
        f"upper and {sizes['lower']:,} lower examples on each device, write:\n\n"
        f"[transforms]\nexample_clip = {clip:g}\nexample_noise = {noise:.4g}\n"
        f"epsilon = {epsilon:g}\ndelta = {delta:g}\n"
    )
    if length > LONGEST:
        print(
            f"Warning: the noise of a round is {length:.3g} times as long as the "
            "longest mean of clipped gradients, so training is unlikely to improve. "
            "Use more examples or devices, tune fewer variables, or give fewer rounds "
            "or a larger --epsilon.",
            file=sys.stderr,
        )


def _example_length(
    algorithm: Any,
    task: Planned,
    usual: Sequence[Mapping[BatchUse, int]],
    noise: float,
) -> float:
    """Return the length of the noise over the longest mean of clipped gradients.

    A mean over a batch of B examples has n numbers, each with noise of multiplier ·
    clip / B, and at most the length of the clip. Means over devices and over the local
    steps of a round average the noise.
    """
    entries = max(
        sum(np.size(leaf) for leaf in jax.tree.leaves(variable))
        for variable in (task.x, task.y)
    )
    batch = min((use.batch_size for uses in usual for use in uses), default=1)
    steps = max(phase.steps for phase in algorithm.phases(task.problem))
    means = task.devices.device_count * steps
    return float(noise * entries**0.5 / (batch * means**0.5))


def choice_of(
    participants: int,
    sampling: Sampling,
    rounds: int,
    opening: int,
    usual: int,
    epsilon: float,
    delta: float,
    entries: int,
) -> Choice:
    """Return the noise with which a run spends at most ε.

    Args:
        participants: number of devices in each round.
        sampling: selection of the participants.
        rounds: number of rounds.
        opening: number of exchanges of the first round.
        usual: number of exchanges of every later round.
        epsilon: ε.
        delta: δ.
        entries: number of entries of an update.

    Example:
        >>> from fedbilevel.privacy import Everyone
        >>> choice = choice_of(100, Everyone(), 50, 1, 1, 2.0, 1e-5, entries=64)
        >>> round(choice.noise, 1), round(choice.length, 1)
        (14.1, 1.1)
    """

    def spend(noise: float) -> float:
        spending = spending_of_means(noise, opening, usual, sampling, delta)
        return spending.epsilon_after(rounds)

    noise = _printed_noise(spend, epsilon)
    return Choice(participants, noise, noise * entries**0.5 / participants)


def _bounds(experiment: Experiment) -> str:
    """Return the lines of the clip in the file, or of an adaptive one."""
    settings = experiment.transforms
    bounds = {"clip": settings.clip, "clip_quantile": settings.clip_quantile}
    if settings.clip is None and settings.clip_quantile is None:
        bounds["clip_quantile"] = 0.5
    return "".join(
        f"{name} = {bound:g}\n" for name, bound in bounds.items() if bound is not None
    )


def _printed_noise(spend: Callable[[float], float], epsilon: float) -> float:
    """Return the smallest noise multiplier, rounded up to the digits of a file."""
    return float(f"{smallest_noise(spend, epsilon) * (1 + MARGIN):.4g}")


def _entries(algorithm: Any, task: Planned) -> int:
    """Return the number of entries of the largest update of a round."""
    server, _ = canonical(algorithm.init(task.problem, task.x, task.y))
    sizes = [0]
    for phase in algorithm.phases(task.problem):
        if phase.reference is not None:
            downlink = jax.eval_shape(phase.broadcast, server)
            update = jax.eval_shape(phase.reference, downlink)
            sizes.append(sum(leaf.size for leaf in jax.tree.leaves(update)))
    return max(sizes)
