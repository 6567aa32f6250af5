"""What is written down of a run, and where else it goes."""
