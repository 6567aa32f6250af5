"""The function `tune`: successive halving with proposals of Optuna."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from fedbilevel.algorithms.optional import ChangesDraws
from fedbilevel.algorithms.protocol import FederatedAlgorithm
from fedbilevel.algorithms.step_sizes import value_of
from fedbilevel.algorithms.wrapper import find_layer
from fedbilevel.data.devices import SizedDevices
from fedbilevel.engines.checks import check_rounds
from fedbilevel.engines.fingerprint import describe
from fedbilevel.engines.run import Run, configuration_of, prepare
from fedbilevel.mathematics.arrays import on_host
from fedbilevel.mathematics.settings import Role
from fedbilevel.metrics.suggestion import batch_curvature
from fedbilevel.plurals import count_noun, there_are
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
from fedbilevel.tuning.space import Setting, Space, search_space
from fedbilevel.tuning.study import Study, Trial, opened, overall

TRIALS = 120
"""The default number of settings: 5 generations of 24."""
SEEDS = (0, 1, 2)
"""The default seeds of full runs."""
WIDTH = 2
"""Settings that one program runs to the end: with 3 seeds these are 6 runs, a divisor
of the numbers of shorter runs, so that no program needs padding."""


class TuningResult(NamedTuple):
    """The result of a search.

    Attributes:
        algorithm: algorithm with the best settings.
        best: trial of the best settings: the lowest median score of the full runs.
        start: trial of the initial settings.
        trials: all trials, in their order.
        importances: importance of each setting for the best tenth of trials, with sum
            1; empty with fewer than 10 trials or 2 settings.
        seeds: seeds of the runs, in the order of a trial's scores.
    """

    algorithm: FederatedAlgorithm
    best: Trial
    start: Trial
    trials: tuple[Trial, ...]
    importances: dict[str, float]
    seeds: tuple[int, ...]


class TuningProgress(NamedTuple):
    """The progress of a search.

    Attributes:
        generation: number of the current generation, from 0.
        generations: number of generations.
        rung: current rung.
        done: number of finished rounds, over all settings and seeds.
        total: largest number of rounds of the search.
        trials: all trials so far.

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
        """The best trial so far: the lowest score of the longest runs."""
        finite = [trial for trial in self.trials if trial.score < inf]
        return min(finite, key=lambda trial: trial.sort_key, default=None)


