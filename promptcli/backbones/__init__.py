"""Backbones: pre-trained language models. Every transformers quirk is here, and only here."""
