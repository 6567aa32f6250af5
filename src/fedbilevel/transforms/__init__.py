"""Transforms of what leaves a device, and of the server's mean."""
