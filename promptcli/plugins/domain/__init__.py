"""Queries made from your own texts: find the model that suits them, and adapt a model to them."""
