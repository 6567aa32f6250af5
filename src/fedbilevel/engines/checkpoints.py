"""Checkpoints: whole or not at all, verified before they are used."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedbilevel.engines.accounting import Costs
from fedbilevel.engines.configuration import differences
from fedbilevel.engines.protocol import RunState

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

logger = logging.getLogger("fedbilevel")
PREFIX = "round"
DIGESTS = "digests.json"
"""What a checkpoint's files must hash to; in the checkpoint itself."""
TEMPORARY = ".orbax-checkpoint-tmp"


class CheckpointError(ValueError):
    """A checkpoint that must not be used, or one that is missing.

    Example:
        >>> str(CheckpointError("the run was made with another seed"))
        'the run was made with another seed'
    """


@dataclass(frozen=True)
class Checkpoints:
    """Where, how often and how long a run keeps what it needs to go on.

    Attributes:
        folder: of this run alone.
        every: rounds between two checkpoints; the last round always has one.
        keep: how many of the newest are kept.
        measure: called on each round that is kept; its numbers are kept with it and
            come back as `Round.history`.
        best: of these numbers, the one whose smallest value is kept besides.

    Example:
        >>> Checkpoints("runs/first", every=50).keep
        3
    """

    folder: str | Path
    every: int = 10
    keep: int = 3
    measure: Callable[[Any], Mapping[str, float]] | None = None
    best: str | None = None

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"Checkpoints needs {name} at least 1, not {value}.")
        if self.best is not None and self.measure is None:
            raise ValueError(
                f"Checkpoints cannot keep the best {self.best!r} without measure; give "
                "a function of a round that returns it."
            )


class Progress(NamedTuple):
    """How far a run has come.

    Attributes:
        rounds: how many are done.
        state: after the last of them.
        costs: all that has been spent.
        history: what was measured.

    Example:
        >>> Progress(0, RunState(1.0, ()), Costs(), ()).rounds
        0
    """

    rounds: int
    state: RunState
    costs: Costs
    history: tuple[Mapping[str, float | int], ...]


class Store:
    """The checkpoints of one run in its folder.

    Example:
        >>> Store.__name__
        'Store'
    """

    def __init__(self, options: Checkpoints, configuration: Mapping[str, Any]) -> None:
        self.options = options
        self.folder = Path(options.folder).absolute()
        self.configuration = json.loads(json.dumps(configuration))
        self._manager: ocp.CheckpointManager | None = None

    @property
    def rounds(self) -> list[int]:
        """How many rounds each whole checkpoint has done, oldest first."""
        found = self.folder.glob(f"{PREFIX}_*")
        numbers = [path.name.removeprefix(f"{PREFIX}_") for path in found]
        return sorted(int(number) for number in numbers if number.isdigit())

    def due(self, rounds: int, last: int) -> bool:
        """Whether so many rounds are to have a checkpoint."""
        return rounds % self.options.every == 0 or rounds == last

    def measured(self, done: Any) -> list[dict[str, float | int]]:
        """Return what is to be remembered of a round."""
        if self.options.measure is None:
            return []
        found = {name: float(one) for name, one in self.options.measure(done).items()}
        best = self.options.best
        if best is not None and best not in found:
            raise ValueError(
                f"Checkpoints(best={best!r}) has no such measure among "
                f"{', '.join(found)}; name one of them."
            )
        return [{"round": done.number, **found}]

    def save(self, progress: Progress) -> None:
        """Write a checkpoint in the background, as soon as the state is known."""
        ocp = _orbax()
        manager = self._manager = self._manager or self._open(ocp)
        server, private = progress.state
        # The next exchange writes over private state.
        leaves = jax.tree.leaves((server, jax.tree.map(jnp.copy, private)))
        notes = {
            "configuration": self.configuration,
            "costs": progress.costs._asdict(),
            "history": [dict(one) for one in progress.history],
        }
        latest = dict(progress.history[-1]) if progress.history else None
        manager.save(
            progress.rounds,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave({str(i): x for i, x in enumerate(leaves)}),
                notes=ocp.args.JsonSave(notes),
            ),
            metrics=latest,
        )

    def newest(self, state: RunState) -> Progress | None:
        """Return the newest checkpoint that can be used, in the form of a state.

        Raises:
            CheckpointError: if it was made by a run that was asked something else.
        """
        for rounds in reversed(self.rounds):
            folder = self.folder / f"{PREFIX}_{rounds}"
            try:
                _verify(folder)
                notes = json.loads((folder / "notes" / "metadata").read_text())
                self._compare(folder, notes["configuration"])
                return Progress(
                    rounds,
                    _read(folder / "state", state),
                    Costs(**notes["costs"]),
                    tuple(notes["history"]),
                )
            except CheckpointError:
                raise
            except Exception as error:
                logger.warning("skipped the checkpoint %s: %s", folder, error)
        return None

    def close(self) -> None:
        """Wait for what is being written."""
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _compare(self, folder: Path, then: Mapping[str, Any]) -> None:
        found = differences(then, self.configuration)
        if found:
            raise CheckpointError(
                f"the checkpoint {folder} is of another run: {'; '.join(found[:5])}. "
                "Resume with the same settings, or give the new run its own folder."
            )

    def _open(self, ocp: Any) -> "ocp.CheckpointManager":
        policies = ocp.checkpoint_managers
        kept = [policies.LatestN(self.options.keep)]
        if self.options.best is not None:
            best = self.options.best
            kept.append(
                policies.BestN(
                    get_metric_fn=lambda found: found[best], reverse=True, n=1
                )
            )
        return ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                step_prefix=PREFIX,
                preservation_policy=policies.AnyPreservationPolicy(kept),
                cleanup_tmp_directories=True,
                save_root_metadata=False,
                async_options=ocp.AsyncOptions(
                    post_finalization_callback=self._write_digests
                ),
            ),
        )

    def _write_digests(self) -> None:
        # Called when all files are written and before the folder gets its name.
        if jax.process_index():
            return
        for folder in self.folder.glob(f"{PREFIX}_*{TEMPORARY}"):
            digests = dict(_digests(folder))
            (folder / DIGESTS).write_text(json.dumps(digests))


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for item in ("state", "notes"):
        for path in sorted((folder / item).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                name = str(path.relative_to(folder))
                yield name, hashlib.blake2b(content, digest_size=16).hexdigest()


def _verify(folder: Path) -> None:
    expected = json.loads((folder / DIGESTS).read_text())
    if not expected or expected != dict(_digests(folder)):
        raise ValueError("its files are not as they were written")


def _read(folder: Path, state: RunState) -> RunState:
    ocp = _orbax()
    leaves, structure = jax.tree.flatten(state)
    ours = len(jax.tree.leaves(state.server))
    names = [str(i) for i in range(len(leaves))]
    wanted = ocp.RestoreArgs(restore_type=np.ndarray)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        found = checkpointer.restore(
            folder,
            ocp.args.PyTreeRestore(
                item=dict.fromkeys(names, 0),
                restore_args=dict.fromkeys(names, wanted),
            ),
        )
    arrays = []
    for place, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
        # A mesh fills private state up to a multiple of its shards.
        array = found[name] if place < ours else found[name][: len(leaf)]
        if array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError("its arrays have other shapes or types")
        arrays.append(jnp.asarray(array))
    read: RunState = jax.tree.unflatten(structure, arrays)
    return read


def _orbax() -> Any:
    try:
        import orbax.checkpoint as ocp
    except ImportError as error:
        raise ImportError(
            "checkpoints need orbax-checkpoint; install fedbilevel[checkpoints]."
        ) from error
    return ocp
