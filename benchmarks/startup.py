"""Seconds from typing a command to its end, wall and of the CPU, next to model2vec,
sentence-transformers and importing torch alone.

python benchmarks/startup.py [--rounds N]

Every run is a process of its own; rounds are interleaved. sentence-transformers loads the same
backbone and takes the mean of the last layer, model2vec the table of `mini-static`; a peer that is
not installed is left out. `promptcli --help`, the static encoder and `mini` are measured on the
same lines.
"""

import argparse
import importlib.util
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from promptcli.backbones.model_folder import SHIPPED_BACKBONES

LINES = "".join(
    f"Sentence number {number} says nothing that the others do not say.\n" for number in range(10)
)
PEER = """
import sys
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
body = Transformer(sys.argv[1])
pooling = Pooling(body.get_word_embedding_dimension())
model = SentenceTransformer(modules=[body, pooling], device="cpu").float()  # stored in float16
model.encode(open(sys.argv[2]).read().splitlines())
"""


STATIC_PEER = """
import sys
from model2vec import StaticModel
StaticModel.from_pretrained(sys.argv[1]).encode(open(sys.argv[2]).read().splitlines())
"""
LOAD = "import promptcli as pc; pc.load('{}').encode(['A man plays.', 'Somebody plays.'])"
LINES_SEARCHED = 1000


def runs_of(made):
    """Return the command of each run by its name; ``{out}`` is a new file's name."""
    lines = made / "lines.txt"
    lines.write_text(LINES)
    many = made / "many.txt"
    line = LINES.splitlines()[0]
    many.write_text("".join(f"{number} {line}\n" for number in range(LINES_SEARCHED)))
    python, ours = [sys.executable], [sys.executable, "-m", "promptcli"]
    pair = ["A man plays.", "Somebody plays."]
    static = ["-m", "mini-static"]
    runs = {
        "python -c 'import torch'": [*python, "-c", "import torch"],
        "promptcli --version": [*ours, "--version"],
        "promptcli --help": [*ours, "--help"],
        "promptcli similarity -m mini-static": [*ours, "similarity", *pair, *static],
        "promptcli search, 1,000 lines": [*ours, "search", "a sentence", many],
        "promptcli embed -m mini-static": [*ours, "embed", lines, *static, "-o", "{out}.npy"],
        "promptcli index search": [*ours, "index", "search", made / "index", "a sentence"],
        "pc.load('mini-static')": [*python, "-c", LOAD.format("mini-static")],
        "promptcli similarity": [*ours, "similarity", *pair],
        "promptcli embed": [*ours, "embed", lines, "-o", "{out}.npy"],
        "pc.load('mini')": [*python, "-c", LOAD.format("mini")],
    }
    build = [*ours, "index", "build", many, "-o", made / "index", *static]
    subprocess.run(build, check=True, capture_output=True)
    if importlib.util.find_spec("model2vec"):
        table = made / "table"
        export = ["export", "mini-static", "-o", table, "--to", "model2vec"]
        subprocess.run([*ours, *export], check=True, capture_output=True)
        runs["model2vec, encode"] = [*python, "-c", STATIC_PEER, table, lines]
    if importlib.util.find_spec("sentence_transformers"):
        peer = [*python, "-c", PEER, SHIPPED_BACKBONES["mini-bert"], lines]
        runs["sentence-transformers, encode"] = peer
    return runs


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        runs = runs_of(made)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        of_cpu: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds):
            for place, (name, command) in enumerate(runs.items()):
                words = [str(word).format(out=made / f"{number} {place}") for word in command]
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                start = time.perf_counter()
                subprocess.run(words, check=True, capture_output=True)
                seconds[name].append(time.perf_counter() - start)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                of_cpu[name].append(after.ru_utime - before.ru_utime)
    for name, taken in seconds.items():
        print(
            f"{name:36} {statistics.median(taken):5.2f} s  ({min(taken):.2f} to {max(taken):.2f}),"
            f" user {statistics.median(of_cpu[name]):.2f} s"
        )


if __name__ == "__main__":
    main()
