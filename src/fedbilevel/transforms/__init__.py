"""Transforms of uploads: clipping, noise, compression and robust means."""
