"""Contrastive training of a method on a backbone.

A room of files; import what you need from them.
"""
