"""How far a run has come: stationarity, consensus, and what the truth would be."""
