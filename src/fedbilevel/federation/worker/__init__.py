"""A computation in a process of its own, which may die without harm to its parent."""
