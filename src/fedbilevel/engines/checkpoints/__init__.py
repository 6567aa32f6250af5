"""Checkpoints: what a run keeps of itself, whole or not at all."""
