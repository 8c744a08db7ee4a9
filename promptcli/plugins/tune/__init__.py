"""Trackers of experiments, which a training reports to."""
