"""The main loop of a run: calls of the engine, inspection, checkpoints."""

import logging
import sys
from collections.abc import Generator

import jax

from fedbilevel.engines.calls import Calls
from fedbilevel.engines.checkpoints.options import Progress
from fedbilevel.engines.checkpoints.store import Store
from fedbilevel.engines.exclusions import ExclusionCounts
from fedbilevel.engines.inspection import Inspection, NoUploadsError
from fedbilevel.engines.preparation import Prepared
from fedbilevel.engines.protocol import PrivateEngine, RunState
from fedbilevel.engines.round import Round
from fedbilevel.plurals import count_noun

logger = logging.getLogger("fedbilevel")
MOST_PENDING = 2
"""The number of rounds that may run before the uploads of the first are inspected."""


def iterate(
    prepared: Prepared, progress: Progress, store: Store | None, every: int
) -> Generator[Round, None, None]:
    """Run the remaining rounds, and yield the last round of each call of the engine.

    A call ends at the first round, at every `every`-th round, at a checkpoint and at
    the last round. A `BlockEngine` runs the rounds between them in few calls of about
    half a second at most. The end of a call has no influence on numbers: the same
    program computes all rounds except an opening round.
    """
    # A run that a script leaves unfinished is closed while Python exits. The names of
    # modules are then None; local ones are not.
    is_finalizing = sys.is_finalizing
    repeated = repeated_means(prepared, progress.rounds)
    rounds = affordable_rounds(prepared, repeated)
    if prepared.spending is not None and rounds < prepared.rounds:
        logger.warning(
            "The budget epsilon=%g allows %d of %d rounds; the run ends after them.",
            prepared.spending.budget,
            rounds,
            prepared.rounds,
        )
    job, state = prepared.engine.begin(prepared.job, progress.state)
    inspection = Inspection(
        counts_of(progress, job.devices.device_count),
        job.limits,
        prepared.spending,
        progress.state.server,
        prepared.job.devices,
    )
    stops = every, rounds, rounds if store is None else store.options.every
    calls = Calls(prepared, job, stops, is_block=every > 1)
    last = Round(
        progress.rounds - 1,
        state,
        (),
        progress.costs,
        progress.history,
        None,
        prepared.spending,
        repeated,
    )
    is_saved = True
    try:
        while not last.is_last:
            try:
                call = calls.run(last.number + 1, last.state)
            except Exception:
                # An aborted federation, for example, leaves the state of the last whole
                # round. Some engines compute in place.
                if not _is_deleted(last.state):
                    _end_early(None if is_saved else store, last, inspection)
                raise
            number = last.number + len(call.rounds)
            is_last = number + 1 == rounds
            is_due = store is not None and store.due(number + 1, rounds)
            is_saved = False
            inspection.add(call.rounds)
            # Inspection waits for its round, while later ones could be computed.
            inspection.inspect(0 if is_due or is_last else MOST_PENDING)
            last = last._replace(
                number=number,
                state=call.state,
                reports=call.reports,
                costs=last.costs.plus(call.costs),
                exclusion_counts=inspection.counts.snapshot(),
                is_last=is_last,
            )
            if store is not None and is_due:
                history = *last.history, *store.options.metrics_of(last)
                last = last._replace(history=history)
                _save(store, last, inspection)
                is_saved = True
            yield last
    except GeneratorExit:
        # JAX cannot compute while Python exits.
        if is_finalizing():
            raise
        _end_early(None if is_saved else store, last, inspection)
        raise
    except NoUploadsError as error:
        if store is None:
            raise
        store.close()
        newest = (
            f"The newest checkpoint has {count_noun(store.rounds[-1], 'round')}."
            if store.rounds
            else "There is no checkpoint."
        )
        raise NoUploadsError(f"{error} {newest}") from None
    finally:
        if store is not None and not is_finalizing():
            store.close()


def _save(store: Store, last: Round, inspection: Inspection) -> None:
    counts = inspection.counts.notes()
    store.save(Progress(last.number + 1, last.state, last.costs, last.history, counts))


def _end_early(store: Store | None, last: Round, inspection: Inspection) -> None:
    """Log the warnings of the last rounds, and save the last one."""
    try:
        inspection.inspect(0)
    except NoUploadsError as error:
        logger.warning("%s", error)
    else:
        if store is not None:
            _save(store, last, inspection)


def _is_deleted(state: RunState) -> bool:
    leaves = jax.tree.leaves(state)
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)


def repeated_means(prepared: Prepared, rounds: int) -> int:
    """Return the number of noised exchanges that a run will have computed twice.

    Args:
        prepared: the run.
        rounds: number of rounds of the checkpoint from which it resumes.
    """
    spending = prepared.spending
    if spending is None:
        return 0
    engine = prepared.engine
    assert isinstance(engine, PrivateEngine), "noise requires it"
    return max(0, engine.noised_means - spending.exchanges_after(rounds))


def affordable_rounds(prepared: Prepared, repeated: int) -> int:
    """Return the number of rounds that the run may have within its budget.

    Raises:
        ValueError: if the budget allows no round.
    """
    spending = prepared.spending
    if spending is None:
        return prepared.rounds
    rounds = spending.rounds_within(prepared.rounds, repeated)
    if not rounds:
        epsilon = spending.epsilon_after(1, repeated)
        raise ValueError(
            f"The budget epsilon={spending.budget:g} allows no round: the first spends "
            f"{epsilon:.3g}. Raise the multiplier of the noise, or epsilon."
        )
    return rounds


def counts_of(progress: Progress, device_count: int) -> ExclusionCounts:
    """Return the exclusion counts of a checkpoint.

    Example:
        >>> from fedbilevel import Costs
        >>> counts_of(Progress(0, RunState(1.0, ()), Costs(), ()), 3).device_count
        3
    """
    if progress.exclusions is None:
        return ExclusionCounts(device_count)
    return ExclusionCounts.read(progress.exclusions, device_count)
