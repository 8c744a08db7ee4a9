"""Pairs of near rows: within a set, in groups, and between two sets.

All rows are compared, block by block, so no pair is missed. Equal rows have the cosine 1; a
threshold of 1 compares texts instead.
"""

import csv
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from promptcli.data.layouts import (
    GRADED_PAIRS,
    ID,
    LABELLED_PAIRS,
    NONE,
    PAIRS,
    SENTENCES,
    TEXT,
    TRIPLETS,
    ColumnChoice,
    name_key,
)
from promptcli.data.rows import open_rows, sentences_of
from promptcli.data.vectors.precision import Floats
from promptcli.errors import UsageError, unknown
from promptcli.models import loading
from promptcli.notes import stage
from promptcli.retrieval.files import unit_rows
from promptcli.retrieval.hits import read_hits
from promptcli.retrieval.ranking import NEAR, ROUNDING, Hit, Ranking
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.retrieval.store import DATABASE, as_text, row_name
from promptcli.storage.files import atomic_path

if TYPE_CHECKING:
    from promptcli.models.loading import Model

#: How a row occurs in another set: same text; same normalised text; near another row.
Kind = Literal["exact", "normalised", "near"]
KINDS: tuple[Kind, ...] = ("exact", "normalised", "near")
Links = Literal["complete", "chain"]
#: Supported layouts; all their sentences are compared.
_LAYOUTS = (TRIPLETS, PAIRS, LABELLED_PAIRS, GRADED_PAIRS, SENTENCES)
_ROWS_AT_ONCE = 2048  # rows per block; two blocks are compared at once
_MOST_PAIRS = 20_000_000
_FORMAT = "Cf"  # Unicode category of invisible characters, such as a byte order mark

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
    for start in range(0, len(units), _ROWS_AT_ONCE):
        yield start, units[start : start + _ROWS_AT_ONCE]


# Within a set


def find_dups(
    index: SentenceIndex,
    threshold: float = NEAR,
    *,
    links: Links = "complete",
    differ: str | None = None,
) -> list[DuplicateGroup]:
    """Return the groups of near-duplicates (two or more rows), largest first.

    Args:
        index: Rows to compare.
        threshold: Cosine from which two rows are near-duplicates, above 0 and at most 1; cosines
            are compared to six decimals. 1: the texts are equal.
        links: ``complete``: every two rows of a group are near-duplicates; the nearest are joined
            first. ``chain``: each row is a near-duplicate of some row in its group; two rows may be
            far apart.
        differ: ``numbers``: rows whose numbers differ are not duplicates.

    Raises:
        UsageError: An invalid threshold, or too many pairs reach it.
    """
    _check_threshold(threshold)
    if links not in ("complete", "chain"):
        raise unknown("links", links, ("complete", "chain"))
    if differ not in (None, "numbers"):
        raise unknown("differ", differ, ("numbers",))
    rows = _Rows.of_index(index)
    numbers = [tuple(re.findall(r"\d+", text or "")) if differ else () for text in rows.texts]
    compared: Sequence[Any] = [unit.tobytes() for unit in rows.units + np.float32(0)]  # no -0.0
    if threshold == 1 and rows.has_texts:
        compared = rows.texts
    copies: dict[Any, list[int]] = defaultdict(list)
    for place, content in enumerate(zip(compared, numbers, strict=True)):
        copies[content].append(place)
    distinct = [places[0] for places in copies.values()]
    label = np.arange(len(distinct))
    if threshold < 1:
        pairs = _find_near_pairs(rows.units[distinct], threshold - ROUNDING)
        of_distinct = [numbers[place] for place in distinct]
        near = (pair for pair in pairs if of_distinct[pair[0]] == of_distinct[pair[1]])
        _link_pairs(label, near, complete=links == "complete")
    groups: dict[int, list[int]] = defaultdict(list)
    for group, places in zip(label.tolist(), copies.values(), strict=True):
        if rows.units[places[0]].any():  # a row without a known token has no duplicates
            groups[group] += places
    repeated = [sorted(places) for places in groups.values() if len(places) > 1]
    repeated.sort(key=lambda places: (-len(places), places[0]))
    return [_make_group(rows, np.array(places), are_equal=threshold == 1) for places in repeated]


