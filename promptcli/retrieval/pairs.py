"""Near rows: groups of them within a set, and pairs of them between two sets.

All rows are compared, block by block, so no pair is missed. Equal rows have the cosine 1; a
threshold of 1 compares texts instead.
"""

import csv
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.arguments import as_texts
from promptcli.data.layouts import (
    GRADED_PAIRS,
    ID,
    LABELLED_PAIRS,
    PAIRS,
    ROW_NUMBERS,
    SENTENCES,
    TEXT,
    TRIPLETS,
    ColumnChoice,
    name_key,
)
from promptcli.data.rows import open_rows, sentences_of
from promptcli.data.vectors.precision import Floats
from promptcli.errors import UsageError, look_up, unknown_name_error
from promptcli.models import loading
from promptcli.notes import stage
from promptcli.retrieval.files import is_list
from promptcli.retrieval.new_rows import unit_rows
from promptcli.retrieval.ranking import NEAR_COSINE, SCORE_ROUNDING, Hit, Ranking, read_hits
from promptcli.retrieval.sentence_index import SentenceIndex, read_rows
from promptcli.retrieval.store import DATABASE, as_text
from promptcli.storage.files import atomic_path

if TYPE_CHECKING:
    from promptcli.models.loading import Model

#: How a row occurs in another set: with the same text, with the same text after ``normalise``, or
#: near another row.
Kind = Literal["exact", "normalised", "near"]
KINDS: tuple[Kind, ...] = ("exact", "normalised", "near")
Links = Literal["complete", "chain"]
#: Links -> whether every two rows of a group are near.
_IS_COMPLETE = {"complete": True, "chain": False}
#: Layouts of files that can be compared; all their sentences are rows.
_LAYOUTS = (TRIPLETS, PAIRS, LABELLED_PAIRS, GRADED_PAIRS, SENTENCES)
_ROWS_PER_BLOCK = 2048  # two blocks are compared at a time
_MAX_PAIRS = 20_000_000
_INVISIBLE_CATEGORY = "Cf"  # Unicode category of, for example, a byte order mark

Numbers = NDArray[np.int64]


class DuplicateGroup(list[Hit]):
    """Rows that repeat each other, earliest first; scores are cosines to the first."""

    def __init__(self, hits: Iterable[Hit], lowest: float) -> None:
        super().__init__(hits)
        self.lowest = lowest  #: lowest cosine between two rows of the group


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise UsageError(f"must be above 0 and at most 1, got {threshold}", parameter="threshold")


