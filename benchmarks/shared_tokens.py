"""A template's first tokens computed once, next to computed with every sentence: a causal model of
Qwen2's shape.

python benchmarks/shared_tokens.py [CORPUS] [--layers 4] [--sentences 256] [--recipe knowledge]

Random weights (speed does not depend on them) and a byte-level vocabulary trained on the sentences.
Medians of interleaved rounds; processor time next to the clock, since that is what a busy machine
leaves comparable.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from promptcli.backbones.backbone import Backbone
from promptcli.data.training_data import fitting_sentences
from promptcli.encoder.encoder import build_encoder
from promptcli.recipe import RECIPES


def make(folder, sentences, layers):
    """Save a random model with the layers of Qwen2-0.5B."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [*sentences, *(RECIPES["knowledge"].prompt for _ in range(20))]
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=layers,
        num_attention_heads=14,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", nargs="?", default="demo")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recipe", default="knowledge")
    options = parser.parse_args()
    lines = fitting_sentences(options.corpus)
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), lines[:20000], options.layers)
        encoder = build_encoder(RECIPES[options.recipe].replace(backbone=folder), dtype="float32")
        sentences = lines[: options.sentences]
        lengths = [len(row) for row in encoder.inputs(sentences).ids]
        shared = Backbone.shared_tokens
        ways = {"computed once": shared, "computed each time": lambda *_: None}
        encoder.encode(sentences[:8])
        clock, processor, vectors = ({way: [] for way in ways} for _ in range(3))
        for _ in range(options.rounds):
            for way, method in ways.items():
                Backbone.shared_tokens = method
                began, used = time.perf_counter(), time.process_time()
                vectors[way] = encoder.encode(sentences)
                clock[way].append(time.perf_counter() - began)
                processor[way].append(time.process_time() - used)
        Backbone.shared_tokens = shared
    once, each = vectors.values()
    print(
        f"{len(sentences)} sentences of {np.mean(lengths):.1f} tokens, {len(encoder.prompt.shared)}"
        " of them shared"
    )
    print(
        f"largest difference {np.abs(once - each).max():.1e} (largest number"
        f" {np.abs(each).max():.1f})"
    )
    for name, seconds in (("clock", clock), ("processor", processor)):
        rates = {way: len(sentences) / statistics.median(times) for way, times in seconds.items()}
        one, other = rates.values()
        print(f"{name}: {one:.1f} and {other:.1f} sentences/s, {one / other:.2f} times")


if __name__ == "__main__":
    main()
