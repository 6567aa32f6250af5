"""The Optuna study that proposes settings and stores their scores."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from fedbilevel.engines.fingerprint import differences
from fedbilevel.extras import needs
from fedbilevel.tuning.space import Setting, Space

NAME = "fedbilevel"
ABOUT = "about"
"""The attribute of a study that describes the search and its data."""
GENERATION = "generation"
SCORES = "scores"
"""Attributes of a trial: its generation, and its scores by rounds."""
SETTINGS = "settings"
"""The attribute of a trial with settings outside of the ranges."""
SIZES = "sizes"
"""The attribute of a study with the sizes of all generations that have started."""

LOWER = 100.0
"""The factor that lowers the ranges after a generation in which all diverged."""


class Trial(NamedTuple):
    """A setting that was tried.

    Attributes:
        number: number in the order of proposal; 0 is the initial setting.
        generation: number of its generation, from 0.
        settings: values by name.
        scores: scores by number of rounds, one score for each seed; infinite if the run
            diverged.

    Example:
        >>> trial = Trial(3, 0, {"upper_rate": 2.0}, {7: (0.5, 0.9, 0.6)})
        >>> trial.rounds, trial.score
        (7, 0.6)
    """

    number: int
    generation: int
    settings: Mapping[str, float]
    scores: Mapping[int, tuple[float, ...]]

    @property
    def rounds(self) -> int:
        """The rounds of its longest runs; 0 before its first score."""
        return max(self.scores, default=0)

    @property
    def score(self) -> float:
        """The median score of its longest runs; infinite if any seed diverged."""
        return overall(self.scores[self.rounds]) if self.scores else inf

    @property
    def sort_key(self) -> tuple[int, float]:
        """The sort key of trials, best first: rounds, then the score."""
        return -self.rounds if self.score < inf else 0, self.score


def overall(scores: Sequence[float]) -> float:
    """Return the score of a setting: the median of its seeds.

    A setting that diverges with one seed is at the edge of stability, so it counts as
    diverged.

    Example:
        >>> overall([0.5, 0.9, 0.6]), overall([0.5, 0.6, inf])
        (0.6, inf)
    """
    return median(scores) if max(scores) < inf else inf


class Study:
    """Proposals and scores, in memory or in a file.

    Every generation has a new sampler, seeded by its number, which uses the scores of
    earlier generations. A generation whose proposal was interrupted is proposed again.
    So the settings depend on the seed alone, even if the search is killed and resumed.

    Example:
        >>> from fedbilevel import FedBiO
        >>> space = Space(FedBiO(1.0), (Setting("upper_rate", 0.1, 10.0),))
        >>> with opened(None, space, seed=0) as study:
        ...     study.propose(0, 2)[0].settings
        {'upper_rate': 1.0}
    """

    def __init__(self, storage: Any, space: Space, seed: int) -> None:
        """Load the study from a storage of Optuna, or create it."""
        import optuna

        self._study = optuna.create_study(
            study_name=NAME, storage=storage, load_if_exists=True
        )
        self._storage, self._space, self._seed = storage, space, seed

    def require_same(self, about: Mapping[str, Any], file: Path) -> None:
        """Store the description of the search, or compare it with the stored one.

        Args:
            about: plain values by name.
            file: file of the study, for the message.

        Raises:
            ValueError: if a value differs.
        """
        before = self._study.user_attrs.get(ABOUT)
        if before is None:
            self._study.set_user_attr(ABOUT, about)
            return
        changes = differences(before, json.loads(json.dumps(about)))
        if changes:
            raise ValueError(
                f"{file} contains another search: {'; '.join(changes[:3])}. Choose "
                "another directory for this search, or restore these settings."
            )

    def trials(self) -> list[Trial]:
        """Return all trials that belong to a generation, in their order."""
        stored = self._stored_trials()
        return [_trial(number, item) for number, item in enumerate(stored)]

    def _stored_trials(self) -> list[Any]:
        return [
            item for item in self._study.get_trials(deepcopy=False) if _belongs(item)
        ]

    def sizes(self) -> tuple[int, ...]:
        """Return the size of every generation that has started, in their order."""
        return tuple(self._study.user_attrs.get(SIZES, ()))

    def propose(self, generation: int, size: int) -> list[Trial]:
        """Return the trials of a generation; propose them unless all are stored.

        Args:
            generation: number of the generation, from 0.
            size: number of its trials; for a generation that has started, as in
                `sizes`.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        # The size is stored first: it alone distinguishes a short last generation from
        # a generation whose proposal was interrupted.
        if generation == len(self.sizes()):
            self._study.set_user_attr(SIZES, [*self.sizes(), size])
        trials = [item for item in self.trials() if item.generation == generation]
        if len(trials) < size:
            stored = self._study.get_trials(deepcopy=False)
            for item in stored:
                number = item.user_attrs.get(GENERATION, generation)
                if item.state is TrialState.RUNNING and number == generation:
                    self._study.tell(item.number, state=TrialState.FAIL)
            for _ in range(sum(item.state is TrialState.WAITING for item in stored)):
                self._study.tell(self._study.ask(), state=TrialState.FAIL)
            sequence = np.random.SeedSequence([self._seed, generation])
            self._study.sampler = TPESampler(
                seed=int(sequence.generate_state(1)[0]), n_startup_trials=size
            )
            ranges = _distributions(self.settings(generation))
            outside = self._propose_first(size) if generation == 0 else 0
            for _ in range(size - outside):
                proposal = self._study.ask(fixed_distributions=ranges)
                proposal.set_user_attr(GENERATION, generation)
            trials = [item for item in self.trials() if item.generation == generation]
        return trials

    def _propose_first(self, size: int) -> int:
        """Enqueue the first proposals; return the number of trials created here.

        Optuna supports no values outside of their ranges, so an initial setting with
        such a value becomes a trial without parameters, which the sampler ignores.
        """
        start, *others = self._space.proposals[:size]
        inside = _all_inside(self._space.settings, start)
        if not inside:
            initial = self._study.ask()
            initial.set_user_attr(SETTINGS, start)
            initial.set_user_attr(GENERATION, 0)
        for values in [start, *others] if inside else others:
            self._study.enqueue_trial(values)
        return 0 if inside else 1

    def settings(self, generation: int) -> tuple[Setting, ...]:
        """Return the ranges of a generation, widened if the best value is at an edge.

        If all trials have diverged, the ranges are extended to smaller values.
        """
        ranges = self._space.settings
        for number in range(1, generation + 1):
            earlier = [trial for trial in self.trials() if trial.generation < number]
            best = min(earlier, key=lambda trial: trial.sort_key)
            if best.score < inf:
                ranges = tuple(
                    item.widened(best.settings[item.name]) for item in ranges
                )
            else:
                ranges = tuple(item._replace(low=item.low / LOWER) for item in ranges)
        return ranges

    def report(self, number: int, rounds: int, scores: Sequence[float]) -> None:
        """Store the scores of a trial after a number of rounds, one for each seed."""
        stored = self._stored_trials()[number]
        known = {**stored.user_attrs.get(SCORES, {}), str(rounds): list(scores)}
        # The storage is used, since only the proposing process has Optuna's trial.
        study = self._storage.get_study_id_from_name(NAME)
        key = self._storage.get_trial_id_from_study_id_trial_number(
            study, stored.number
        )
        self._storage.set_trial_intermediate_value(key, rounds, overall(scores))
        self._storage.set_trial_user_attr(key, SCORES, known)

    def conclude(self, numbers: Sequence[int], rounds: int) -> None:
        """End trials: complete those of full length, prune the others."""
        from optuna.trial import TrialState

        for number in numbers:
            stored, trial = self._stored_trials()[number], self.trials()[number]
            if stored.state is not TrialState.RUNNING:
                continue
            full = trial.rounds == rounds and trial.score < inf
            state = TrialState.COMPLETE if full else TrialState.PRUNED
            values = [trial.score] if full else None
            self._study.tell(stored.number, values, state=state)

    def importances(self) -> dict[str, float]:
        """Return the importance of each setting for the best tenth of trials, sum 1.

        Optuna's PED-ANOVA computes them from the order of all trials; trials with more
        rounds come first. Empty with fewer than 10 trials or 2 settings.
        """
        import optuna
        from optuna.importance import (
            PedAnovaImportanceEvaluator,
            get_param_importances,
        )

        every = self.trials()
        settings = self.settings(max((trial.generation for trial in every), default=0))
        ranges = _distributions(settings)
        trials = sorted(
            (trial for trial in every if _all_inside(settings, trial.settings)),
            key=lambda trial: trial.sort_key,
        )
        if len(trials) < 10 or len(ranges) < 2:
            return {}
        ordered = optuna.create_study()
        ordered.add_trials(
            optuna.create_trial(
                params=dict(trial.settings), distributions=ranges, value=float(rank)
            )
            for rank, trial in enumerate(trials)
        )
        evaluator = PedAnovaImportanceEvaluator()
        return dict(get_param_importances(ordered, evaluator=evaluator))


