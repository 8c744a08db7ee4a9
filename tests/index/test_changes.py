"""Rows that come and go: segments, upserts, deletes, compaction, filters, against a dictionary and
a matrix product.
"""

import io
import json
import weakref

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from promptcli.data.column_choice import ColumnChoice
from promptcli.data.vectors.formats import Block
from promptcli.embedding import writing
from promptcli.errors import UsageError
from promptcli.index import array_rows, neighbours, segment, vector_index
from promptcli.index.array_rows import ArrayRows, unit_rows
from promptcli.index.inputs import RowFiles
from promptcli.index.neighbours import dups
from promptcli.index.stored import Origin, StoredIndex, load, save
from promptcli.index.vector_index import VectorIndex
from tests.embed_fakes import FakeEncoder
from tests.index.test_index import vectors

ORIGIN = Origin("a" * 64, {"backbone": "mini-bert"}, None, {"dtype": "float32"})
#: Exact, graph, lists with short codes compared again, lists of whole vectors.
FACTORIES = ["Flat", "HNSW8", "IVF2,SQ4,Refine(SQfp16)", "IVF2,Flat"]


def built(n=100, factory="Flat"):
    source = ArrayRows(
        vectors(n), [f"id {row}" for row in range(n)], [f"text {row}" for row in range(n)]
    )
    return VectorIndex.build(source, factory)


def brute(known, query, k):
    """Return the k best ids of a dictionary of vectors, by the plain formula."""
    names, matrix = list(known), unit_rows(np.stack(list(known.values()))).astype(float)
    scores = matrix @ (query / np.linalg.norm(query))
    return [names[row] for row in np.argsort(-scores, kind="stable")[:k]]


@pytest.fixture(autouse=True, scope="module")
def mapped():
    """Files of any size are memory-mapped here, as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "_MAPPED", 0)
        yield


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 64 rows, and a memory of 1 MB that holds few of them."""
    for module in (array_rows, vector_index):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(vector_index, "_STARTED", (1 << 20) - 60_000)


# Changes


@pytest.mark.parametrize("factory", FACTORIES)
def test_replaced_and_deleted_rows_are_no_answers(factory, tmp_path):
    index = built(factory=factory)
    assert index.delete(["id 3", "id 99"]) == 2
    new = vectors(2, seed=5)
    assert index.upsert(ArrayRows(new, ["id 4", "id 100"], ["new 4", "new 100"])) == 1
    known = {f"id {row}": one for row, one in enumerate(vectors(100)) if row not in (3, 99, 4)}
    known |= {"id 4": new[0], "id 100": new[1]}
    save(tmp_path / "idx", StoredIndex(index, ORIGIN, "now"))
    stored = load(tmp_path / "idx").index
    for one in (index, stored):
        assert one.rows == 99
        hits = one.search(vectors(10), 5)
        assert not {"id 3", "id 99"} & {hit.id for answers in hits for hit in answers}
        assert [one.search(query[None], 1)[0][0].text for query in new] == ["new 4", "new 100"]
    stored.compact()
    assert len(stored.masked) == 99 and len(stored.segments) == 1
    agree = [
        stored.search(query[None], 1)[0][0].id == brute(known, query, 1)[0] for query in vectors(10)
    ]
    assert sum(agree) >= 9


def test_a_change_that_is_refused_changes_nothing():
    index, broken = built(10), vectors(2)
    broken[1, 0] = np.nan
    for said, change in (
        (r"'x', 'y'.*nothing was deleted", lambda: index.delete(["id 1", "x", "y"])),
        ("'a' is given twice", lambda: index.upsert(ArrayRows(vectors(2), ["a", "a"], ["x", "x"]))),
        ("NaN", lambda: index.upsert(ArrayRows(broken, ["id 1", "id 2"], ["x", "x"]))),
    ):
        with pytest.raises(UsageError, match=said):
            change()
    assert sorted(hit.text for hit in index.search(vectors(1), 100)[0]) == [
        f"text {row}" for row in range(10)
    ]


class Held:
    """Counts which of the arrays that it has seen are still there."""

    def __init__(self):
        self._seen = []

    def one_more(self, array):
        assert sum(seen() is not None for seen in self._seen) <= 1, "what came before is still held"
        self._seen.append(weakref.ref(array))
        return array