def _find_near_pairs(units: Floats, least: float) -> list[tuple[int, int]]:
    """Return the pairs of rows with a cosine of at least ``least``, nearest first."""
    found = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    count = 0
    with stage("dups", len(units)) as advance:
        for start, left in _in_blocks(units):
            for after, right in _in_blocks(units[start:]):
                cosines = left @ right.T
                one, other = np.nonzero(cosines >= least)
                is_pair = one < other + after
                one, other = one[is_pair], other[is_pair]
                count += len(one)
                if count > _MOST_PAIRS:
                    raise UsageError(
                        f"more than {_MOST_PAIRS:,} pairs reach {least:.3g}; give a higher one",
                        parameter="threshold",
                    )
                found.append((one + start, other + start + after, cosines[one, other]))
            advance(len(left))
    first, second, scores = map(np.concatenate, zip(*found, strict=True))
    order = np.lexsort((second, first, -scores))
    return list(zip(first[order].tolist(), second[order].tolist(), strict=True))


def _link_pairs(label: Numbers, pairs: Iterable[tuple[int, int]], *, complete: bool) -> None:
    """Give all rows of a group one row's label.

    With complete links (agglomerative clustering with complete linkage, cut at a threshold) two
    clusters merge once all pairs of their rows have come; with chains, at the first pair.

    Args:
        label: (n,) the rows' own numbers, changed in place.
        pairs: Near rows, nearest first.
        complete: Whether every two rows of a group are near.
    """
    members = {int(row): [int(row)] for row in label}
    seen: dict[int, dict[int, int]] = defaultdict(dict)
    for first, second in pairs:
        one, other = int(label[first]), int(label[second])
        if one == other:
            continue
        count = seen[one].get(other, 0) + 1
        if complete and count < len(members[one]) * len(members[other]):
            seen[one][other] = seen[other][one] = count
            continue
        if len(members[one]) < len(members[other]):
            one, other = other, one
        for third, further in seen.pop(other, {}).items():
            del seen[third][other]
            if third != one:
                seen[one][third] = seen[third][one] = seen[one].get(third, 0) + further
        seen[one].pop(other, None)
        label[members[other]] = one
        members[one] += members.pop(other)


def _make_group(rows: "_Rows", places: Numbers, *, are_equal: bool) -> DuplicateGroup:
    """Return rows as a group, with their cosines to the first."""
    units = rows.units[places]
    cosines = np.minimum(units @ units[0], 1)
    lowest = min(float((block @ units.T).min()) for _, block in _in_blocks(units))
    is_first = (units == units[0]).all(axis=1)
    cosines[is_first] = 1
    if are_equal or is_first.all():
        cosines[:] = lowest = 1
    return DuplicateGroup(rows.hits(places, cosines), min(lowest, 1.0))


def write_without_duplicates(
    index: SentenceIndex, groups: Sequence[Sequence[Hit]], keep: str, target: Path
) -> int:
    """Write an index to a CSV file with one row per group; return how many rows were left out.

    Args:
        index: The rows.
        groups: Rows that repeat each other.
        keep: ``first``, ``last``, or the column whose highest value decides.
        target: The file.
    """
    store = index.store
    with store.reading():
        names = list(store.types)
        rows = list(store.all_rows())
        cells = store.columns([key for key, *_ in rows])
    kept = {str(hit.id) for hit in _choose_hits(groups, keep, names)}
    dropped = {str(hit.id) for group in groups for hit in group} - kept
    id_field, text_field = index.reading.id_field, index.reading.text_field
    if id_field in (None, NONE):
        id_field = ID
    if text_field is None or "," in text_field:  # joined columns are already among the others
        text_field = TEXT
    with atomic_path(target) as path, path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([id_field, text_field, *names])
        for (_, name, part, text), row in zip(rows, cells, strict=True):
            shown = str(row_name(name, part))
            if shown not in dropped:
                writer.writerow([shown, text, *(as_text(row.get(each, "")) for each in names)])
    return len(dropped)


def _choose_hits(groups: Sequence[Sequence[Hit]], keep: str, names: Sequence[str]) -> list[Hit]:
    """Return the row to keep of each group: the first, the last, or the one with the highest value
    of a column.
    """
    if keep in ("first", "last"):
        return [group[0 if keep == "first" else -1] for group in groups]
    by_key = {name_key(name): name for name in names}
    if name_key(keep) not in by_key:
        raise unknown("column", keep, ("first", "last", *names))
    column = by_key[name_key(keep)]

    def value_of(hit: Hit) -> Any:
        value = (hit.columns or {}).get(column)
        return value is not None, value

    return [max(group, key=value_of) for group in groups]


