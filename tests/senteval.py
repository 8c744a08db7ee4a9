"""SentEval's STS files with a test's own pairs, (first, second, gold) each, and its transfer
tasks.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path


def write_pairs(root: Path, task: str, pairs: Iterable[tuple[str, str, float]], part: str) -> None:
    """Write a subset of ``STS12`` to ``STS16``, a split of ``STS-B``, or a file of ``SICK-R``,
    which alone is cased.
    """
    rows = (
        list(pairs)
        if task == "SICK-R"
        else [(one.lower(), other.lower(), gold) for one, other, gold in pairs]
    )
    if task == "SICK-R":
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        lines = [
            f"{n}\t{one}\t{other}\t{gold}\tNEUTRAL\n" for n, (one, other, gold) in enumerate(rows)
        ]
        files = {f"SICK/SICK_{part}.txt": [header, *lines]}
    elif task == "STS-B":
        lines = [f"genre\tfile\t2015\t1\t{gold}\t{one}\t{other}\n" for one, other, gold in rows]
        files = {f"STS/STSBenchmark/sts-{part}.csv": lines}
    else:
        files = {
            f"STS/{task}-en-test/STS.input.{part}.txt": [
                f"{one}\t{other}\n" for one, other, _ in rows
            ],
            f"STS/{task}-en-test/STS.gs.{part}.txt": [f"{gold}\n" for *_, gold in rows],
        }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(content))


GOOD = [
    "a fine day",
    "what a good song",
    "she loved the river",
    "a bright and warm room",
    "he likes this town",
]
BAD = [
    "a dull day",
    "what a bad song",
    "she feared the river",
    "a dark and cold room",
    "he hates this town",
]
KINDS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


def sentences(kind: Sequence[str], count: int) -> list[str]:
    return [
        f"{kind[n % len(kind)]} number {'abcdefghij'[n % 10]} {'xyz'[n % 3]}" for n in range(count)
    ]


def write_transfer(root: Path) -> None:
    """Write all seven transfer tasks in SentEval's formats, with our own sentences."""
    files: dict[str, list[str]] = {}
    for task, good, bad in (
        ("MR", "rt-polarity.pos", "rt-polarity.neg"),
        ("CR", "custrev.pos", "custrev.neg"),
        ("SUBJ", "subj.objective", "subj.subjective"),
        ("MPQA", "mpqa.pos", "mpqa.neg"),
    ):
        files[f"{task}/{good}"] = [f"{line} \n" for line in sentences(GOOD, 20)]
        files[f"{task}/{bad}"] = [f"{line} \n" for line in sentences(BAD, 20)]
    for split, count in (("train", 40), ("dev", 10), ("test", 10)):
        rows = sentences([GOOD[0], BAD[0], GOOD[1], BAD[1]], count)
        files[f"SST/binary/sentiment-{split}"] = [
            f"{line} \t{n % 2}\n" for n, line in enumerate(rows)
        ]
    for name, count in (("train_5500", 60), ("TREC_10", 12)):
        rows = [
            f"{KINDS[n % 6]}:kind What 's {KINDS[n % 6].lower()} `` {n} '' ?\n"
            for n in range(count)
        ]
        files[f"TREC/{name}.label"] = rows
    for split, count in (("train", 40), ("test", 10)):
        pairs = [
            (n % 2, GOOD[n % 5], GOOD[n % 5] + "!" if n % 2 else BAD[(n + 1) % 5])
            for n in range(count)
        ]
        rows = [
            f'{label}\t{n}\t{n}\t{one}\t"{other}\r\n' for n, (label, one, other) in enumerate(pairs)
        ]
        files[f"MRPC/msr_paraphrase_{split}.txt"] = [
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n",
            *rows,
        ]
    for name, lines in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes("".join(lines).encode())