def _in_blocks(units: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield unit vectors in blocks, each with the number of its first row."""
    for start in range(0, len(units), _ROWS_PER_BLOCK):
        yield start, units[start : start + _ROWS_PER_BLOCK]


def find_dups(
    index: Any,
    threshold: float = NEAR_COSINE,
    *,
    links: Links = "complete",
    differ: str | None = None,
    model: "Model | None" = None,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> list[DuplicateGroup]:
    """Return the groups of near-duplicates (two or more rows), largest first.

    Args:
        index: Rows to compare: an index or its folder; or, as for ``find_leaks``, a file of
            sentences, pairs or triplets, a stream, or a list of texts.
        threshold: Cosine from which two rows are near-duplicates, above 0 and at most 1; cosines
            are compared to six decimals. 1: rows are duplicates if their texts are equal.
        links: ``complete``: every two rows of a group are near-duplicates; the nearest are joined
            first. ``chain``: each row is a near-duplicate of some row in its group; two rows may be
            far apart.
        differ: ``numbers``: rows whose texts have different numbers are not duplicates.
        model: See ``find_leaks``.
        csv: See ``find_leaks``.
        skip_bad: See ``find_leaks``.

    Raises:
        NotFoundError: No such file.
        UsageError: An invalid threshold, or too many pairs reach it.
    """
    _check_threshold(threshold)
    is_complete = look_up("kind of links", links, _IS_COMPLETE)
    if differ not in (None, "numbers"):
        raise unknown_name_error("kind of difference", differ, ("numbers",))
    rows = _Rows.read(index, None, model, csv=csv, skip_bad=skip_bad)
    _encode([rows], None, model)
    if not rows.ids:
        return []
    # copies are grouped first, without comparing vectors; adding 0 turns -0.0 into 0.0
    contents: Sequence[Any] = [unit.tobytes() for unit in rows.units + np.float32(0)]
    if threshold == 1 and rows.has_texts():
        contents = rows.texts
    numbers: list[tuple[str, ...]] = [()] * len(contents)
    if differ is not None:
        numbers = [tuple(re.findall(r"\d+", text or "")) for text in rows.texts]
    copies: dict[Any, list[int]] = defaultdict(list)
    for index_of_row, content in enumerate(zip(contents, numbers, strict=True)):
        copies[content].append(index_of_row)
    first_copies = [indices[0] for indices in copies.values()]
    labels = np.arange(len(first_copies))
    if threshold < 1:
        near_pairs = _find_near_pairs(rows.units[first_copies], threshold - SCORE_ROUNDING)
        if differ is not None:
            distinct = [numbers[first] for first in first_copies]
            near_pairs = [pair for pair in near_pairs if distinct[pair[0]] == distinct[pair[1]]]
        _link_pairs(labels, near_pairs, complete=is_complete)
    groups: dict[int, list[int]] = defaultdict(list)
    for label, indices in zip(labels.tolist(), copies.values(), strict=True):
        if rows.units[indices[0]].any():  # a row without a known token has no duplicates
            groups[label] += indices
    repeated = [sorted(indices) for indices in groups.values() if len(indices) > 1]
    repeated.sort(key=lambda indices: (-len(indices), indices[0]))
    return [_make_group(rows, np.array(indices), are_equal=threshold == 1) for indices in repeated]


def _find_near_pairs(units: Floats, lowest: float) -> list[tuple[int, int]]:
    """Return the pairs of rows with a cosine of at least ``lowest``, nearest first."""
    firsts = [np.empty(0, np.int64)]
    seconds = [np.empty(0, np.int64)]
    scores = [np.empty(0, np.float32)]
    count = 0
    with stage("dups", len(units)) as advance:
        for start, left in _in_blocks(units):
            for offset, right in _in_blocks(units[start:]):
                cosines = left @ right.T
                first, second = np.nonzero(cosines >= lowest)
                is_pair = first < second + offset  # counts a pair once, and no row with itself
                first, second = first[is_pair], second[is_pair]
                count += len(first)
                if count > _MAX_PAIRS:
                    raise UsageError(
                        f"more than {_MAX_PAIRS:,} pairs reach {lowest:.3g}; raise the threshold",
                        parameter="threshold",
                    )
                firsts.append(start + first)
                seconds.append(start + offset + second)
                scores.append(cosines[first, second])
            advance(len(left))
    first, second = np.concatenate(firsts), np.concatenate(seconds)
    order = np.lexsort((second, first, -np.concatenate(scores)))
    return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def _link_pairs(labels: Numbers, pairs: Iterable[tuple[int, int]], *, complete: bool) -> None:
    """Give all rows of a group the label of one row.

    With complete links (agglomerative clustering with complete linkage, cut at a threshold), two
    groups merge once all pairs of their rows have come; with chains, at the first pair.

    Args:
        labels: (n,) the rows' own numbers, changed in place.
        pairs: Near rows, nearest first.
        complete: Whether every two rows of a group are near.
    """
    members = {int(row): [int(row)] for row in labels}
    pair_counts: dict[int, dict[int, int]] = defaultdict(dict)  # by the labels of two groups
    for first, second in pairs:
        target, source = int(labels[first]), int(labels[second])
        if target == source:
            continue
        count = pair_counts[target].get(source, 0) + 1
        if complete and count < len(members[target]) * len(members[source]):
            pair_counts[target][source] = pair_counts[source][target] = count
            continue
        if len(members[target]) < len(members[source]):
            target, source = source, target
        for third, count in pair_counts.pop(source, {}).items():
            del pair_counts[third][source]
            if third != target:
                count += pair_counts[target].get(third, 0)
                pair_counts[target][third] = pair_counts[third][target] = count
        pair_counts[target].pop(source, None)
        labels[members[source]] = target
        members[target] += members.pop(source)


def _make_group(rows: "_Rows", indices: Numbers, *, are_equal: bool) -> DuplicateGroup:
    """Return rows as a group, with their cosines to the first row."""
    units = rows.units[indices]
    cosines = np.minimum(units @ units[0], 1)
    lowest = min(float((block @ units.T).min()) for _, block in _in_blocks(units))
    equals_first = (units == units[0]).all(axis=1)
    cosines[equals_first] = 1
    if are_equal or equals_first.all():
        cosines[:] = lowest = 1
    return DuplicateGroup(rows.hits(indices, cosines), min(lowest, 1.0))


def write_without_duplicates(
    index: SentenceIndex, groups: Sequence[Sequence[Hit]], keep: str, target: Path
) -> int:
    """Write an index to a CSV file with one row per group; return how many rows were left out.

    Args:
        index: The rows.
        groups: Groups of near-duplicates.
        keep: The row to keep of each group: ``first``, ``last``, or the name of a column, whose
            highest value is kept.
        target: The file.
    """
    store = index.store
    with store.reading():
        names = list(store.settings.types)
        rows = list(store.all_rows())
        columns = store.columns([row.key for row in rows])
    kept_ids = {str(hit.id) for hit in _choose_hits(groups, keep, names)}
    dropped_ids = {str(hit.id) for group in groups for hit in group} - kept_ids
    reading = index.load_reading()
    id_field, text_field = reading.id_field, reading.text_field
    if id_field in (None, ROW_NUMBERS):
        id_field = ID
    if text_field is None or "," in text_field:  # joined columns are already among ``names``
        text_field = TEXT
    with atomic_path(target) as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([id_field, text_field, *names])
        for row, cells in zip(rows, columns, strict=True):
            row_id = str(row.displayed_id)
            if row_id not in dropped_ids:
                values = [as_text(cells.get(name, "")) for name in names]
                writer.writerow([row_id, row.text, *values])
    return len(dropped_ids)


def _choose_hits(groups: Sequence[Sequence[Hit]], keep: str, names: Sequence[str]) -> list[Hit]:
    """Return the row of each group to keep; see ``write_without_duplicates``."""
    column = check_keep(keep, names)
    if column is None:
        return [group[0 if keep == "first" else -1] for group in groups]

    def value_of(hit: Hit) -> Any:
        value = (hit.columns or {}).get(column)
        return value is not None, value

    return [max(group, key=value_of) for group in groups]


def check_keep(keep: str, names: Collection[str]) -> str | None:
    """Return the column that ``keep`` names; None for ``first`` and ``last``."""
    if keep in ("first", "last"):
        return None
    by_key = {name_key(name): name for name in names}
    if name_key(keep) not in by_key:
        raise unknown_name_error("column", keep, ("first", "last", *names))
    return by_key[name_key(keep)]


class Leak(NamedTuple):
    """A row of the compared set, and the row of the other set that it repeats."""

    kind: Kind
    id: int | str
    text: str | None
    source: Hit  #: the first row with that text, with the score 1; else the nearest row


@dataclass(frozen=True)
class Leaks:
    """The rows of a set that also occur in another set, in order."""

    found: list[Leak]
    rows: int  #: number of rows with text in the compared set
    source_rows: int  #: number of rows with text in the other set
    threshold: float | None  #: cosine from which a row is near; None if only texts were compared

    @property
    def counts(self) -> dict[Kind, int]:
        """The number of leaked rows, by kind."""
        counts = Counter(leak.kind for leak in self.found)
        return {kind: counts[kind] for kind in KINDS}

    @property
    def share(self) -> float:
        """The share of leaked rows."""
        return len(self.found) / self.rows if self.rows else 0.0


def normalise(text: str) -> str:
    """Return a text whose differences in Unicode form, case and white space are removed.

    The result is in Unicode's NFKC with case folded; invisible characters (soft hyphens, byte order
    marks) are removed, and runs of white space become one space.

    Example:
        >>> normalise(" Ｃａｆｅ\u0301  CLOSED ")
        'café closed'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(
            character
            for character in text
            if unicodedata.category(character) != _INVISIBLE_CATEGORY
        )
    folded = text.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded)
    return " ".join(folded.split())


