"""A causal model's sentences a second, next to transformers' own batches of equal size, in turns.

    promptcli eval --task STS-B --data-dir DATA --list-sentences > sentences.txt
    python benchmarks/causal_speed.py MODEL sentences.txt [--sentences 512] [--batch 32]
    [--dtype bfloat16] [--backend openvino]

The peer reads the same filled templates in the order of the file, padded to the longest of a batch,
and takes the last token of the last layer. Both compute in the same precision, with the same
threads; processor time stands next to the clock, since that is what a busy machine leaves
comparable.
"""

import argparse
import time

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

import promptcli as pc
from promptcli.encoder.encoder import TorchEncoder
from promptcli.recipe import RECIPES


class Peer:
    """transformers alone."""

    def __init__(self, folder, dtype, batch):
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="right")
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self.model = AutoModel.from_pretrained(folder, dtype=dtype).eval()
        self.batch = batch

    @torch.inference_mode()
    def encode(self, texts):
        """Return the last token's states (n, d)."""
        vectors = []
        for start in range(0, len(texts), self.batch):
            inputs = self.tokenizer(
                texts[start : start + self.batch], padding=True, return_tensors="pt"
            )
            states = self.model(**inputs, use_cache=False).last_hidden_state
            last = inputs["attention_mask"].sum(1) - 1
            vectors.append(states[torch.arange(len(states)), last].float().numpy())
        return np.concatenate(vectors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("sentences_file")
    parser.add_argument("--recipe", default="prompteol")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", default="stored", help="stored, float32 or bfloat16")
    parser.add_argument("--backend", default="torch", help="torch, openvino or openvino-int8")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with open(options.sentences_file, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file][: options.sentences]
    recipe = RECIPES[options.recipe].replace(backbone=options.model)
    encoder = pc.load(recipe, device="cpu", dtype=options.dtype, backend=options.backend)
    assert isinstance(encoder, TorchEncoder)
    stored = encoder.backbone.dtype if options.backend == "torch" else torch.bfloat16
    peer = Peer(options.model, stored, options.batch)
    rows = encoder.inputs(lines).ids
    texts = peer.tokenizer.batch_decode(rows)
    assert [peer.tokenizer(text)["input_ids"] for text in texts[:50]] == rows[:50]
    work = {"transformers": lambda: peer.encode(texts), "promptcli": lambda: encoder.encode(lines)}
    vectors, clock, used = {}, dict.fromkeys(work, 0.0), dict.fromkeys(work, 0.0)
    encoder.encode(lines[:32])
    peer.encode(texts[:32])
    for _ in range(options.rounds):
        for name, run in work.items():
            began, processor = time.perf_counter(), time.process_time()
            vectors[name] = run()
            clock[name] += time.perf_counter() - began
            used[name] += time.process_time() - processor
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors.values())
    tokens = np.mean([len(row) for row in rows])
    print(f"{len(lines)} sentences, {tokens:.1f} tokens each, {options.backend}, {options.dtype}")
    for name in work:
        rates = f"{options.rounds * len(lines) / clock[name]:.1f} sentences/s,"
        print(f"{name}: {rates} {options.rounds * len(lines) / used[name]:.1f} by processor time")
    ratios = (seconds["transformers"] / seconds["promptcli"] for seconds in (clock, used))
    print("{:.2f} times by the clock, {:.2f} by processor time".format(*ratios))
    print(f"lowest cosine {(one * other).sum(1).min():.7f}")


if __name__ == "__main__":
    main()
