"""Explanations of hits: what each word adds to the score."""