@pytest.mark.parametrize("named", [False, True])
def test_sentences_wait_on_the_disk_and_not_in_memory(named, tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(writing, "WINDOW", 24)
    encoder, held = FakeEncoder(), Held()
    encode_report = encoder.encode_report

    def watched(texts, **options):
        encoded = encode_report(texts, **options)
        held.one_more(encoded.vectors)
        return encoded

    encoder.encode_report = watched
    texts = [f"line {number} ä" for number in range(150)]
    ids = [f"id {row}" if named else row for row in range(150)]
    records = [
        {"text": text, **({"id": id} if named else {})} for text, id in zip(texts, ids, strict=True)
    ]
    stdin = io.BytesIO("".join(f"{json.dumps(record)}\n" for record in records).encode())
    files = RowFiles(stdin, ColumnChoice("text", "id" if named else None), tmp_path / "index")
    stored, *_ = files.encode(lambda head: (encoder, None))
    assert not list(tmp_path.iterdir()), "the file has no name"
    assert stored.shape == (150, 8)
    expected, blocks = FakeEncoder().encode(texts), list(stored.blocks())
    assert len(blocks) > 6 and np.array_equal(
        np.concatenate([block.vectors for block in blocks]), expected
    )
    assert [id for block in blocks for id in block.ids] == ids
    assert [text for block in blocks for text in block.texts] == texts
    numbers, sampled = stored.sample(40)
    assert len(set(numbers.tolist())) == 40 and np.array_equal(sampled, expected[numbers])


class Streamed:
    """Rows made again block by block, never all there."""

    has_texts = True

    def __init__(self, names):
        self.names, self.shape, self.held = names, (len(names), 16), Held()

    def blocks(self):
        for start in range(0, len(self.names), 64):
            names = self.names[start : start + 64]
            yield Block(self.held.one_more(vectors(len(names), seed=start)), names, names)


def test_an_upsert_reads_block_by_block(small_blocks):
    index, other = built(200), built(200)
    names = [f"id {row}" for row in range(150, 400)]
    new = np.concatenate([vectors(min(64, 250 - start), seed=start) for start in range(0, 250, 64)])
    assert index.upsert(Streamed(names)) == other.upsert(ArrayRows(new, names, names)) == 50
    assert index.rows == other.rows == 400
    assert index.search(vectors(20, seed=9), 50) == other.search(vectors(20, seed=9), 50)
    with pytest.raises(UsageError, match="'id 7' is given twice"):  # far from each other
        index.upsert(Streamed([*names, "id 7", *(f"more {row}" for row in range(300)), "id 7"]))
    assert index.rows == 400


@pytest.mark.parametrize("factory", ["PQ4x4,Refine(SQfp16)", "NSG8"])
def test_what_faiss_cannot_leave_out_is_refused_early(factory):
    index = built(700, factory)
    with pytest.raises(UsageError, match="cannot delete rows"):
        index.delete(["id 1"])
    assert index.rows == 700


# Filters


@pytest.mark.parametrize("factory", FACTORIES)
def test_filters_leave_what_they_say(factory):
    index = built(300, factory)
    index.delete(["id 2"])
    allowed = ", ".join(f"'id {row}'" for row in range(40))
    known = {f"id {row}": one for row, one in enumerate(vectors(300)[:40]) if row not in (2, 5)}
    for query in vectors(5, seed=1):
        (hits,) = index.search(query[None], 10, where=f"id in ({allowed}) and id != 'id 5'")
        assert [hit.id for hit in hits] == brute(known, query, 10), (
            "few rows are compared one by one"
        )
        (others,) = index.search(query[None], 10, where=f"not id in ({allowed})")
        assert len(others) == 10 and not any(f"'{hit.id}'" in allowed for hit in others)


# Segments


@pytest.mark.parametrize("factory", [*FACTORIES, "IVF2,PQ16x4fsr,Refine(SQfp16)"])
def test_many_segments_answer_as_one(factory, small_blocks):
    source = ArrayRows(vectors(900, 32), range(900), None)
    many = VectorIndex.build(source, factory, target=0.99, memory=1 << 20)
    one = VectorIndex.build(source, factory, target=0.99)
    assert len(many.segments) > 2 and len(one.segments) == 1
    assert many.rows == 900 and many.search(vectors(900, 32)[800:801], 1)[0][0].id == 800
    same = 0
    for left, right in zip(
        many.search(vectors(50, 32, seed=1)), one.search(vectors(50, 32, seed=1)), strict=True
    ):
        same += len({hit.id for hit in left} & {hit.id for hit in right})
    assert same == 500 if factory == "Flat" else same > 440


# Near-duplicates


def crowded():
    """Return 300 rows: a chain of three, twenty near copies, thirty copies."""
    rows = unit_rows(vectors(300, 24))
    rows[10:30] = unit_rows(rows[9] + 0.02 * vectors(20, 24, seed=1))
    rows[100:130] = rows[99]
    rows[201] = rows[200] + 0.45 * rows[250]
    rows[202] = rows[200] + 0.95 * rows[250]
    return unit_rows(rows)


def linked(rows, threshold):
    """Return the groups of two and more that the plain matrix of cosines links, by breadth-first
    search.
    """
    near, seen, groups = rows @ rows.T >= threshold, set(), []
    for start in range(len(rows)):
        group, waiting = set(), [start] if start not in seen else []
        while waiting:
            row = waiting.pop()
            if row not in group:
                group.add(row)
                waiting += np.flatnonzero(near[row]).tolist()
        seen |= group
        if len(group) > 1:
            groups.append(sorted(group))
    return sorted(groups, key=lambda group: (-len(group), group[0]))


@pytest.mark.parametrize("factory", ["Flat", "IVF2,SQ4,Refine(SQfp16)"])
@pytest.mark.parametrize("threshold", [0.9, 0.999999])
def test_chains_are_the_groups_of_the_plain_matrix(factory, threshold):
    rows = crowded()
    index = VectorIndex.build(ArrayRows(rows, range(300), None), factory, target=0.99)
    if factory != "Flat":
        threshold = min(threshold, 0.99)
    found = dups(index, threshold, "chain")
    assert [sorted(hit.id for hit in cluster) for cluster in found] == linked(rows, threshold)
    assert all(cluster[0].score == pytest.approx(1, abs=1e-3) for cluster in found)
    index.delete(range(99, 130))
    assert len(dups(index, 0.9, "chain")[0]) == 21


def complete(rows, threshold):
    """Return the groups of complete linkage by SciPy, of which every pair reaches the threshold."""
    distances = np.maximum(1 - rows @ rows.T, 0)
    tree = linkage(distances[np.triu_indices(len(rows), 1)], "complete")
    label = fcluster(tree, 1 - threshold, "distance")
    groups = [np.flatnonzero(label == number).tolist() for number in np.unique(label)]
    large = [group for group in groups if len(group) > 1]
    return sorted(large, key=lambda group: (-len(group), group[0]))


def members(groups):
    return [[hit.id for hit in group] for group in groups]


def near(count, spread, seed=2):
    """Return rows around one direction: the larger the spread, the fewer are near each other."""
    return unit_rows(1 + spread * vectors(count, 24, seed))


def test_complete_links_are_those_of_scipy():
    for units, threshold in ((crowded(), 0.9), (near(200, 0.4), 0.9), (near(200, 0.4), 0.8)):
        found = dups(VectorIndex.build(ArrayRows(units, range(len(units)), None)), threshold)
        assert members(found) == complete(units, threshold)
        for group in found:
            ids = [hit.id for hit in group]
            lowest = (units[ids] @ units[ids].T).min()
            assert group.lowest == pytest.approx(lowest, abs=1e-5) and lowest >= threshold - 1e-6


def test_a_chain_is_no_group_of_complete_links():
    angles = np.linspace(0, 1.2, 13)
    rows = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    index = VectorIndex.build(ArrayRows(rows, range(13), None))
    (chain,) = dups(index, 0.99, "chain")
    assert len(chain) == 13 and chain.lowest == pytest.approx(np.cos(1.2), abs=1e-5)
    assert max(map(len, dups(index, 0.99))) == 2
    with pytest.raises(UsageError, match="complete"):
        dups(index, 0.99, "single")


@pytest.mark.parametrize("factory", ["Flat", "IVF2,SQ8", "HNSW8"])
def test_little_room_for_pairs_leaves_no_groups_that_could_be_joined(factory, monkeypatch):
    rows = near(200, 0.3)
    monkeypatch.setattr(neighbours, "_PAIRS", 600)
    monkeypatch.setattr(neighbours, "_MOST", 3)
    monkeypatch.setattr(neighbours, "_FEWEST", 2)
    monkeypatch.setattr(neighbours, "_BLOCK", 16)
    monkeypatch.setattr(neighbours, "_NEIGHBOURS", (2, 4))
    index = VectorIndex.build(ArrayRows(rows, range(200), None), factory)
    groups = dups(index, 0.9)
    assert members(groups) == members(dups(index, 0.9))
    kept = unit_rows(index.vectors(np.arange(200)))
    cosines = kept @ kept.T
    grouped = members(groups)
    alone = set(range(200)).difference(*grouped)
    sets = [*grouped, *([row] for row in alone)]
    assert len(grouped) > 5 and len(grouped[0]) > 5
    assert all(cosines[np.ix_(ids, ids)].min() >= 0.9 - 1e-6 for ids in grouped)
    for number, one in enumerate(sets):
        for other in sets[number + 1 :]:
            assert cosines[np.ix_(one, other)].min() < 0.9
    assert members(dups(index, 0.9, "chain")) == linked(kept, 0.9)


@pytest.mark.parametrize("factory", ["Flat", "IVF2,SQ8", "IVF2,SQ4,Refine(SQfp16)", "HNSW8"])
@pytest.mark.parametrize("links", ["complete", "chain"])
def test_exact_copies_are_found_at_one(factory, links):
    rows = unit_rows(vectors(600, 24))
    rows[300:] = rows[:300] * np.float32(1.0000001)
    index = VectorIndex.build(ArrayRows(rows, range(600), None), factory)
    found = dups(index, 1, links)
    assert members(found) == [[row, row + 300] for row in range(300)]
    assert {round(hit.score, 4) for group in found for hit in group} == {1}


def test_rows_of_zeros_are_no_copies():
    rows = unit_rows(vectors(20, 24))
    rows[[7, 9]] = 0
    rows[4] = rows[2]
    assert members(dups(VectorIndex.build(ArrayRows(rows, range(20), None)), 1)) == [[2, 4]]


@pytest.mark.parametrize("threshold", [0, 1.1, float("nan")])
def test_thresholds_that_cannot_be(threshold):
    with pytest.raises(UsageError):
        dups(built(50), threshold)
