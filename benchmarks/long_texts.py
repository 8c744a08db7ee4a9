"""A file of texts of 1 to 8,000 tokens, next to sentence-transformers: rate, padding, peak memory.

python benchmarks/long_texts.py CORPUS [--texts 200] [--rounds 3] [--threads 2]
    [--peer-batch 4]

The backbone is a random ModernBERT of 6 layers, 384 wide, with 8,192 positions. Lengths are drawn
evenly on a logarithmic scale. The peer sorts by length, too. Its batches are of 4 texts: those of
32, its default, take over 16 GB. Each run is a process of its own; rounds are interleaved and
medians are printed. Memory is the growth of the resident set while encoding. It is also measured
for one text of 2,000, 4,000 and 8,000 tokens: twice the tokens take twice the memory, unless it is
quadratic.
"""

import argparse
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
_LONGEST = 8000  # tokens of a text
_SINGLE = (2000, 4000, 8000)


def save_modernbert(folder: Path) -> None:
    """Save a random ModernBERT with mini's vocabulary."""
    import torch
    from transformers import AutoTokenizer, ModernBertConfig, ModernBertForMaskedLM

    from promptcli.backbones.model_folder import SHIPPED_BACKBONES

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_BACKBONES["mini-bert"])
    tokenizer.model_max_length = 8192
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=576,
        max_position_embeddings=8192,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    ModernBertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def mixed_texts(corpus: Path, count: int, longest: int) -> list[str]:
    """Return texts of 1 to about ``longest`` words, evenly on a logarithmic scale."""
    import numpy as np

    words = corpus.read_text(encoding="utf-8").split()
    numbers = np.random.default_rng(0)
    texts = []
    for length in np.exp(numbers.uniform(0, np.log(longest), count)).astype(int):
        start = numbers.integers(len(words) - length)
        texts.append(" ".join(words[start : start + length]))
    return texts


def encoder_of(name: str, folder: str, batch: int):
    """Return what encodes texts, and what counts the tokens of a text."""
    if name == "promptcli":
        import promptcli as pc
        from promptcli.encoder.encoder import TorchEncoder

        recipe = pc.RECIPES["last-avg"].replace(backbone=folder, max_length=8192)
        encoder = pc.load(recipe, device="cpu", dtype="float32")
        assert isinstance(encoder, TorchEncoder)
        return encoder.encode, lambda texts: [len(row) for row in encoder.inputs(texts).ids]
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(folder)
    pooling = Pooling(body.get_word_embedding_dimension())
    model = SentenceTransformer(modules=[body, pooling], device="cpu")
    tokenizer = model.tokenizer
    encode = functools.partial(model.encode, batch_size=batch)
    return encode, lambda texts: [min(len(row), 8192) for row in tokenizer(texts)["input_ids"]]


def padded_share(lengths: list[int]) -> float:
    """Return the share of padding in the batches that promptcli plans."""
    import numpy as np

    from promptcli.encoder.batching import padded_length, plan_batches

    sizes = np.array(lengths)
    padded = sum(len(rows) * padded_length(int(sizes[rows].max())) for rows in plan_batches(sizes))
    real = sum(int(sizes[rows].sum()) for rows in plan_batches(sizes))
    return 1 - real / padded


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one_run(name: str, folder: str, texts: list[str], threads: int, batch: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    encode, lengths_of = encoder_of(name, folder, batch)
    encode(["a first text"])
    before = peak()
    began = time.perf_counter()
    encode(texts)
    seconds = time.perf_counter() - began
    grown = peak() - before
    lengths = lengths_of(texts)
    found = {"tokens_a_second": sum(lengths) / seconds, "grown_mib": grown, "tokens": sum(lengths)}
    if name == "promptcli":
        found["padding"] = padded_share(lengths)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-batch", type=int, default=4)
    parser.add_argument("--names", default="sentence-transformers,promptcli")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        name, folder, single = arguments.run.split("=")
        if int(single):
            texts = [" ".join(["water"] * (int(single) - 2))]
        else:
            texts = mixed_texts(arguments.corpus, arguments.texts, _LONGEST)
        print(json.dumps(one_run(name, folder, texts, arguments.threads, arguments.peer_batch)))
        return
    with tempfile.TemporaryDirectory() as folder:
        save_modernbert(Path(folder))

        def run(name: str, single: int = 0) -> dict[str, float]:
            command = [sys.executable, *sys.argv, "--run", f"{name}={folder}={single}"]
            ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            return json.loads(ran.stdout.splitlines()[-1])

        names = arguments.names.split(",")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            for name in names:
                found[name].append(run(name))
        for name, rows in found.items():
            medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            shown = {key: round(value, 3) for key, value in medians.items()}
            alone = {
                f"{length} tokens": round(run(name, length)["grown_mib"]) for length in _SINGLE
            }
            print(json.dumps({"run": name, **shown, "one text, MiB": alone}))


if __name__ == "__main__":
    main()
