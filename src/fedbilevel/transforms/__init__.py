"""Transforms of messages: clipping, noise, codes and robust means."""
