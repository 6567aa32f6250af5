"""Keys of experiment files that were renamed, for messages that report the new name."""

RENAMED = {
    "folder": "directory",
    "weigh_by_size": "weight_by_size",
    "data.noise": "data.label_noise",
    "data.tail": "data.imbalance",
    "data.training": "data.train_size",
    "data.validation": "data.validation_size",
    "federation.enrolment": "federation.enrolment_timeout",
    "federation.measurement": "federation.evaluation_timeout",
    "federation.patience": "federation.straggler_factor",
    "federation.reachable": "federation.connection_timeout",
    "federation.reviewed": "federation.local_code",
}
"""New keys by old keys, each with its table. Old keys are refused."""


def new_option(option: str) -> str | None:
    """Return the new name of an option whose key was renamed; None for other options.

    Example:
        >>> new_option("--data.noise")
        '--data.label-noise'
    """
    key = RENAMED.get(option.removeprefix("--").replace("-", "_"))
    return None if key is None else f"--{key.replace('_', '-')}"
