"""Tuning of settings: ranges, successive halving and a study of Optuna."""
