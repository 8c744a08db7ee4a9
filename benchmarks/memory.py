"""Peak memory of ``promptcli embed`` on 20,000 and on 400,000 lines of a corpus, and their ratio.

    python benchmarks/memory.py CORPUS [--rows 20000 400000] [OPTIONS OF EMBED]

A corpus of fewer lines is repeated. The peak is the resident set of the whole process, torch and
model included.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, help="text file, one sentence a line")
    parser.add_argument(
        "--rows", type=int, nargs=2, default=(20_000, 400_000), help="lines of the two runs"
    )
    parser.add_argument("--format", default=".npy", help="extension of the vector file")
    arguments, options = parser.parse_known_args()
    peaks = [peak(arguments.corpus, rows, arguments.format, options) for rows in arguments.rows]
    for rows, found in zip(arguments.rows, peaks, strict=True):
        print(f"{rows:>9,} lines  {found / 2**20:7.1f} MiB")
    print(f"ratio {peaks[1] / peaks[0]:.3f}")


def peak(corpus: Path, rows: int, kind: str, options: list[str]) -> int:
    """Return the peak resident set in bytes of one run."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "corpus.txt")
        with text.open("wb") as file:
            file.writelines(itertools.islice(repeated(corpus), rows))
        command = [
            sys.executable,
            "-m",
            "promptcli",
            "embed",
            str(text),
            "-o",
            f"{folder}/v{kind}",
            *options,
        ]
        process = subprocess.Popen(command)
        # this process is far smaller than its child, so the peak is the child's
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def repeated(corpus: Path):
    """Yield the lines of a corpus, from the start again after the last."""
    while True:
        with corpus.open("rb") as file:
            for line in file:
                yield line if line.endswith(b"\n") else line + b"\n"


if __name__ == "__main__":
    main()
