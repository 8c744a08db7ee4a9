"""Masked-LM pre-training of a small BERT from plain text. A room of files; import what you need from them."""
