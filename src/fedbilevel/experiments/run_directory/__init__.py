"""The directory of a run: who may write to it, and what it holds."""
