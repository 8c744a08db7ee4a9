"""A small BERT from plain text, or an earlier model adapted to it."""
