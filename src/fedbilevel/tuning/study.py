"""The study of Optuna that proposes settings and keeps all that is known of them."""

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
from fedbilevel.tuning.space import Setting, Space

NAME = "fedbilevel"
ABOUT = "about"
"""The attribute of a study that says what is searched, on which data."""
GENERATION = "generation"
SCORES = "scores"
"""Attributes of a trial: the generation it belongs to, and its scores by rounds."""
SETTINGS = "settings"
"""The attribute of a trial whose settings are outside of the ranges."""
SIZES = "sizes"
"""The attribute of a study that has the size of every generation that has begun."""

LOWER = 100.0
"""How much smaller values may be after a generation that diverged as a whole."""


class Trial(NamedTuple):
    """A setting that was tried.

    Attributes:
        number: in the order of proposal; 0 is the setting that the search began with.
        generation: the number of the generation that it was proposed in.
        settings: its values, by name.
        scores: after how many rounds it had which score, one for each seed; infinite
            where it diverged.

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
        """The rounds that it was run for, at most; 0 before its first score."""
        return max(self.scores, default=0)

    @property
    def score(self) -> float:
        """The median over seeds after these rounds; infinite if any seed diverged."""
        return overall(self.scores[self.rounds]) if self.scores else inf

    @property
    def place(self) -> tuple[int, float]:
        """What trials are ordered by, best first: rounds, then the score."""
        return -self.rounds if self.score < inf else 0, self.score


def overall(scores: Sequence[float]) -> float:
    """Return the score of a setting from those of its seeds: their median.

    A setting that diverges with one seed is at the edge of what is stable, however well
    the others end: it counts as diverged.

    Example:
        >>> overall([0.5, 0.9, 0.6]), overall([0.5, 0.6, inf])
        (0.6, inf)
    """
    return median(scores) if max(scores) < inf else inf


class Study:
    """Proposals and results, in memory or in a file.

    Every generation is proposed by a sampler of its own, seeded by its number, from
    what the generations before it have found. A generation that was interrupted while
    it was proposed is proposed again. So the settings depend on the seed alone, however
    often the search was killed.

    Example:
        >>> from fedbilevel import FedBiO
        >>> space = Space(FedBiO(1.0), (Setting("upper_rate", 0.1, 10.0),))
        >>> with opened(None, space, seed=0) as study:
        ...     [one.settings for one in study.propose(0, 2)][0]
        {'upper_rate': 1.0}
    """

    def __init__(self, storage: Any, space: Space, seed: int) -> None:
        """Resume the study in a storage of Optuna, or begin it."""
        import optuna

        self._study = optuna.create_study(
            study_name=NAME, storage=storage, load_if_exists=True
        )
        self._storage, self._space, self._seed = storage, space, seed

    def require_same(self, about: Mapping[str, Any], place: Path) -> None:
        """Write down what the search is about, or refuse if it is about another thing.

        Args:
            about: plain values by name.
            place: of the study, for the message.

        Raises:
            ValueError: if something differs.
        """
        before = self._study.user_attrs.get(ABOUT)
        if before is None:
            self._study.set_user_attr(ABOUT, about)
            return
        different = differences(before, json.loads(json.dumps(about)))
        if different:
            raise ValueError(
                f"{place} holds another search: {'; '.join(different[:3])}. Give this "
                "one another directory, or go back to what was searched."
            )

    def trials(self) -> list[Trial]:
        """Return all trials that belong to a generation, in their order."""
        counted = [
            one for one in self._study.get_trials(deepcopy=False) if _belongs(one)
        ]
        return [_trial(number, one) for number, one in enumerate(counted)]

    def sizes(self) -> tuple[int, ...]:
        """Return the size of every generation that has begun, in their order."""
        return tuple(self._study.user_attrs.get(SIZES, ()))

    def propose(self, generation: int, size: int) -> list[Trial]:
        """Return the trials of a generation; those that are there already, if all are.

        Args:
            generation: its number, from 0.
            size: how many it has; of a generation that has begun, as in `sizes`.
        """
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        # Written first: a generation that is short because the search ended there
        # differs from one whose proposal was cut off by this alone.
        if generation == len(self.sizes()):
            self._study.set_user_attr(SIZES, [*self.sizes(), size])
        mine = [one for one in self.trials() if one.generation == generation]
        if len(mine) < size:
            known = self._study.get_trials(deepcopy=False)
            for one in known:
                number = one.user_attrs.get(GENERATION, generation)
                if one.state is TrialState.RUNNING and number == generation:
                    self._study.tell(one.number, state=TrialState.FAIL)
            for _ in range(sum(one.state is TrialState.WAITING for one in known)):
                self._study.tell(self._study.ask(), state=TrialState.FAIL)
            sequence = np.random.SeedSequence([self._seed, generation])
            self._study.sampler = TPESampler(
                seed=int(sequence.generate_state(1)[0]), n_startup_trials=size
            )
            ranges = _distributions(self.settings(generation))
            outside = self._propose_first(size) if generation == 0 else 0
            for _ in range(size - outside):
                proposed = self._study.ask(fixed_distributions=ranges)
                proposed.set_user_attr(GENERATION, generation)
            mine = [one for one in self.trials() if one.generation == generation]
        return mine

    def _propose_first(self, size: int) -> int:
        """Let the first proposals be asked next; return how many were asked here.

        Optuna knows no values outside of their ranges, so a given setting that has one
        is a trial without parameters, from which nothing is learnt.
        """
        start, *others = self._space.proposals[:size]
        inside = _all_inside(self._space.settings, start)
        if not inside:
            given = self._study.ask()
            given.set_user_attr(SETTINGS, start)
            given.set_user_attr(GENERATION, 0)
        for values in [start, *others] if inside else others:
            self._study.enqueue_trial(values)
        return 0 if inside else 1

    def settings(self, generation: int) -> tuple[Setting, ...]:
        """Return the ranges of a generation, widened where the best is at an edge.

        Where all have diverged so far, they are widened towards smaller values.
        """
        found = self._space.settings
        for number in range(1, generation + 1):
            known = [one for one in self.trials() if one.generation < number]
            best = min(known, key=lambda one: one.place)
            if best.score < inf:
                found = tuple(one.widened(best.settings[one.name]) for one in found)
            else:
                found = tuple(one._replace(low=one.low / LOWER) for one in found)
        return found

    def report(self, number: int, rounds: int, scores: Sequence[float]) -> None:
        """Keep the scores of a trial after so many rounds, one for each seed."""
        stored = self._stored(number)
        known = {**stored.user_attrs.get(SCORES, {}), str(rounds): list(scores)}
        # By the storage: a trial of Optuna is at hand only where it was proposed.
        study = self._storage.get_study_id_from_name(NAME)
        key = self._storage.get_trial_id_from_study_id_trial_number(
            study, stored.number
        )
        self._storage.set_trial_intermediate_value(key, rounds, overall(scores))
        self._storage.set_trial_user_attr(key, SCORES, known)

    def conclude(self, numbers: Sequence[int], rounds: int) -> None:
        """End the trials that go no further: those of full length with their score."""
        from optuna.trial import TrialState

        for number in numbers:
            stored, trial = self._stored(number), self.trials()[number]
            if stored.state is not TrialState.RUNNING:
                continue
            whole = trial.rounds == rounds and trial.score < inf
            state = TrialState.COMPLETE if whole else TrialState.PRUNED
            values = [trial.score] if whole else None
            self._study.tell(stored.number, values, state=state)

    def importances(self) -> dict[str, float]:
        """Return how much each setting decides who is among the best tenth, sum 1.

        By Optuna's PED-ANOVA, from the order of all trials: those that were run for
        more rounds come first. Without settings to compare there are none.
        """
        import optuna
        from optuna.importance import (
            PedAnovaImportanceEvaluator,
            get_param_importances,
        )

        every = self.trials()
        settings = self.settings(max((one.generation for one in every), default=0))
        ranges = _distributions(settings)
        trials = sorted(
            (one for one in every if _all_inside(settings, one.settings)),
            key=lambda one: one.place,
        )
        if len(trials) < 10 or len(ranges) < 2:
            return {}
        ordered = optuna.create_study()
        ordered.add_trials(
            optuna.create_trial(
                params=dict(one.settings), distributions=ranges, value=float(place)
            )
            for place, one in enumerate(trials)
        )
        evaluator = PedAnovaImportanceEvaluator()
        return dict(get_param_importances(ordered, evaluator=evaluator))

    def _stored(self, number: int) -> Any:
        counted = (
            one for one in self._study.get_trials(deepcopy=False) if _belongs(one)
        )
        return list(counted)[number]


@contextmanager
def opened(file: Path | None, space: Space, seed: int) -> Iterator[Study]:
    """Yield the study in a file, new or as it was left; without a file, in memory.

    Args:
        file: a journal of Optuna, which its other tools can open too.
        space: the settings to search.
        seed: of all proposals.

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
    try:
        import optuna
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise ImportError(
            f"tuning needs {error.name}; run: pip install 'fedbilevel[tune]'"
        ) from error
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
            f"another process is tuning in {file.parent}; wait for it, or choose "
            "another directory."
        ) from None
    try:
        _cut_torn_line(file)
        _check_lines(file)
        backend = optuna.storages.journal.JournalFileBackend(str(file), _HeldLock())
        yield Study(optuna.storages.JournalStorage(backend), space, seed)
    finally:
        lock.release()


