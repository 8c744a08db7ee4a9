"""Write a SentEval folder with a sample of the pairs of each STS task, for models that are too slow
for all of them.

    python benchmarks/sts_sample.py DATA FOLDER --pairs 500
    promptcli reproduce line --backbone MODEL --data-dir FOLDER

N pairs of each test set are drawn at random, of all subsets of a year together; the same seed draws
the same pairs. Pairs of STS12 to STS16 that are not drawn lose their score, as the pairs of STS15
that nobody scored; those of STS-B and SICK are left out.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

#: A task's folder in STS, and its file of pairs if it is one table.
YEARS = ("STS12-en-test", "STS13-en-test", "STS14-en-test", "STS15-en-test", "STS16-en-test")
TABLES = (("STS/STSBenchmark", "sts-test.csv", 0), ("SICK", "SICK_test_annotated.txt", 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="SentEval's `downstream` folder")
    parser.add_argument("folder", type=Path, help="where the sample is written")
    parser.add_argument("--pairs", type=int, default=500, help="of each task (default: 500)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for year in YEARS:
        if (arguments.data / "STS" / year).is_dir():
            sample_year(arguments.data / "STS" / year, arguments.folder / "STS" / year, arguments)
    for folder, file, headers in TABLES:
        shutil.copytree(
            arguments.data / folder, arguments.folder / folder, copy_function=copy_writable
        )
        path = arguments.folder / folder / file
        lines = path.read_bytes().splitlines(keepends=True)
        kept = drawn(range(headers, len(lines)), arguments)
        path.write_bytes(b"".join(lines[:headers] + [lines[row] for row in kept]))


def sample_year(source: Path, target: Path, arguments: argparse.Namespace) -> None:
    """Write a year's files, without the scores of the pairs that are not drawn."""
    target.mkdir(parents=True)
    scored = list[tuple[str, int]]()
    scores = dict[str, list[str]]()
    for path in sorted(source.iterdir()):
        copy_writable(path, target / path.name)
        inputs = path.with_name(path.name.replace(".gs.", ".input."))
        if ".gs." in path.name and ".gs.ALL." not in path.name and inputs.is_file():
            scores[path.name] = path.read_text(encoding="utf-8").splitlines()
            scored += [(path.name, row) for row, line in enumerate(scores[path.name]) if line]
    kept = {scored[place] for place in drawn(range(len(scored)), arguments)}
    for name, lines in scores.items():
        left = [line if (name, row) in kept else "" for row, line in enumerate(lines)]
        (target / name).write_text("\n".join(left) + "\n", encoding="utf-8")


def drawn(places: Sequence[int], arguments: argparse.Namespace) -> list[int]:
    """Return the drawn places in order."""
    order = np.random.default_rng(arguments.seed).permutation(len(places))[: arguments.pairs]
    return sorted(places[place] for place in order.tolist())


def copy_writable(source: str | Path, target: str | Path) -> None:
    shutil.copyfile(source, target)


if __name__ == "__main__":
    main()
