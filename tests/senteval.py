"""SentEval's STS files with a test's own pairs, (first, second, gold) each."""

from collections.abc import Iterable
from pathlib import Path


def write_pairs(root: Path, task: str, pairs: Iterable[tuple[str, str, float]], part: str) -> None:
    """Write a subset of ``STS12`` to ``STS16``, a split of ``STS-B``, or a file of ``SICK-R``, which alone is cased."""
    rows = list(pairs) if task == "SICK-R" else [(one.lower(), other.lower(), gold) for one, other, gold in pairs]
    if task == "SICK-R":
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        lines = [f"{n}\t{one}\t{other}\t{gold}\tNEUTRAL\n" for n, (one, other, gold) in enumerate(rows)]
        files = {f"SICK/SICK_{part}.txt": [header, *lines]}
    elif task == "STS-B":
        lines = [f"genre\tfile\t2015\t1\t{gold}\t{one}\t{other}\n" for one, other, gold in rows]
        files = {f"STS/STSBenchmark/sts-{part}.csv": lines}
    else:
        files = {
            f"STS/{task}-en-test/STS.input.{part}.txt": [f"{one}\t{other}\n" for one, other, _ in rows],
            f"STS/{task}-en-test/STS.gs.{part}.txt": [f"{gold}\n" for *_, gold in rows],
        }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(content))