@dataclass
class _Rows:
    """The rows of a set: ids, texts or None, and vectors once they are computed."""

    ids: list[Any]
    texts: list[Any]
    units: Any = None  #: (n, d)
    index: SentenceIndex | None = None  #: the index of the rows
    keys: Any = None  #: (n,) the rows' keys in the index

    @classmethod
    def read(
        cls,
        source: Any,
        index: SentenceIndex | None,
        model: "Model | None",
        *,
        csv: Mapping[str, Any] | None,
        skip_bad: bool,
    ) -> "_Rows":
        """Return the rows of an index, a file or a list; a file is read like the files of
        ``index``.
        """
        if isinstance(source, str | Path) and (Path(source) / DATABASE).is_file():
            source = SentenceIndex.open(source, model)
        if isinstance(source, SentenceIndex):
            if index is not None:
                source.load_origin().check_same(index.load_origin(), str(source))
            return cls.of_index(source)
        rows = cls([], [])
        if index is None and is_list(source):
            for number, text in enumerate(as_texts(source)):
                if text.strip():
                    rows.ids.append(number)
                    rows.texts.append(text)
            return rows
        if index is None:  # a file of sentences, pairs or triplets
            layouts = (SENTENCES,) if hasattr(source, "read") else _LAYOUTS  # streams hold text
            fields = ColumnChoice(layouts=layouts, remedy="")
            with open_rows(source, fields, csv=csv, skip_bad=skip_bad) as file:
                for row_id, text in sentences_of(file):
                    if text.strip():
                        rows.ids.append(row_id)
                        rows.texts.append(text)
            return rows
        vectors = []
        for block in read_rows(index, source, csv=csv, skip_bad=skip_bad):
            rows.ids += block.ids
            rows.texts += block.texts
            if block.vectors is not None:
                vectors.append(block.vectors)
        if vectors:
            rows.units = np.concatenate(vectors)
        return rows

    @classmethod
    def of_index(cls, index: SentenceIndex) -> "_Rows":
        """Return the rows of an index."""
        store = index.store
        with store.reading():
            rows = list(store.all_rows())
            keys = np.array([row.key for row in rows], np.int64)
            ids = [row.id for row in rows]
            texts = [row.text for row in rows]
            return cls(ids, texts, store.vectors(keys), index, keys)

    def has_texts(self) -> bool:
        """Return whether the rows have texts."""
        return bool(self.texts) and self.texts[0] is not None

    def hits(self, indices: Any, scores: Any) -> list[Hit]:
        """Return rows with their scores."""
        if self.index is None:
            rows = zip(indices, scores, strict=True)
            return [Hit(1, self.ids[row], self.texts[row], float(score)) for row, score in rows]
        store = self.index.store
        with store.reading():
            return read_hits(store, Ranking(self.keys[indices], np.array(scores, np.float32)))


