"""What the command line costs beyond import, load and encoding.

    python benchmarks/overhead.py CORPUS [--lines 100000] [--rounds 3]

Each round runs, each in a fresh process, ``promptcli embed`` on the lines and on one line, and the encoder alone on the
same lines in windows of the same size; overhead = (whole - one line - encoder) / encoder. Rounds are interleaved;
medians are printed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from promptcli.embedding import WINDOW

_ENCODER_ALONE = """
import sys, time
from promptcli.encoder import build_encoder
from promptcli.registry import SHIPPED
lines = open(sys.argv[1], encoding="utf-8").read().splitlines()
encoder = build_encoder(SHIPPED["mini"], dtype="auto", offline=True)
encoder.encode(lines[:1])
start = time.perf_counter()
for first in range(0, len(lines), int(sys.argv[2])):
    encoder.encode(lines[first : first + int(sys.argv[2])])
print(time.perf_counter() - start)
"""


def seconds_of_encoder(path: Path) -> float:
    command = [sys.executable, "-c", _ENCODER_ALONE, str(path), str(WINDOW)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def seconds_of_embed(path: Path) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "promptcli", "embed", path, "--offline", "--force", "-q"], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with given.corpus.open(encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line, _ in zip(file, range(given.lines), strict=False)]
    whole, single, alone = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        many, one = Path(folder) / "many.txt", Path(folder) / "one.txt"
        many.write_text("".join(line + "\n" for line in lines))
        one.write_text(lines[0] + "\n")
        for _ in range(given.rounds):
            whole.append(seconds_of_embed(many))
            single.append(seconds_of_embed(one))
            alone.append(seconds_of_encoder(many))
    overhead = statistics.median(
        (total - begin - work) / work for total, begin, work in zip(whole, single, alone, strict=True)
    )
    medians = {"whole_s": whole, "one_line_s": single, "encoder_s": alone}
    print(
        json.dumps(
            {
                "lines": len(lines),
                "overhead_percent": round(100 * overhead, 2),
                **{name: round(statistics.median(values), 2) for name, values in medians.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
