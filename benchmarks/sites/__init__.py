"""Benchmark of sites with wrong labels: find them, and train the best model."""