def find_leaks(
    file: Any,
    against: Any,
    threshold: float = NEAR_COSINE,
    *,
    model: "Model | None" = None,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> Leaks:
    """Find the rows of a set that also occur in another set, such as test sentences in the training
    data.

    A row occurs with the same text, with the same text up to case, white space and Unicode form, or
    near another row by cosine.

    Every sentence of pairs and triplets is a row, with the id ROW:COLUMN; rows are counted from 0.
    Either argument may be an index. What is compared with an index is read as if it was added to
    the index; vectors of the index's encoder are allowed.

    Args:
        file: Sentences, pairs or triplets, e.g. the training data; a file, a stream, a list of
            texts or an index.
        against: Sentences to look up in ``file``, e.g. the test set.
        threshold: Cosine from which a row is near; 1: only texts are compared, without a model.
        model: An encoder, or an argument of ``load``; None: the index's, or ``mini-multi``.
        csv: How tables are written, see ``embed``.
        skip_bad: Leave out unreadable rows, and say how many and why.

    Raises:
        NotFoundError: No such file.
        UsageError: A file without sentences, or a threshold that is not allowed.
    """
    _check_threshold(threshold)
    source = _Rows.read(file, None, model, csv=csv, skip_bad=skip_bad)
    other = _Rows.read(against, source.index, model, csv=csv, skip_bad=skip_bad)
    leaks = _match_texts(source, other)
    unmatched = [row for row in range(len(other.ids)) if row not in leaks]
    needs_texts_only = threshold == 1 and source.has_texts()
    is_compared = bool(unmatched and source.ids and not needs_texts_only)
    if is_compared:
        rest = _Rows(
            [other.ids[row] for row in unmatched],
            [other.texts[row] for row in unmatched],
            None if other.units is None else other.units[unmatched],
        )
        _encode([rest, source], source.index or other.index, model)
        nearest, highest = _find_nearest(source.units, rest.units)
        near = np.flatnonzero(highest >= threshold - SCORE_ROUNDING)
        hits = source.hits(nearest[near], np.minimum(highest[near], 1))
        for row, hit in zip(near.tolist(), hits, strict=True):
            leaks[unmatched[row]] = Leak("near", rest.ids[row], rest.texts[row], hit)
    found = [leaks[row] for row in sorted(leaks)]
    return Leaks(found, len(other.ids), len(source.ids), threshold if is_compared else None)


def _encode(sets: Sequence[_Rows], index: SentenceIndex | None, model: "Model | None") -> None:
    """Encode the sets that have no vectors, with the encoder of an index or with a model."""
    sets = [rows for rows in sets if rows.units is None]
    count = sum(len(rows.ids) for rows in sets)
    if not count:
        return
    if index is not None:
        documents = index.open_document_encoder()
    else:
        encoder = loading.open_encoder(loading.or_search_model(model), dtype="auto", rows=count)
        documents = encoder.in_role("document", report=True)
    with stage("embed", count) as advance:
        for rows in sets:
            rows.units = unit_rows(documents.encode(list(rows.texts), progress=advance))


def _match_texts(source: _Rows, other: _Rows) -> dict[int, Leak]:
    """Return the rows of ``other`` whose text is in ``source``, by row number."""
    if not (source.has_texts() and other.has_texts()):
        return {}
    exact: dict[str, int] = {}
    normalised: dict[str, int] = {}
    for row, text in enumerate(source.texts):
        exact.setdefault(text, row)
        normalised.setdefault(normalise(text), row)
    kinds: dict[int, Kind] = {}
    source_rows: list[int] = []
    for row, text in enumerate(other.texts):
        if text in exact:
            kinds[row] = "exact"
            source_rows.append(exact[text])
        elif (normal := normalise(text)) in normalised:
            kinds[row] = "normalised"
            source_rows.append(normalised[normal])
    leaks = {}
    hits = source.hits(source_rows, [1.0] * len(source_rows))
    for (row, kind), hit in zip(kinds.items(), hits, strict=True):
        leaks[row] = Leak(kind, other.ids[row], other.texts[row], hit)
    return leaks


def _find_nearest(units: Floats, others: Floats) -> tuple[Numbers, Floats]:
    """Return the nearest row of ``units`` (n, d) to each of ``others`` (m, d), and its cosine."""
    nearest = np.zeros(len(others), np.int64)
    highest = np.full(len(others), -2, np.float32)
    with stage("dups", len(units)) as advance:
        for start, block in _in_blocks(units):
            for first, other_block in _in_blocks(others):
                cosines = other_block @ block.T
                best = cosines.argmax(axis=1)
                scores = cosines[np.arange(len(best)), best]
                is_higher = scores > highest[first : first + _ROWS_PER_BLOCK]
                rows = first + np.flatnonzero(is_higher)
                highest[rows] = scores[is_higher]
                nearest[rows] = start + best[is_higher]
            advance(len(block))
    return nearest, highest