# Between two sets


class Leak(NamedTuple):
    """A row of the compared set, and the row of the other set that it repeats."""

    kind: Kind
    id: int | str
    text: str | None
    #: the first row with that text, score 1, or the nearest row
    source: Hit


@dataclass(frozen=True)
class Leaks:
    """The rows of a set that also occur in another set, in order."""

    found: list[Leak]
    rows: int  #: number of non-blank rows compared
    source_rows: int  #: number of non-blank rows in the other set
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
    """Return a text without differences of form, case and spaces.

    The result is in Unicode's NFKC with case folded; invisible characters (soft hyphens, byte order
    marks) are removed, and runs of white space become one space.

    Example:
        >>> normalise(" Ｃａｆｅ\u0301  CLOSED ")
        'café closed'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
        text = "".join(sign for sign in text if unicodedata.category(sign) != _FORMAT)
    folded = text.casefold()
    if not folded.isascii():
        folded = unicodedata.normalize("NFKC", folded)
    return " ".join(folded.split())


@dataclass
class _Rows:
    """The rows of a set: ids, texts or None, and vectors once they are known."""

    ids: Sequence[Any]
    texts: Sequence[Any]
    units: Any = None
    index: SentenceIndex | None = None
    keys: Any = None  #: in the index

    @classmethod
    def read(
        cls, source: Any, like: SentenceIndex | None, model: "Model | None", options: Any
    ) -> "_Rows":
        """Return the rows of an index or a file; a file is read like the rows of ``like``."""
        if isinstance(source, str | Path) and (Path(source) / DATABASE).is_file():
            source = SentenceIndex.open(source, model)
        if isinstance(source, SentenceIndex):
            if like is not None:
                source.origin.check_same(like.origin, str(source))
            return cls.of_index(source)
        if like is None:
            return cls.of_file(source, **options)
        blocks = like.read_rows(source, **options)
        vectors = [block.vectors for block in blocks if block.vectors is not None]
        return cls(
            [name for block in blocks for name in block.ids],
            [text for block in blocks for text in block.texts],
            np.concatenate(vectors) if vectors else None,
        )

    @classmethod
    def of_index(cls, index: SentenceIndex) -> "_Rows":
        """Return the rows of an index."""
        with index.store.reading():
            rows = list(index.store.all_rows())
            keys, ids, _, texts = zip(*rows, strict=True) if rows else ((), (), (), ())
            return cls(ids, texts, index.store.vectors(keys), index, np.array(keys, np.int64))

    @classmethod
    def of_file(cls, file: Any, *, csv: Mapping[str, Any] | None, skip_bad: bool) -> "_Rows":
        """Return the sentences of a file, also from pairs and triplets."""
        layouts = (SENTENCES,) if hasattr(file, "read") else _LAYOUTS  # streams hold text
        fields = ColumnChoice(layouts=layouts, remedy="")
        with open_rows(file, fields, csv=csv, skip_bad=skip_bad) as rows:
            filled = [(name, text) for name, text in sentences_of(rows) if text.strip()]
        return cls([name for name, _ in filled], [text for _, text in filled])

    def take(self, places: Sequence[int]) -> "_Rows":
        """Return some of the rows."""
        units = None if self.units is None else self.units[places]
        ids, texts = ([values[place] for place in places] for values in (self.ids, self.texts))
        return _Rows(ids, texts, units)

    @property
    def has_texts(self) -> bool:
        """Whether the texts are known."""
        return bool(len(self.texts)) and self.texts[0] is not None

    def hits(self, places: Any, scores: Any) -> list[Hit]:
        """Return rows with their scores."""
        if self.index is None:
            rows = zip(places, scores, strict=True)
            return [Hit(1, self.ids[at], self.texts[at], float(score)) for at, score in rows]
        store = self.index.store
        with store.reading():
            return read_hits(store, Ranking(self.keys[places], np.array(scores, np.float32)))


def find_leaks(
    file: Any,
    against: Any,
    threshold: float = NEAR,
    *,
    model: "Model | None" = None,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
) -> Leaks:
    """Find the rows of a file that also occur in another, such as those of a test set in the
    training data: with the same text, the same up to case, spaces and forms of characters, or near
    it by cosine.

    Every sentence of pairs and triplets is a row, with the id ROW:COLUMN; rows are counted from 0.
    Either argument may be an index. The data compared with an index may be vectors of its encoder;
    they are read as if added to the index.

    Args:
        file: Sentences, pairs or triplets, e.g. the training data; a file, a stream or an index.
        against: Sentences to look for in ``file``, e.g. the test set.
        threshold: Cosine from which a row is near; 1: only texts are compared, without a model.
        model: Encoder; None: the index's, or ``mini-multi``.
        csv: How tables are written, see ``embed``.
        skip_bad: Leave out unreadable rows, and say how many and why.

    Raises:
        NotFoundError: No such file.
        UsageError: A file without sentences, or a threshold that is not allowed.
    """
    _check_threshold(threshold)
    options = {"csv": csv, "skip_bad": skip_bad}
    source = _Rows.read(file, None, model, options)
    other = _Rows.read(against, source.index, model, options)
    leaks = _match_texts(source, other)
    left = [row for row in range(len(other.ids)) if row not in leaks]
    texts_alone = threshold == 1 and source.has_texts
    is_compared = bool(left and len(source.ids) and not texts_alone)
    if is_compared:
        rest = other.take(left)
        _encode(
            [each for each in (rest, source) if each.units is None],
            source.index or other.index,
            model,
        )
        nearest, highest = _find_nearest(source.units, rest.units)
        near = np.flatnonzero(highest >= threshold - ROUNDING)
        hits = source.hits(nearest[near], np.minimum(highest[near], 1))
        for place, hit in zip(near.tolist(), hits, strict=True):
            leaks[left[place]] = Leak("near", rest.ids[place], rest.texts[place], hit)
    found = [leaks[row] for row in sorted(leaks)]
    return Leaks(found, len(other.ids), len(source.ids), threshold if is_compared else None)


def _encode(sets: Sequence[_Rows], index: SentenceIndex | None, model: "Model | None") -> None:
    """Encode the rows of sets with the encoder of an index, or with a model."""
    rows = sum(len(each.ids) for each in sets)
    if not rows:
        return
    if index is not None:
        documents = index.origin.documents(index.encoder)
    else:
        encoder = loading.open_encoder(loading.or_search_model(model), dtype="auto", rows=rows)
        documents = encoder.in_role("document", report=True)
    with stage("embed", rows) as advance:
        for each in sets:
            each.units = unit_rows(documents.encode(list(each.texts), progress=advance))


def _match_texts(source: _Rows, other: _Rows) -> dict[int, Leak]:
    """Return the rows whose text is in a set, by place."""
    if not (source.has_texts and other.has_texts):
        return {}
    exact: dict[str, int] = {}
    normalised: dict[str, int] = {}
    for place, text in enumerate(source.texts):
        exact.setdefault(text, place)
        normalised.setdefault(normalise(text), place)
    matches: dict[int, tuple[Kind, int]] = {}
    for row, text in enumerate(other.texts):
        if text in exact:
            matches[row] = "exact", exact[text]
        elif (normal := normalise(text)) in normalised:
            matches[row] = "normalised", normalised[normal]
    hits = source.hits([place for _, place in matches.values()], [1.0] * len(matches))
    return {
        row: Leak(kind, other.ids[row], other.texts[row], hit)
        for (row, (kind, _)), hit in zip(matches.items(), hits, strict=True)
    }


def _find_nearest(units: Floats, others: Floats) -> tuple[Numbers, Floats]:
    """Return the nearest row of ``units`` (n, d) to each of ``others`` (m, d), and its cosine."""
    nearest = np.zeros(len(others), np.int64)
    highest = np.full(len(others), -2, np.float32)
    with stage("dups", len(units)) as advance:
        for start, block in _in_blocks(units):
            for first, part in _in_blocks(others):
                cosines = part @ block.T
                best = cosines.argmax(axis=1)
                scores = cosines[np.arange(len(best)), best]
                rows = first + np.flatnonzero(scores > highest[first : first + _ROWS_AT_ONCE])
                highest[rows] = scores[rows - first]
                nearest[rows] = start + best[rows - first]
            advance(len(block))
    return nearest, highest
