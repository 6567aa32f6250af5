"""Run directories: their lock, their files, and reading them."""
