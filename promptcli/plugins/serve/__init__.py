"""Embeddings and search over HTTP, with a page, and as tools for agents.

Both are in one plug-in: they open models and indexes in the same way, and compute in the same
thread.
"""
