"""Looks inside models: anisotropy, uniformity, token biases, impacts, attention, maps."""
