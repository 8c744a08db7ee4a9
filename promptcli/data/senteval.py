"""Reading STS tasks from a SentEval `downstream` folder, official SemEval files included. Knows no encoder.

Every quirk of the native formats is met here: line-aligned gold with empty lines, unbalanced quotes, several columns.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from promptcli.data.senteval_folder import existing, read_file_lines, senteval_root
from promptcli.data.sts import SICK, WHOLE, Loaded, Pairs, Protocol, STSTask, TaskName, protocol_named
from promptcli.errors import NotFoundError, UsageError

_BENCHMARK = ("train", "dev", "test")
_UPPER_CASE = re.compile("[A-Z]")


def load_folder(data_dir: Path, names: Sequence[TaskName], protocol: str) -> Loaded:
    """Read tasks from a SentEval `downstream` folder (holding STS/ and SICK/), or a folder that holds one.

    Args:
        data_dir: The folder, or one with a `senteval`, `downstream` or `data/downstream` folder inside.
        names: The tasks wanted.
        protocol: A row of ``PROTOCOLS``.

    Raises:
        NotFoundError: there is no such folder.
        UsageError: a malformed file, by name and line.
    """
    root, row = senteval_root(data_dir, ("STS", "SICK")), protocol_named(protocol)
    tasks, missing = [], {}
    for name in names:
        try:
            subsets = _load_subsets(root, name, row)
        except NotFoundError as error:
            missing[str(name)] = str(error)
            continue
        tasks.append(STSTask(name.task, name.split, protocol, _text_of(name, subsets), subsets))
    return Loaded(tasks, missing)


def _load_subsets(root: Path, name: TaskName, protocol: Protocol) -> dict[str, Pairs]:
    if name.task == "SICK-R":
        files = SICK if name in WHOLE else protocol.sick
        return {split: _read_sick(existing(root / "SICK" / file)) for split, file in files.items()}
    if name.task == "STS-B":
        folder = root / "STS" / "STSBenchmark"
        splits = _BENCHMARK if name in WHOLE else (name.split,)
        return {split: _read_benchmark(existing(folder / f"sts-{split}.csv")) for split in splits}
    return _read_year(existing(root / "STS" / f"{name.task}-en-test"))


def _text_of(name: TaskName, subsets: dict[str, Pairs]) -> str:
    """Return what the folder's text is: SentEval's own is lower-cased, but for SICK; official files are raw."""
    sentences = (sentence for part in subsets.values() for sentence in (*part.first, *part.second))
    if not any(_UPPER_CASE.search(sentence) for sentence in sentences):
        return "as in the folder, lower-cased"
    return "as in the folder, cased" if name.task == "SICK-R" else "raw text, as in the folder"


_INPUT = re.compile(r"(STS(?:\d{4})?)\.input\.(.+)\.txt")
#: Files that are no subsets: all of them together, and the one that was left out for its licence.
_NO_SUBSETS = {"ALL", "SMT"}


def _read_year(folder: Path) -> dict[str, Pairs]:
    """Read `STS.input.NAME.txt` (2 columns or more) with the line-aligned scores of `STS.gs.NAME.txt`."""
    subsets = {}
    for path in sorted(folder.iterdir()):
        match = _INPUT.fullmatch(path.name)
        if match is None or match[2] in _NO_SUBSETS:
            continue
        gold_path = folder / f"{match[1]}.gs.{match[2]}.txt"
        if not gold_path.is_file():
            raise UsageError(f"{path}: its scores, {gold_path.name}, are not beside it")
        subsets[match[2]] = _read_subset(path, gold_path)
    if not subsets:
        raise NotFoundError(f"{folder} holds no STS.input.*.txt")
    return subsets


def _read_subset(path: Path, gold_path: Path) -> Pairs:
    inputs, golds = read_file_lines(path), read_file_lines(gold_path)
    while inputs and not inputs[-1].strip():
        inputs.pop()
    if len(golds) < len(inputs) or any(line.strip() for line in golds[len(inputs) :]):
        while golds and not golds[-1].strip():
            golds.pop()
        raise UsageError(f"{gold_path}:{len(golds)}: {len(golds)} scores for the {len(inputs)} lines of {path.name}")
    rows = []
    for number, (line, gold) in enumerate(zip(inputs, golds, strict=False), start=1):
        if not gold.strip():  # STS15 and STS16: most pairs were never scored
            continue
        fields = line.split("\t")
        if len(fields) < 2:
            raise UsageError(f"{path}:{number}: expected two sentences with a tab between them")
        rows.append((fields[0], fields[1], _score(gold, gold_path, number)))
    return _pairs(rows, gold_path)


def _read_benchmark(path: Path) -> Pairs:
    """Read STS-B: tabs in spite of `.csv`, no header, score in column 5, sentences in 6 and 7, licences after."""
    rows = []
    for number, fields in _table(path):
        if len(fields) < 7:
            raise UsageError(f"{path}:{number}: expected 7 columns or more with tabs between them, found {len(fields)}")
        rows.append((fields[5], fields[6], _score(fields[4], path, number)))
    return _pairs(rows, path)


def _read_sick(path: Path) -> Pairs:
    """Read a SICK file: tab-separated, the header names the columns."""
    table = _table(path)
    header = [field.strip() for field in next(table, (1, []))[1]]
    wanted = ("sentence_A", "sentence_B", "relatedness_score")
    if not set(wanted) <= set(header):
        raise UsageError(f"{path}:1: expected a header with the columns {', '.join(wanted)}")
    first, second, score = (header.index(column) for column in wanted)
    rows = []
    for number, fields in table:
        if len(fields) < len(header):
            raise UsageError(f"{path}:{number}: expected {len(header)} columns, found {len(fields)}")
        rows.append((fields[first], fields[second], _score(fields[score], path, number)))
    return _pairs(rows, path)


def _table(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of the lines that are not blank; quotes are text, since they come unbalanced."""
    return ((number, line.split("\t")) for number, line in enumerate(read_file_lines(path), start=1) if line.strip())


def _score(text: str, path: Path, number: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise UsageError(f"{path}:{number}: the score {text.strip()!r} is no number")
    return value


def _pairs(rows: Sequence[tuple[str, str, float]], path: Path) -> Pairs:
    """Put rows together; each sentence's words are joined by one blank, as SentEval does."""
    if not rows:
        raise UsageError(f"{path}: holds no scored pairs")
    first, second, gold = zip(*rows, strict=True)
    return Pairs(
        [" ".join(sentence.split()) for sentence in first],
        [" ".join(sentence.split()) for sentence in second],
        np.array(gold, dtype=np.float64),
    )
