"""Readers of text, of pairs and of the STS formats."""
