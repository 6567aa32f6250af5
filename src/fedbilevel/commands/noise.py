"""`fedbilevel noise FILE --epsilon ε`: the noise of differential privacy."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbilevel.commands.consent import add_trust, read_with_consent
from fedbilevel.commands.formatting import JSON_HELP, format_table
from fedbilevel.data.devices import InMemoryDevices
from fedbilevel.data.examples import one_device
from fedbilevel.data.weights import level_weights
from fedbilevel.engines.example_releases import BatchUse
from fedbilevel.engines.participation import FullParticipation, UniformSample
from fedbilevel.engines.preparation import canonical
from fedbilevel.engines.protocol import RunState
from fedbilevel.engines.run import Run
from fedbilevel.engines.spending import (
    exchange_uses,
    populations_of,
    sampling_of,
    spending_of_examples,
    spending_of_means,
)
from fedbilevel.experiments.build import build_task, weights_of
from fedbilevel.experiments.custom_problem import MissingFunctionError
from fedbilevel.experiments.federation import model_of, sites_of
from fedbilevel.experiments.schema import Experiment
from fedbilevel.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.plurals import count_noun
from fedbilevel.privacy.calibration import smallest_noise
from fedbilevel.transforms.example_noise import ExampleNoise
from fedbilevel.usage import with_plain_errors

COHORTS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Shares of the devices that participate in a round, to choose from."""
FEWEST = 10
"""The fewest participants of a round that are suggested."""
LONGEST = 3.0
"""Length of the noise on a mean, over the longest update or the longest mean of clipped
gradients, above which the command warns."""
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


class Answer(NamedTuple):
    """The noise for an ε.

    Attributes:
        fields: the answer for JSON.
        condition: devices or examples for which it is valid.
        settings: lines of the file's table `transforms`.
        length: length of the noise over that of what it hides.
        warning: reason and cure, printed if the noise is too long.
        others: a table of other choices, or nothing.
    """

    fields: Mapping[str, Any]
    condition: str
    settings: str
    length: float
    warning: str
    others: str = ""


def main(arguments: Sequence[str]) -> int:
    """Compute the noise of an experiment for an ε."""
    options = with_plain_errors(command_parser()).parse_args(arguments)
    experiment = read_with_consent(options.run, options.trust)
    epsilon = options.epsilon
    delta = experiment.transforms.delta if options.delta is None else options.delta
    if not 0 < epsilon < inf:
        raise ValueError(f"--epsilon is {epsilon:g}. Give a number above 0.")
    if not 0 < delta < 1:
        raise ValueError(f"--delta is {delta:g}. Give a number above 0 and below 1.")
    if min(options.examples or (1,)) < 1:
        raise ValueError("--examples has a number below 1. Give at least 1,1.")
    run = _run_of(experiment, options.examples)
    by_example = experiment.transforms.example_noise is not None
    answer = (_by_example if by_example else _by_device)(
        experiment, run, epsilon, delta
    )
    if options.json:
        fields = {"epsilon": epsilon, "delta": delta, "rounds": experiment.rounds}
        print(json.dumps({**fields, **answer.fields}))
        return 0
    print(
        f"{answer.others}For ε = {epsilon:g}{' by example' if by_example else ''} at "
        f"δ = {delta:g} after {count_noun(experiment.rounds, 'round')}"
        f"{answer.condition}, write:\n\n[transforms]\n{answer.settings}"
        f"epsilon = {epsilon:g}\ndelta = {delta:g}\n"
    )
    if not by_example and len(answer.fields["choices"]) > 1:
        print(
            "A sample lowers ε only if nobody knows the participants, so not in a "
            "federation. For privacy by example set example_clip and example_noise in "
            "[transforms], and run this command again."
        )
    if answer.length > LONGEST:
        print(
            f"Warning: the noise {answer.warning} or give fewer rounds or a larger "
            "--epsilon.",
            file=sys.stderr,
        )
    return 0


def command_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(
        prog="fedbilevel noise",
        description="Compute the noise of differential privacy with which a run spends "
        "at most ε: by device, or by example if the file has example_noise.",
    )
    parser.add_argument(
        "run", metavar="RUN", type=Path, help="experiment file or run directory"
    )
    parser.add_argument(
        "--epsilon",
        metavar="FLOAT",
        type=float,
        required=True,
        help="ε of differential privacy",
    )
    parser.add_argument(
        "--delta",
        metavar="FLOAT",
        type=float,
        help="δ of differential privacy (default: as in the file)",
    )
    parser.add_argument(
        "--examples",
        metavar="UPPER,LOWER",
        type=_counts,
        help="smallest numbers of examples of a device, in place of the data; the "
        "problem file then needs model() only",
    )
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    return parser


def _counts(text: str) -> tuple[int, int]:
    upper, lower = map(int, text.split(","))
    return upper, lower


