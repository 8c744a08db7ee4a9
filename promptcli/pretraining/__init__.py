"""Pre-training of a small language model from plain text.

A room of files; import what you need from them.
"""
