"""Searches that rank recipes on a development set: attention heads and templates."""
