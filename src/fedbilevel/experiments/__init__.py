"""Experiments: what a file asks for, read, built, run, measured and written down."""
