"""Kill the making of a folder of parts at random moments, run the same command again, compare with
an unbroken run.

    python benchmarks/shards.py --lines 20000 --shards 8 --kills 10 python benchmarks/shards.py
    --lines 1000000 --shards 64 --kills 100 --folder /dev/shm/shards --log shards.jsonl

An unbroken run is made and timed first, and the same command again, which has nothing to do. Then
the command is started, ended by SIGKILL with its workers at a random moment, and started again: so
many times, from the first moment of Python on, so that the kills are spread over the parts; last of
all it may end. Every file of the folder must have the bytes of the unbroken run's, with no file
more. ``--alone`` makes parts by ``--shard I`` in random order, up to ``--workers`` at once, as a
Slurm array would. The text is ``--text`` over and over, numbered from its second time on.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def write_lines(path: Path, source: Path | None, lines: int) -> None:
    sentences = [
        "A small boat lies at the quay.",
        "Prices fell.",
        "The cat sleeps on the warm roof of the old mill.",
    ]
    if source is not None:
        sentences = [
            line for line in source.read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    with path.open("w", encoding="utf-8") as file:
        for number, sentence in enumerate(itertools.islice(itertools.cycle(sentences), lines)):
            file.write(f"{sentence} {number}\n" if number >= len(sentences) else f"{sentence}\n")


def digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def whole(folder: Path) -> int:
    return len(list(folder.glob("part-*.parquet"))) if folder.is_dir() else 0


class Runs:
    """Starts the command in a group of its own, and kills groups."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def start(self, folder: Path, *more: str) -> subprocess.Popen[bytes]:
        """Start the command on a folder."""
        return subprocess.Popen([*self.command, "-o", str(folder), *more], start_new_session=True)

    def finish(self, folder: Path, *more: str) -> float:
        """Let the command end well; return its seconds."""
        began = time.perf_counter()
        code = self.start(folder, *more).wait()
        if code:
            sys.exit(f"the command ended with {code}")
        return time.perf_counter() - began

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> bool:
        """Kill a process with its workers; return whether it was still at work."""
        working = process.poll() is None
        if working:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return working


def broken_run(
    runs: Runs,
    folder: Path,
    shards: int,
    kills: int,
    start: float,
    longest: float,
    chance: random.Random,
    log,
) -> int:
    """Kill one run after another; return how many were at work when they were killed.

    The moment is a random time after the start, or after the run has made some parts more.
    """
    spent = 0
    while spent < kills:
        process = runs.start(folder)
        before, more = whole(folder), chance.randrange(max(2, 1 + -(-2 * shards // kills)))
        while whole(folder) < before + more and process.poll() is None:
            time.sleep(0.01)
        after = chance.uniform(0, longest if more else start + longest)
        time.sleep(after)
        working = runs.kill(process)
        spent += working
        log(
            {
                "kill": spent,
                "parts": more,
                "after": round(after, 3),
                "working": working,
                "whole": whole(folder),
            }
        )
        if process.returncode > 0:
            sys.exit(f"the command ended with {process.returncode}")
        if not working:  # it was done before: begin anew, else the rest of the kills meets nothing
            shutil.rmtree(folder)
    runs.finish(folder)
    return spent


def alone_run(
    runs: Runs, folder: Path, arguments, longest: float, chance: random.Random, log
) -> int:
    """Make every part by a process of its own in random order.

    Kill so many of them and give these out again.
    """
    waiting = list(range(arguments.shards))
    chance.shuffle(waiting)
    killed = 0
    working: dict[int, Any] = {}
    while waiting or working:
        while waiting and len(working) < arguments.workers:
            shard = waiting.pop()
            working[shard] = runs.start(folder, "--shard", str(shard))
        time.sleep(chance.uniform(0, longest / arguments.workers))
        shard = chance.choice(list(working))
        if killed < arguments.kills and runs.kill(working[shard]):
            killed += 1
            waiting.insert(chance.randrange(len(waiting) + 1), shard)
            del working[shard]
            log({"kill": killed, "shard": shard, "whole": whole(folder)})
        for shard, process in list(working.items()):
            if process.poll() is not None:
                if process.returncode:
                    sys.exit(f"shard {shard} ended with {process.returncode}")
                del working[shard]
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--model", default="mini-static")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="one process a shard, in random order")
    parser.add_argument("--text", type=Path, help="a file of sentences; else three of our own")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("shards-benchmark"),
        help="all is written here, and deleted",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="a line for each kill and one for the end")
    arguments = parser.parse_args()

    def log(about: dict) -> None:
        print(json.dumps(about), flush=True)
        if arguments.log is not None:
            with arguments.log.open("a") as file:
                file.write(json.dumps(about) + "\n")

    arguments.folder.mkdir(parents=True)
    try:
        text = arguments.folder / "lines.txt"
        write_lines(text, arguments.text, arguments.lines)
        model = ["-m", arguments.model, "--shards", str(arguments.shards), "--offline", "--quiet"]
        runs = Runs([sys.executable, "-m", "promptcli", "embed", str(text), *model])
        crew = ["--workers", str(arguments.workers)] if arguments.workers > 1 else []
        seconds = runs.finish(arguments.folder / "whole", *crew)
        start = runs.finish(arguments.folder / "whole", *crew)
        wanted = digests(arguments.folder / "whole")
        size = sum(path.stat().st_size for path in (arguments.folder / "whole").iterdir())
        work = max(seconds - start, 0.1)
        rate = round(arguments.lines / work)
        log(
            {
                "unbroken": round(seconds, 1),
                "start": round(start, 1),
                "lines_per_second": rate,
                "bytes": size,
            }
        )
        longest = work / arguments.shards
        folder, chance = arguments.folder / "broken", random.Random(arguments.seed)
        began = time.perf_counter()
        if arguments.alone:
            killed = alone_run(runs, folder, arguments, start + longest, chance, log)
        else:
            runs.command += crew
            killed = broken_run(
                runs, folder, arguments.shards, arguments.kills, start, longest, chance, log
            )
        found = digests(folder)
        same = found == wanted
        differing = sorted(
            name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
        )
        log(
            {
                "killed": killed,
                "seconds": round(time.perf_counter() - began, 1),
                "same": same,
                "differing": differing,
            }
        )
    finally:
        shutil.rmtree(arguments.folder)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
