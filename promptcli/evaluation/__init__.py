"""Scoring encoders: STS and transfer tasks, statistics."""
