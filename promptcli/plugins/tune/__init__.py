"""Search over the settings of a training, and trackers of experiments."""
