"""Keys of experiment files by names that users may write instead."""

OTHER_NAMES = {
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
"""Keys by names of Python, or by names of earlier versions."""
