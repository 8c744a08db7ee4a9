"""Two versions of promptcli beside each other, in turns, on an index of the same lines: building,
disk, memory, opening, searching, adding.

    python benchmarks/index_turns.py LINES FOLDER --rows 1000000 --python BEFORE --python AFTER

BEFORE and AFTER are the Python interpreters of two environments. Start it outside a checkout, since
Python takes the package of the current folder first. LINES has a sentence a line; they are taken
again and again, each with its number. Each step is a process of its own, so that its peak
memory is its own. Queries are the first eight words of 100 rows, k is 10. Every result is printed
as a JSON line. ``--keep`` leaves an index that is there.
"""

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

QUERIES = 100
ADDED = 100


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def make_lines(corpus: Path, target: Path, rows: int) -> None:
    """Write lines, line by line: a child's peak memory is at first that of its parent."""
    number = 0
    with target.open("w", encoding="utf-8") as file:
        while number < rows:
            with corpus.open(encoding="utf-8") as lines:
                for line in itertools.islice(lines, rows - number):
                    file.write(f"{line.rstrip()} {number}\n")
                    number += 1


def build(python: str, lines: Path, index: Path) -> dict[str, Any]:
    command = [python, "-m", "promptcli", "index", "build", str(lines), "-o", str(index)]
    command += ["--rows", "lines", "--model", "mini-static", "--force", "--quiet"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": usage.ru_maxrss // 1024,
    }


def search(index: Path, lines: Path) -> None:
    """Open an index, answer once, then measure both ways."""
    import promptcli as pc

    with lines.open(encoding="utf-8") as file:
        step = max(1, sum(1 for _ in file) // QUERIES)
        file.seek(0)
        picked = itertools.islice(file, 0, None, step)
        queries = [" ".join(line.split()[:8]) for line in picked][:QUERIES]
    encoder = pc.load("mini-static", dtype="auto")
    encoder.encode(queries)
    start = time.perf_counter()
    way_in = "open" if hasattr(pc.SentenceIndex, "open") else "load"  # as it was before
    opened = getattr(pc.SentenceIndex, way_in)(index, encoder)
    opened.search(queries[0], 10)
    found: dict[str, Any] = {"open_ms": round(1e3 * (time.perf_counter() - start), 1)}
    for by in ("meaning", "both"):
        for query in queries:
            opened.search(query, 10, by=by)
        took = []
        for query in queries * max(1, QUERIES // len(queries)):
            start = time.perf_counter()
            opened.search(query, 10, by=by)
            took.append(time.perf_counter() - start)
        found[f"{by}_ms"] = round(1e3 * statistics.median(took), 3)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    say(**found)


def add(python: str, index: Path) -> float:
    """Add rows to an index by the command line; return the seconds, imports included."""
    new = index.with_name("new.txt")
    new.write_text("".join(f"A new row about the number {number}.\n" for number in range(ADDED)))
    command = [python, "-m", "promptcli", "index", "add", str(index), str(new), "--quiet"]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - start, 2)


def search_alone(python: str, index: Path, lines: Path) -> dict[str, Any]:
    command = [python, __file__, str(lines), str(index), "--search"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--search", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.search:
        search(arguments.folder, arguments.lines)
        return
    folder, rows = arguments.folder, arguments.rows
    folder.mkdir(parents=True, exist_ok=True)
    lines = folder / f"{rows}.txt"
    if not lines.exists():
        make_lines(arguments.lines, lines, rows)
    indexes = {
        python: folder / f"{rows}-{number}" for number, python in enumerate(arguments.python)
    }
    for python, index in indexes.items():
        if not (arguments.keep and index.exists()):
            shutil.rmtree(index, ignore_errors=True)
            say(step="build", rows=rows, python=python, **build(python, lines, index))
        size = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
        say(step="disk", rows=rows, python=python, mb=round(size / 1e6, 1))
    for turn in range(arguments.turns):
        for python, index in list(indexes.items())[:: -1 if turn % 2 else 1]:
            found = search_alone(python, index, lines)
            say(step="search", rows=rows, turn=turn, python=python, **found)
    for python, index in indexes.items():
        copy = folder / "copy"
        shutil.copytree(index, copy)
        say(step="add", rows=rows, python=python, seconds=add(python, copy))
        shutil.rmtree(copy)


if __name__ == "__main__":
    main()