@contextmanager
def opened(file: Path | None, space: Space, seed: int) -> Iterator[Study]:
    """Yield the study in a file, or in memory; an existing file is resumed.

    Args:
        file: journal of Optuna, which its other tools can open; None for memory.
        space: settings to search.
        seed: seed of all proposals.

    Raises:
        ImportError: if Optuna is missing.
        ValueError: if another process uses the file, or the file is damaged.

    Example:
        >>> from fedbilevel import FedBiO
        >>> space = Space(FedBiO(1.0), (Setting("upper_rate", 0.1, 10.0),))
        >>> with opened(None, space, seed=0) as study:
        ...     study.trials()
        []
    """
    with needs("Searches of settings", "optuna", "'fedbilevel[tune]'"):
        import optuna
        from filelock import FileLock, Timeout
    logging.getLogger("optuna").setLevel(logging.WARNING)
    if file is None:
        yield Study(optuna.storages.InMemoryStorage(), space, seed)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{file}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"Another process is tuning in {file.parent}. Wait until it ends, or "
            "choose another directory."
        ) from None
    try:
        _truncate_partial_line(file)
        _check_lines(file)
        backend = optuna.storages.journal.JournalFileBackend(str(file), _NoLock())
        yield Study(optuna.storages.JournalStorage(backend), space, seed)
    finally:
        lock.release()