def tune(
    run: Run,
    *,
    settings: Sequence[Setting] | None = None,
    trials: int = TRIALS,
    seeds: Sequence[int] = SEEDS,
    score: Score | None = None,
    file: Path | str | None = None,
    report: Callable[[TuningProgress], object] = lambda progress: None,
) -> TuningResult:
    """Search the settings of a run's algorithm, and return the best.

    Settings differ in numbers only, so all draw as many samples and send as many bytes
    in a round. In each generation, all settings run for a quarter of the rounds, the
    better half for half of the rounds, both with the first seed, and the best quarter
    to the end with every seed; the median score over seeds decides. No run has fewer
    than 10 rounds: with 11 to 20 rounds, all settings run for 10 and the better half to
    the end; with 10 or fewer, all run to the end. So a setting that gets worse later
    cannot win. A setting that diverges with any seed has an infinite score: a loss is
    not finite at the end of a run, or is 1000 times as large as before training. An
    upload that is not finite counts as divergence too, unless there are `limits`.

    The first generation has the initial setting, the rates of theory (1/L for y and z)
    and random settings. Optuna's TPE proposes later generations from the scores so far,
    in ranges that are widened if the best value is at an edge. The initial setting runs
    to the end with exactly its values, inside or outside of the ranges, unless it
    diverges before. It is returned if no other is better, so the result is at least as
    good on these seeds.

    The same arguments give the same settings and scores on the same machine; on
    another, rounding may differ.

    Args:
        run: full run with the initial settings. Its seed is that of the proposals; its
            engine is used if memory is too small for several runs in one program.
        settings: settings to search and their ranges; by default the most important
            (`search_space`).
        trials: number of settings. With three seeds, 120 settings cost as many rounds
            as about 150 full runs of 40 rounds or more, 240 of 20, or 360 of 10.
        seeds: seeds of the full runs of a setting.
        score: function of the last x and y of a run that is minimised; by default the
            upper loss on all upper examples of the devices. The search may overfit
            these examples: pass a score on examples of no device, if you have any.
        file: journal of Optuna that stores the search; in memory by default. The same
            call resumes a killed search, and a call with more trials continues it. A
            call with fewer trials finishes the current generation and returns all
            trials. A file of another search raises an error: another problem,
            algorithm, range, start or score, or other data. A score is compared by its
            code and all that it refers to.
        report: function called with the progress after every batch of runs; an
            exception in it ends the search.

    Raises:
        ArithmeticError: if every setting diverged.
        ImportError: if Optuna is missing.
        ValueError: if the file contains another search or is damaged, a count is below
            1, or there is no setting to search.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from fedbilevel import BilevelProblem, FedBiO, InMemoryDevices
        >>> from fedbilevel import LocalExamples, Run, tune
        >>> problem = BilevelProblem(
        ...     upper_loss=lambda x, y, batch: jnp.mean((y - batch) ** 2),
        ...     lower_loss=lambda x, y, batch: jnp.mean((y - x * batch) ** 2),
        ... )
        >>> ones = np.ones(1, np.float32)
        >>> devices = InMemoryDevices.sharing(LocalExamples(ones, ones), 4)
        >>> slow = FedBiO(1.0, upper_rate=0.01, lower_rate=0.1, adjoint_rate=0.1)
        >>> run = Run(problem, slow, devices, 3.0, 3.0, rounds=30)
        >>> result = tune(run, trials=27)
        >>> result.start.score > 1.0, result.best.score < 0.1  # Φ(x) = (x − 1)²
        (True, True)
    """
    _check(run.rounds, trials, seeds)
    x, y = jax.tree.map(on_host, (run.x, run.y))
    run = replace(run, x=x, y=y)
    steps = tuning(
        run,
        space_for(run) if settings is None else Space(run.algorithm, tuple(settings)),
        trials,
        tuple(seeds),
        run.seed,
        score,
        None if file is None else Path(file),
        about={"score": describe(score)},
    )
    for step in steps:
        if isinstance(step, TuningResult):
            return step
        report(step)
    raise AssertionError("a search ends with its result")


def space_for(run: Run) -> Space:
    """Return the search space of an algorithm, scaled by a measured curvature."""
    size = value_of(run.algorithm, Role.BATCH_SIZE, 16)
    if find_layer(run.algorithm, ChangesDraws) and isinstance(
        run.devices, SizedDevices
    ):
        # A batch of as many examples as a device has is near all of them.
        size = max(1, int(np.max(run.devices.lower_sizes)))
    curvature = batch_curvature(
        run.problem,
        run.devices,
        run.x,
        run.y,
        batch_size=size,
        rounds=run.rounds,
        weights=run.weights,
        engine=run.engine,
    )
    steps = run.rounds * value_of(run.algorithm, Role.LOCAL_STEPS, 1)
    return search_space(run.algorithm, curvature=curvature, steps=steps)


