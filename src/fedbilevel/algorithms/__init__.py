"""Federated bilevel algorithms: pure, and unaware of what runs them."""
