"""Queries made from one's own texts: which model suits them, and a model adapted to them."""
