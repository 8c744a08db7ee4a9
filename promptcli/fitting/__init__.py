"""Fitting what a learning-free recipe takes from sentences: TF-IDF weights, whitening, flow."""
