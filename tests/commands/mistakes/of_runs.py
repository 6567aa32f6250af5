"""Mistakes of commands that use a finished run."""

from collections.abc import Callable
from pathlib import Path

from tests.commands.mistakes.mistake import DONE, Mistake


def after_run(
    name: str,
    arguments: str,
    cause: str,
    place: str,
    cure: str,
    before: Callable[[], None] = lambda: None,
) -> Mistake:
    """Return a mistake after a run of FedBiO in runs/done with 4 checkpoints."""
    return Mistake(name, arguments, {"done.toml": DONE}, cause, place, cure, before)


def damage_checkpoints() -> None:
    for file in Path("runs/done/checkpoints").rglob("*"):
        if file.is_file():
            file.write_bytes(b"damaged")


def damage_experiment() -> None:
    Path("runs/done/experiment.toml").write_text("rounds = [")


def forget_measurements() -> None:
    Path("runs/done/metrics.jsonl").unlink()


MISTAKES = (
    after_run(
        "a run to run",
        "run runs/done",
        "is a run directory, not an experiment file",
        "runs/done",
        "resume the run with: fedbilevel resume runs/done.",
    ),
    after_run(
        "the file of a run to resume",
        "resume done.toml",
        "is a file, not a run directory",
        "done.toml",
        "give the run directory runs/done.",
    ),
    after_run(
        "a second run",
        "run done.toml",
        "already has a finished run of 4 rounds",
        "runs/done",
        "extend it with: fedbilevel resume runs/done --rounds 8, or choose another "
        "--directory.",
    ),
    after_run(
        "fewer rounds",
        "resume runs/done --rounds 2",
        "rounds is 2",
        "runs/done/checkpoints",
        "Set rounds to at least 4.",
    ),
    after_run(
        "another rate",
        "resume runs/done --algorithm.learning-rate 0.2 --rounds 6",
        "algorithm.learning_rate 0.1 → 0.2",
        "The run in runs/done",
        "Omit these options, or run the experiment with another --directory.",
    ),
    after_run(
        "other data",
        "resume runs/done --data.train-size 50 --rounds 6",
        "data.train_size 60 → 50",
        "The run in runs/done",
        "Omit these options, or run the experiment",
    ),
    after_run(
        "another number of participants",
        "resume runs/done --participants 3 --rounds 6",
        "participants unset → 3",
        "The run in runs/done",
        "Omit these options, or run the experiment",
    ),
    after_run(
        "unreadable checkpoints",
        "resume runs/done --rounds 6",
        "all checkpoints are damaged, and were renamed to damaged_*",
        "runs/done:",
        "start the run again in another --directory.",
        before=damage_checkpoints,
    ),
    after_run(
        "a damaged experiment file",
        "plot runs/done",
        "is not valid TOML: Invalid value (at end of document)",
        "runs/done/experiment.toml",
        "correct the syntax there.",
        before=damage_experiment,
    ),
    after_run(
        "measurements lost",
        "plot runs/done",
        "the run has no measurements yet",
        "runs/done:",
        "resume it with: fedbilevel resume runs/done.",
        before=forget_measurements,
    ),
    after_run(
        "no such metric",
        "compare runs/done --metric los",
        "'los' was not measured in done (FedBiO)",
        "--metric",
        "Choose one of loss, training_loss, accuracy.",
    ),
    after_run(
        "a plan for FedBiO",
        "plan runs/done",
        "used FedBiO, but the paper's corollaries apply only to LocalBSGM and "
        "LocalBSGVRM",
        "The run in runs/done",
        "Run one of them first: fedbilevel run FILE algorithm:LocalBSGM",
    ),
)
