"""Keys of experiment files by other names, for messages that report the right name."""

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

PYTHON_NAMES = {
    "transforms.adaptive_clip": "clip_quantile",
    "transforms.budget": "epsilon",
    "transforms.centred_clipping": "clipping_radius",
    "transforms.device_noise": "noise_devices",
    "transforms.example_multiplier": "example_noise",
    "transforms.fixed_point": "integer_bits",
    "transforms.gaussian_noise": "noise",
    "transforms.multiplier": "noise",
    "transforms.noise_multiplier": "noise",
    "transforms.quantise": "bits",
    "transforms.quantize": "bits",
    "transforms.random_k": "random_share",
    "transforms.secure_sums": "federation.secure_sums",
    "transforms.top_k": "top_share",
    "transforms.trimmed_mean": "trim_share",
    "transforms.upload_bits": "bits",
}
"""Keys by names of Python that users may write instead: the nearest key by its letters
would be another setting."""


def new_option(option: str) -> str | None:
    """Return the new name of an option whose key was renamed; None for other options.

    Example:
        >>> new_option("--data.noise")
        '--data.label-noise'
    """
    key = RENAMED.get(option.removeprefix("--").replace("-", "_"))
    return None if key is None else f"--{key.replace('_', '-')}"
