"""Whole files and folders on disk: written under a temporary name, then renamed."""
