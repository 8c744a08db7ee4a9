"""Backbones of any shape with random weights: speed does not depend on what the weights are."""

import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM

from promptcli.backbones.model_folder import SHIPPED_BACKBONES


def random_backbone(name: str, folder: Path) -> Path:
    """Save a random BERT called LAYERSxWIDTH with mini's vocabulary."""
    layers, width = map(int, name.split("x"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=16384,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=4 * width,
        max_position_embeddings=512,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    for file in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(SHIPPED_BACKBONES["mini-bert"] / file, folder)
    return folder
