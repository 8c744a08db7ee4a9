"""Seconds from typing a command to its end on ten lines, next to sentence-transformers and to
importing torch alone.

python benchmarks/startup.py [--rounds N]

Every run is a process of its own; rounds are interleaved. The peer loads the same backbone and
takes the mean of the last layer; it is left out where it is not installed.
"""

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from promptcli.backbones.locating import SHIPPED

LINES = "".join(
    f"Sentence number {number} says nothing that the others do not say.\n" for number in range(10)
)
PEER = """
import sys
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
body = Transformer(sys.argv[1])
pooling = Pooling(body.get_word_embedding_dimension())
model = SentenceTransformer(modules=[body, pooling], device="cpu")
model.encode(open(sys.argv[2]).read().splitlines())
"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as made:
        lines = Path(made) / "lines.txt"
        lines.write_text(LINES)
        python, ours = [sys.executable], [sys.executable, "-m", "promptcli"]
        runs = {
            "python -c 'import torch'": [*python, "-c", "import torch"],
            "promptcli --version": [*ours, "--version"],
            "promptcli embed": [*ours, "embed", lines, "-o", "{out}.npy"],
            "promptcli embed -m mini-static": [
                *ours,
                "embed",
                lines,
                "-m",
                "mini-static",
                "-o",
                "{out}.npy",
            ],
            "promptcli similarity": [*ours, "similarity", "A man plays.", "Somebody plays."],
        }
        if importlib.util.find_spec("sentence_transformers"):
            runs["sentence-transformers, encode"] = [
                *python,
                "-c",
                PEER,
                SHIPPED["mini-bert"],
                lines,
            ]
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds):
            for name, command in runs.items():
                out = Path(made) / f"{number} {name}".replace("/", "")
                words = [str(word).format(out=out) for word in command]
                start = time.perf_counter()
                subprocess.run(words, check=True, capture_output=True)
                seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        print(
            f"{name:34} {statistics.median(taken):5.2f} s  ({min(taken):.2f} to {max(taken):.2f})"
        )


if __name__ == "__main__":
    main()
