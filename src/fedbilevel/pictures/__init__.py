"""Pictures of runs and of their solutions."""