def _cut_torn_line(file: Path) -> None:
    """Remove what a killed process wrote of a line: Optuna would go on behind it."""
    if not file.exists():
        return
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with file.open("r+b") as journal:
            journal.truncate(whole)


def _check_lines(file: Path) -> None:
    """Refuse a journal with a damaged line: Optuna would not say which one it is."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not (isinstance(entry, dict) and "op_code" in entry):
            cure = (
                f"Remove this line and all below it to resume from the {number - 1} "
                "lines before, or remove"
                if number > 1
                else "Remove"
            )
            raise ValueError(
                f"{file}, line {number}: not an entry of a journal of Optuna; the file "
                f"is damaged. {cure} the file to search anew."
            )


class _HeldLock:
    """A lock for Optuna that is held already, by the whole search.

    Its own is a file that a killed process leaves behind.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _distributions(settings: Sequence[Setting]) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution

    return {
        one.name: FloatDistribution(one.low, one.high, log=True) for one in settings
    }


def _all_inside(settings: Sequence[Setting], values: Mapping[str, float]) -> bool:
    return all(one.holds(values[one.name]) for one in settings)


def _belongs(trial: Any) -> bool:
    from optuna.trial import TrialState

    return GENERATION in trial.user_attrs and trial.state is not TrialState.FAIL


def _trial(number: int, stored: Any) -> Trial:
    scores = stored.user_attrs.get(SCORES, {})
    return Trial(
        number,
        stored.user_attrs[GENERATION],
        dict(stored.user_attrs.get(SETTINGS, stored.params)),
        {int(rounds): tuple(one) for rounds, one in scores.items()},
    )
