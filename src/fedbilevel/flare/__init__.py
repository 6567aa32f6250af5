"""A federation on NVIDIA FLARE: real processes, mutual TLS, sites that may fail."""
