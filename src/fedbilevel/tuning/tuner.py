"""`tune`: settings searched by successive halving, proposed by Optuna."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from numpy.typing import ArrayLike

from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.data.devices import Devices
from fedbilevel.engines.checks import check_rounds
from fedbilevel.engines.fingerprint import describe
from fedbilevel.engines.limits import NO_LIMITS, Limits
from fedbilevel.engines.participation import FullParticipation, Participation
from fedbilevel.engines.preparation import RunSpec, configuration_of, prepare
from fedbilevel.engines.protocol import Engine
from fedbilevel.engines.simulation import Simulation
from fedbilevel.mathematics.problem import BilevelProblem, Lower, Upper
from fedbilevel.metrics.suggestion import batch_curvature
from fedbilevel.tuning.halving import (
    Rung,
    generation_size,
    generations_of,
    rungs_of,
    survivors,
    work_of,
)
from fedbilevel.tuning.scoring import (
    Score,
    Scorer,
    runs_side_by_side,
    upper_loss_of,
)
from fedbilevel.tuning.space import Space, search_space
from fedbilevel.tuning.study import Study, Trial, opened, overall

TRIALS = 120
"""Settings that are tried, unless another number is asked for: 5 generations of 24."""
SEEDS = (0, 1, 2)
"""Seeds of the runs of a setting that is run to the end."""
WIDTH = 2
"""Settings that are run to the end in one program: with 3 seeds, 6 runs side by side,
which also divide the runs of shorter rungs, so that no place stays empty."""


class TuningResult(NamedTuple):
    """What a search has found.

    Attributes:
        algorithm: the best settings.
        best: their trial: the lowest median of those that were run to the end.
        start: the trial of the given settings.
        trials: all that were tried, in their order.
        importances: how much each setting decides who is among the best tenth; the sum
            is 1. Empty where there are fewer than 10 trials or 2 settings.
        seeds: of the runs, in the order of a trial's scores.

    Example:
        >>> TuningResult._fields[0]
        'algorithm'
    """

    algorithm: FederatedAlgorithm
    best: Trial
    start: Trial
    trials: tuple[Trial, ...]
    importances: dict[str, float]
    seeds: tuple[int, ...]


class TuningProgress(NamedTuple):
    """How far a search is.

    Attributes:
        generation: the number of the generation, from 0.
        generations: how many there will be.
        rung: what is being run.
        done: rounds that were run so far, of all settings and seeds together.
        total: rounds that there will be, at most.
        trials: all that were proposed.

    Example:
        >>> TuningProgress(0, 4, Rung(15, 24, 1), 90, 7200, ()).best is None
        True
    """

    generation: int
    generations: int
    rung: Rung
    done: int
    total: int
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial | None:
        """The best trial so far: of those that were run longest, the lowest score."""
        known = [one for one in self.trials if one.score < inf]
        return min(known, key=lambda one: one.place, default=None)


def tune(
    problem: BilevelProblem,
    algorithm: FederatedAlgorithm | Space,
    devices: Devices,
    x: Upper,
    y: Lower,
    *,
    rounds: int,
    trials: int = TRIALS,
    seeds: Sequence[int] = SEEDS,
    seed: int = 0,
    score: Score | None = None,
    file: Path | str | None = None,
    participation: Participation = FullParticipation(),
    weights: ArrayLike | None = None,
    limits: Limits = NO_LIMITS,
    engine: Engine = Simulation(),
    report: Callable[[TuningProgress], object] = lambda progress: None,
) -> TuningResult:
    """Search the settings of an algorithm, and return the best.

    Settings differ in numbers only, so all draw as many samples and send as many bytes
    in a round. Of each generation, all settings are run for a quarter of the rounds,
    the better half of them for half, both with the first seed, and the best quarter to
    the end with every seed; there the median over seeds decides. No run has fewer than
    10 rounds: with 11 to 20 rounds, all settings are run for 10 and the better half to
    the end; with 10 or fewer, all are run to the end. A setting that gets worse later
    therefore cannot win. One that diverges with any seed is infinitely bad: a loss is
    not finite at the end of a run, or is 1000 times as large as before training,
    whatever the score is. An upload that is not finite counts as divergence too, unless
    there are `limits`.

    The first generation holds the given setting, the rates of theory (1/L for y and z)
    and random ones. Later ones are proposed by Optuna's TPE from what was found before,
    in ranges that are widened where the best lies at an edge. The given setting runs to
    the end with exactly its values, be they in the ranges or not, unless it diverges
    before. It is returned if no other is better, so the result is at least as good on
    these seeds.

    The same arguments give the same settings and scores on the same machine; on
    another, rounding may differ.

    Args:
        problem: the two losses.
        algorithm: whose settings that matter are searched (`search_space`); or a
            `Space` with settings and ranges of your own.
        devices: the data.
        x: where the upper variable starts.
        y: where the lower variable starts.
        rounds: of a full run.
        trials: how many settings are tried. With three seeds, 120 cost as many rounds
            as about 150 full runs of 40 rounds or more, 240 of 20, or 360 of 10.
        seeds: of the runs of a setting that is run to the end.
        seed: of the proposals.
        score: what is minimised at the end of a run; by default the upper loss on all
            upper examples of the devices. A search that chooses by them may overfit
            them: give a score on examples that no device holds, if you have such.
        file: a journal of Optuna that keeps everything, so that the same call resumes a
            search that was killed, and one with more trials continues it; in memory by
            default. What the file has is never thrown away: a call with fewer trials
            finishes the generation in progress and returns all. A file of another
            search is refused: another problem, algorithm, range, start or score, or
            other data. A score is compared by its code and what it refers to.
        participation: the choice of devices of each round.
        weights: of the devices, as for `run`.
        limits: that uploads are held to.
        engine: where runs are made one after another, if memory is short for several
            side by side.
        report: called after every batch of runs; what it raises ends the search.

    Raises:
        ArithmeticError: if every setting diverged.
        ImportError: if Optuna is missing.
        ValueError: if the file holds another search or is damaged, a count is below 1,
            or nothing can be searched.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples, tune
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> slow = FedBiO(1.0, upper_rate=0.01, lower_rate=0.1, adjoint_rate=0.1)
        >>> found = tune(problem, slow, devices, 3.0, 3.0, rounds=30, trials=27)
        >>> found.start.score > 1.0, found.best.score < 0.1  # Φ(x) = (x − 1)²
        (True, True)
    """
    _check(rounds, trials, seeds)
    given = algorithm.algorithm if isinstance(algorithm, Space) else algorithm
    spec = RunSpec(
        problem,
        given,
        devices,
        x,
        y,
        rounds,
        participation=participation,
        weights=weights,
        engine=engine,
        limits=limits,
    )
    steps = tuning(
        spec,
        algorithm if isinstance(algorithm, Space) else space_for(spec),
        trials,
        tuple(seeds),
        seed,
        score,
        None if file is None else Path(file),
        about={"score": describe(score)},
    )
    for step in steps:
        if isinstance(step, TuningResult):
            return step
        report(step)
    raise AssertionError("a search ends with its result")


def space_for(spec: RunSpec) -> Space:
    """Return the space of an algorithm, with rates in units of a measured curvature.

    Example:
        >>> space_for.__name__
        'space_for'
    """
    inner: Any = getattr(spec.algorithm, "algorithm", spec.algorithm)
    curvature = batch_curvature(
        spec.problem,
        spec.devices,
        spec.x,
        spec.y,
        batch_size=getattr(inner, "batch_size", 16),
        rounds=spec.rounds,
        weights=spec.weights,
        engine=spec.engine,
    )
    steps = spec.rounds * getattr(inner, "local_steps", 1)
    return search_space(spec.algorithm, curvature=curvature, steps=steps)


def tuning(
    spec: RunSpec,
    space: Space,
    trials: int,
    seeds: tuple[int, ...],
    seed: int,
    score: Score | None = None,
    file: Path | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Generator[TuningProgress | TuningResult]:
    """Search step by step: yield progress after every batch, at last the result.

    Whoever stops iterating leaves a search that can be resumed.

    Args:
        spec: what is run.
        space: the settings to search, around those of what is run.
        trials: how many settings are tried.
        seeds: of the runs of each setting.
        seed: of the proposals.
        score: what is minimised; the upper loss by default.
        file: a journal of Optuna; in memory by default.
        about: plain values that must be the same whenever the search goes on.

    Example:
        >>> tuning.__name__
        'tuning'
    """
    spec = spec._replace(algorithm=space.algorithm, seed=0)
    width = runs_side_by_side(spec, WIDTH * len(seeds))
    with opened(file, space, seed) as study:
        if file is not None:
            asked = {
                "seeds": list(seeds),
                "proposal_seed": seed,
                **about,
                **_about(spec, space),
            }
            study.require_same(asked, file)
        judge = score or upper_loss_of(spec)
        scorer = Scorer(spec, judge, width)
        sizes = generations_of(trials, generation_size(trials), study.sizes())
        work = [work_of(spec.rounds, one, len(seeds)) for one in sizes]
        for generation, count in enumerate(sizes):
            before = sum(work[:generation])
            for rung, done in _generation(
                study, scorer, space, spec.rounds, seeds, generation, count
            ):
                known = tuple(study.trials())
                yield TuningProgress(
                    generation, len(sizes), rung, before + done, sum(work), known
                )
        yield _result(study, space, spec.rounds, seeds)


def _generation(
    study: Study,
    scorer: Scorer,
    space: Space,
    rounds: int,
    seeds: tuple[int, ...],
    generation: int,
    count: int,
) -> Iterator[tuple[Rung, int]]:
    """Run a generation up its rungs; yield how many of its rounds are done."""
    alive = [one.number for one in study.propose(generation, count)]
    always = 0 if generation == 0 else None
    done = before = 0
    for rung in rungs_of(rounds, count, len(seeds)):
        if before:
            # Not their latest scores: a search that is resumed may know later ones.
            known = study.trials()
            scores = {one: overall(known[one].scores[before]) for one in alive}
            on = survivors(scores, rung.settings, always)
            study.conclude([number for number in alive if number not in on], rounds)
            alive = on
        known = study.trials()
        missing = [one for one in alive if rung.rounds not in known[one].scores]
        size = max(1, scorer.width // rung.seeds)
        for begun in range(0, len(missing), size):
            batch = missing[begun : begun + size]
            runs = [
                (space.at(known[number].settings), seed)
                for number in batch
                for seed in seeds[: rung.seeds]
            ]
            found = scorer(runs, rung.rounds)
            for place, number in enumerate(batch):
                own = found[place * rung.seeds : (place + 1) * rung.seeds]
                study.report(number, rung.rounds, own)
            left = rung.rounds * rung.seeds * (len(missing) - begun - len(batch))
            yield rung, done + max(0, rung.work - left)
        done += rung.work
        before = rung.rounds
    study.conclude(alive, rounds)


def _result(
    study: Study, space: Space, rounds: int, seeds: tuple[int, ...]
) -> TuningResult:
    trials = tuple(study.trials())
    whole = [one for one in trials if one.rounds == rounds and one.score < inf]
    if not whole:
        smallest = ", ".join(
            f"{name} {min(one.settings[name] for one in trials):.2g}"
            for name in trials[0].settings
        )
        raise ArithmeticError(
            f"all {len(trials)} settings diverged, though the smallest values were "
            f"{smallest}. Look for the first number that is not finite with "
            "DebugSimulation, or search smaller values in a Space of your own."
        )
    # The first of those that are equally good: nothing beats the given setting then.
    best = min(whole, key=lambda one: one.score)
    algorithm = space.at(best.settings) if best.number else space.algorithm
    return TuningResult(algorithm, best, trials[0], trials, study.importances(), seeds)


def _about(spec: RunSpec, space: Space) -> dict[str, Any]:
    found = configuration_of(prepare(spec))
    return {
        **found,
        "rounds": spec.rounds,
        "settings": {
            one.name: {
                part: _rounded(value)
                for part, value in one._asdict().items()
                if part != "name"
            }
            for one in space.settings
        },
    }


def _rounded(value: float | None) -> float | None:
    # Ranges come from a measured curvature, whose last digits differ between machines.
    return None if value is None else float(f"{value:.4g}")


def _check(rounds: int, trials: int, seeds: Sequence[int]) -> None:
    check_rounds(rounds)
    if trials < 1 or not seeds:
        raise ValueError(
            f"a search needs at least 1 trial and 1 seed, but trials={trials} and "
            f"there are {len(seeds)} seeds."
        )
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={tuple(seeds)} names a seed twice; leave one out.")