def _run_of(experiment: Experiment, sizes: tuple[int, int] | None) -> Run:
    """Return the run, with sizes in place of the data if there are sizes."""
    devices: InMemoryDevices | EnrolledDevices
    if sizes is None:
        try:
            problem, devices, x, y, _ = build_task(experiment)
        except MissingFunctionError as error:
            # The file of a federation has model() and examples(site) instead.
            raise ValueError(
                f"{error} For a federation without its data, give --examples "
                "UPPER,LOWER, the smallest numbers of examples of a site."
            ) from None
    else:
        problem, x, y, _, form = model_of(experiment)
        upper, lower = sizes
        enrolment = Enrolment.of(form)._replace(upper_size=upper, lower_size=lower)
        devices = EnrolledDevices(dict.fromkeys(sites_of(experiment), enrolment), form)
    weights = weights_of(experiment, devices)
    algorithm = experiment.federated_algorithm
    return Run(
        problem,
        algorithm,
        devices,
        x,
        y,
        rounds=experiment.rounds,
        weights=weights,
    )


def _by_device(
    experiment: Experiment, run: Run, epsilon: float, delta: float
) -> Answer:
    """Return the noise for an ε by device, with several numbers of participants."""
    wanted = experiment.participants or run.devices.device_count
    choices = _choices(experiment, run, epsilon, delta)
    chosen = next(choice for choice in choices if choice.participants == wanted)
    titles = ["participants", "noise", "length of noise / clip"]
    table = [
        [f"{choice.participants:,}", f"{choice.noise:.4g}", f"{choice.length:.3g}"]
        for choice in choices
    ]
    return Answer(
        {"noise": chosen.noise, "choices": [choice._asdict() for choice in choices]},
        f" with {count_noun(wanted, 'participant')}",
        f"{_bounds(experiment)}noise = {chosen.noise:.4g}\n",
        chosen.length,
        f"is {chosen.length:.3g} times as long as the longest update, so training is "
        "unlikely to improve. Let more devices participate, tune fewer variables,",
        f"{format_table([titles, *table], numbers=(0, 1, 2))}\n",
    )


def _choices(
    experiment: Experiment, run: Run, epsilon: float, delta: float
) -> list[Choice]:
    """Return the noise for several numbers of participants, the largest first."""
    count = run.devices.device_count
    sizes = {max(1, round(share * count)) for share in COHORTS}
    # A mean of few updates has more noise than signal.
    sizes = {size for size in sizes if size >= FEWEST}
    sizes |= {experiment.participants or count, count}
    algorithm: Any = experiment.inner_algorithm
    usual = len(algorithm.phases(run.problem))
    opening = len(algorithm.opening(run.problem)) or usual
    entries = _entries(algorithm, run)
    weights = level_weights(run.devices, run.weights).devices
    _, private = run.algorithm.init(run.problem, run.x, run.y)

    def choice_of(size: int) -> Choice:
        everyone = size == count
        participation = FullParticipation() if everyone else UniformSample(size)
        sampling = sampling_of(participation, experiment.engine, weights, private)

        def spend(noise: float) -> float:
            spending = spending_of_means(noise, opening, usual, sampling, delta)
            return spending.epsilon_after(experiment.rounds)

        noise = _printed_noise(spend, epsilon)
        return Choice(size, noise, noise * entries**0.5 / size)

    return [choice_of(size) for size in sorted(sizes, reverse=True)]


def _by_example(
    experiment: Experiment, run: Run, epsilon: float, delta: float
) -> Answer:
    """Return the noise for an ε by example."""
    state = canonical(run.algorithm.init(run.problem, run.x, run.y))
    data = one_device(run.devices.cohort(np.array([0])))
    uses = exchange_uses(run.algorithm, run.problem, RunState(*state), data)
    populations = populations_of(run.devices)
    clip = experiment.transforms.example_clip
    assert clip is not None, "the settings require it with example_noise"

    def spend(noise: float) -> float:
        example_noise = ExampleNoise(clip, noise, delta)
        spending = spending_of_examples(example_noise, *uses, populations)
        return spending.epsilon_after(experiment.rounds)

    noise = _printed_noise(spend, epsilon)
    sizes = {level.name.lower(): size for level, size in populations.items()}
    length = _example_length(run, uses[1], noise)
    return Answer(
        {"example_noise": noise, "fewest_examples": sizes, "length": length},
        f", with at least {sizes['upper']:,} upper and {sizes['lower']:,} lower "
        "examples on each device",
        f"example_clip = {clip:g}\nexample_noise = {noise:.4g}\n",
        length,
        f"of a round is {length:.3g} times as long as the longest mean of clipped "
        "gradients, so training is unlikely to improve. Use more examples or devices, "
        "tune fewer variables,",
    )


def _example_length(
    run: Run,
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
        for variable in (run.x, run.y)
    )
    batch = min((use.batch_size for uses in usual for use in uses), default=1)
    steps = max(phase.steps for phase in run.algorithm.phases(run.problem))
    means = run.devices.device_count * steps
    return float(noise * entries**0.5 / (batch * means**0.5))


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


def _entries(algorithm: Any, run: Run) -> int:
    """Return the number of entries of the largest update of a round."""
    server, _ = canonical(algorithm.init(run.problem, run.x, run.y))
    sizes = [0]
    for phase in algorithm.phases(run.problem):
        if phase.reference is not None:
            downlink = jax.eval_shape(phase.broadcast, server)
            update = jax.eval_shape(phase.reference, downlink)
            sizes.append(sum(leaf.size for leaf in jax.tree.leaves(update)))
    return max(sizes)
