"""The search for settings: ranges, successive halving, and a study of Optuna."""
