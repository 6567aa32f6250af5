"""Transforms of what leaves a device."""
