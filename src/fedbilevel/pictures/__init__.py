"""Pictures of runs, and of what they have learnt."""
