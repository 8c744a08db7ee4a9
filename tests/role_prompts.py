"""Prompts of roles, and the vectors of texts behind them."""

from tests.reference import sentence_transformers_folder as reference
from tests.tiny import SENTENCES

PROMPTS = {"query": "two dogs : ", "document": "flowers : ", "STS": "a man : "}


def vectors_behind(folder, prompt, texts=SENTENCES):
    """Return the vectors of texts behind a prompt, by the folder's modules."""
    return reference.vectors(folder, [prompt + text for text in texts])
