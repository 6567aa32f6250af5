"""Experiment files: TOML read strictly into dataclasses, and written again."""