def _truncate_partial_line(file: Path) -> None:
    """Remove the partial last line of a killed process: Optuna would append to it."""
    if not file.exists():
        return
    content = file.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with file.open("r+b") as journal:
            journal.truncate(end)


def _check_lines(file: Path) -> None:
    """Raise ValueError with the number of a damaged line, which Optuna omits."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not (isinstance(entry, dict) and "op_code" in entry):
            remedy = (
                f"Remove this line and all lines below it to resume from the "
                f"{number - 1} lines above, or remove"
                if number > 1
                else "Remove"
            )
            raise ValueError(
                f"{file}, line {number}: the line is damaged, it is not an entry of an "
                f"Optuna journal. {remedy} the file to start a new search."
            )


class _NoLock:
    """A lock for Optuna without effect: `opened` locks the file for the whole search.

    Optuna's lock is a file that a killed process leaves behind.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _distributions(settings: Sequence[Setting]) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution

    return {
        item.name: FloatDistribution(item.low, item.high, log=True) for item in settings
    }


def _all_inside(settings: Sequence[Setting], values: Mapping[str, float]) -> bool:
    return all(item.holds(values[item.name]) for item in settings)


def _belongs(trial: Any) -> bool:
    from optuna.trial import TrialState

    return GENERATION in trial.user_attrs and trial.state is not TrialState.FAIL


def _trial(number: int, stored: Any) -> Trial:
    scores = stored.user_attrs.get(SCORES, {})
    return Trial(
        number,
        stored.user_attrs[GENERATION],
        dict(stored.user_attrs.get(SETTINGS, stored.params)),
        {int(rounds): tuple(values) for rounds, values in scores.items()},
    )
