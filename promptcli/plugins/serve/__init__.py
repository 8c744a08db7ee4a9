"""Embeddings and search over HTTP, with a page, and as tools for agents.

Both servers are in one plug-in, since they open models and indexes in the same way.
"""
