"""Backbones: pre-trained language models. Only this package knows transformers' quirks."""
