"""What runs algorithms: each engine gives the same numbers, each in its own place."""
