"""A search over the settings of a training, and trackers that a training reports to."""
