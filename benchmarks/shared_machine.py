"""Training steps and encoding beside busy processes, by how long a thread of OpenMP spins while it
waits for the others.

    python benchmarks/shared_machine.py CORPUS [--waits NAMES] [--busy 0,1] [--rounds 3]

``train`` takes steps of SimCSE at batch 64 on `mini-bert`, ``embed`` encodes 1,500 lines with
`mini`, both in float32. A wait is ``torch`` (no setting of ours), ``passive``
(OMP_WAIT_POLICY), a spin count (GOMP_SPINCOUNT) or ``ours``, what the program sets. Each run is a
process; rounds are interleaved. Printed are medians and the best of examples or lines a second, and
the machine's load before each run: other programs disturb the rows without a busy process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

_BATCH, _STEPS, _WARM, _LINES = 64, 12, 2, 1500
_BUSY = "while True: pass"


def one_run(corpus: Path) -> None:
    """Measure in this process and print the rates."""
    import torch
    from training import ours

    from promptcli.models.loading import load

    with corpus.open(encoding="utf-8") as file:
        lines = [next(file).strip() for _ in range(max(_BATCH * _STEPS, _LINES))]
    gradients, learned, _ = ours("simcse", "mini-bert", _BATCH, False)
    optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=True)
    seconds = []
    for first in range(0, _BATCH * _STEPS, _BATCH):
        start = time.perf_counter()
        gradients(lines[first : first + _BATCH])
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    train = _BATCH / statistics.median(seconds[_WARM:])
    encode = load("mini", device="cpu", dtype="float32").encode
    encode(lines[:_BATCH])
    start = time.perf_counter()
    encode(lines[:_LINES])
    print(json.dumps({"train": train, "embed": _LINES / (time.perf_counter() - start)}))


def environment(wait: str) -> dict[str, str]:
    """Return the variables of a run."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))
    }
    if wait == "ours":
        from promptcli.__main__ import SPINS

        wait = SPINS
    if wait == "passive":
        own["OMP_WAIT_POLICY"] = wait
    elif wait != "torch":
        own["GOMP_SPINCOUNT"] = wait
    return own


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--waits", default="torch,passive,ours")
    parser.add_argument("--busy", default="0,1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        one_run(arguments.corpus)
        return
    for count in map(int, arguments.busy.split(",")):
        others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
        found: dict[str, list[dict[str, float]]] = {}
        try:
            for _ in range(arguments.rounds):
                for wait in arguments.waits.split(","):
                    load = os.getloadavg()[0]
                    ran = subprocess.run(
                        [sys.executable, *sys.argv, "--run"],
                        env=environment(wait),
                        stdout=subprocess.PIPE,
                        check=True,
                        text=True,
                    )
                    rates = json.loads(ran.stdout.splitlines()[-1]) | {"load": load}
                    found.setdefault(wait, []).append(rates)
                    print(f"busy {count} {wait}: {rates}", file=sys.stderr)
        finally:
            for other in others:
                other.kill()
        for wait, runs in found.items():
            row: dict[str, object] = {"busy": count, "wait": wait}
            for name in ("train", "embed"):
                row[name] = round(statistics.median(run[name] for run in runs))
                row[f"{name}, best"] = round(max(run[name] for run in runs))
            row["load"] = [round(run["load"], 1) for run in runs]
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
