"""What the command line costs beyond import, load and encoding.

    python benchmarks/overhead.py CORPUS [--lines 60000] [--rounds 3]

Each round runs ``promptcli embed`` in a fresh process in which two calls are timed from the inside:
opening the encoder (imports and load) and encoding. overhead = (the whole command - open - encode)
/ encode; the median is printed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_TIMED = """
import json, sys, time
from promptcli.models import loading as encoders
from promptcli.cli.command_line import main

spent = {"open": 0.0, "encode": 0.0}

def timed(name, function):
    def call(*arguments, **options):
        start = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - start
    return call

def open_encoder(*arguments, **options):
    from promptcli.encoder.encoder import TorchEncoder
    if TorchEncoder.encode_report.__name__ != "call":
        TorchEncoder.encode_report = timed("encode", TorchEncoder.encode_report)
    return opened(*arguments, **options)

opened = encoders.open_encoder
encoders.open_encoder = timed("open", open_encoder)
start = time.perf_counter()
try:
    main(["embed", sys.argv[1], "--offline", "--force", "-q"])
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps({"whole": time.perf_counter() - start, **spent}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--lines", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as folder, arguments.corpus.open(encoding="utf-8") as file:
        path = Path(folder) / "lines.txt"
        path.write_text(
            "".join(line for line, _ in zip(file, range(arguments.lines), strict=False))
        )
        for _ in range(arguments.rounds):
            command = [sys.executable, "-c", _TIMED, str(path)]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds.append(json.loads(ran.stdout.splitlines()[-1]))
    overheads = [
        (took["whole"] - took["open"] - took["encode"]) / took["encode"] for took in rounds
    ]
    seconds = {
        f"{name}_s": round(statistics.median(took[name] for took in rounds), 2)
        for name in rounds[0]
    }
    percent = round(100 * statistics.median(overheads), 2)
    each = [round(100 * overhead, 2) for overhead in overheads]
    print(
        json.dumps(
            {"lines": arguments.lines, "overhead_percent": percent, "each_round": each, **seconds}
        )
    )


if __name__ == "__main__":
    main()
