"""Prompts: sentences to model input. One file per kind."""