def tuning(
    run: Run,
    space: Space,
    trials: int,
    seeds: tuple[int, ...],
    seed: int,
    score: Score | None = None,
    file: Path | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Generator[TuningProgress | TuningResult]:
    """Search step by step: yield the progress after every batch, then the result.

    If the caller stops iterating, the search can be resumed.

    Args:
        run: full run of any of the settings.
        space: settings to search.
        trials: number of settings.
        seeds: seeds of the full runs of each setting.
        seed: seed of the proposals.
        score: function that is minimised; the upper loss by default.
        file: journal of Optuna; in memory by default.
        about: plain values that must be equal when the search is resumed.
    """
    run = replace(run, algorithm=space.algorithm, seed=0)
    width = runs_side_by_side(run, WIDTH * len(seeds))
    with opened(file, space, seed) as study:
        if file is not None:
            description = {
                "seeds": list(seeds),
                "proposal_seed": seed,
                **about,
                **_about(run, space),
            }
            study.require_same(description, file)
        scorer = Scorer(run, score or upper_loss_of(run), width)
        sizes = generations_of(trials, generation_size(trials), study.sizes())
        work = [work_of(run.rounds, size, len(seeds)) for size in sizes]
        for generation, count in enumerate(sizes):
            before = sum(work[:generation])
            for rung, done in _generation(
                study, scorer, space, run.rounds, seeds, generation, count
            ):
                known = tuple(study.trials())
                yield TuningProgress(
                    generation, len(sizes), rung, before + done, sum(work), known
                )
        yield _result(study, space, run.rounds, seeds)


def _generation(
    study: Study,
    scorer: Scorer,
    space: Space,
    rounds: int,
    seeds: tuple[int, ...],
    generation: int,
    count: int,
) -> Iterator[tuple[Rung, int]]:
    """Run the rungs of a generation; yield the number of its finished rounds."""
    alive = [trial.number for trial in study.propose(generation, count)]
    always = 0 if generation == 0 else None
    done = before = 0
    for rung in rungs_of(rounds, count, len(seeds)):
        if before:
            # Scores of the last rung, since a resumed search may have later scores.
            trials = study.trials()
            ranking = {
                number: overall(trials[number].scores[before]) for number in alive
            }
            survived = survivors(ranking, rung.settings, always)
            losers = [number for number in alive if number not in survived]
            study.conclude(losers, rounds)
            alive = survived
        trials = study.trials()
        missing = [
            number for number in alive if rung.rounds not in trials[number].scores
        ]
        size = max(1, scorer.width // rung.seeds)
        for first in range(0, len(missing), size):
            batch = missing[first : first + size]
            runs = [
                (space.at(trials[number].settings), seed)
                for number in batch
                for seed in seeds[: rung.seeds]
            ]
            scores = scorer(runs, rung.rounds)
            for index, number in enumerate(batch):
                part = scores[index * rung.seeds : (index + 1) * rung.seeds]
                study.report(number, rung.rounds, part)
            left = rung.rounds * rung.seeds * (len(missing) - first - len(batch))
            yield rung, done + max(0, rung.work - left)
        done += rung.work
        before = rung.rounds
    study.conclude(alive, rounds)


def _result(
    study: Study, space: Space, rounds: int, seeds: tuple[int, ...]
) -> TuningResult:
    trials = tuple(study.trials())
    full = [trial for trial in trials if trial.rounds == rounds and trial.score < inf]
    if not full:
        smallest = ", ".join(
            f"{name} {min(trial.settings[name] for trial in trials):.2g}"
            for name in trials[0].settings
        )
        raise ArithmeticError(
            f"All {count_noun(len(trials), 'setting')} diverged. The smallest values "
            f"were {smallest}. Use DebugSimulation to find the first value that is not "
            "finite, or pass settings with smaller ranges."
        )
    # min returns the first of equal scores, so the initial setting wins a tie.
    best = min(full, key=lambda trial: trial.score)
    algorithm = space.at(best.settings) if best.number else space.algorithm
    return TuningResult(algorithm, best, trials[0], trials, study.importances(), seeds)


def _about(run: Run, space: Space) -> dict[str, Any]:
    return {
        **configuration_of(run, prepare(run)),
        "rounds": run.rounds,
        "settings": {
            setting.name: {
                part: _round(value)
                for part, value in setting._asdict().items()
                if part != "name"
            }
            for setting in space.settings
        },
    }


def _round(value: float | None) -> float | None:
    # Ranges depend on a measured curvature, whose last digits differ between machines.
    return None if value is None else float(f"{value:.4g}")


def _check(rounds: int, trials: int, seeds: Sequence[int]) -> None:
    check_rounds(rounds)
    if trials < 1 or not seeds:
        raise ValueError(
            f"trials is {trials}, and {there_are(len(seeds), 'seed')}. Pass at least 1 "
            "of each."
        )
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds is {tuple(seeds)}. Remove the repeated seed.")
