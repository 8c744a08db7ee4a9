"""VectorIndex against a plain matrix product, and SentenceIndex."""

import contextlib
import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from promptcli.errors import UsageError
from promptcli.index.array_rows import ArrayRows, unit_rows
from promptcli.index.factory import NEIGHBOURS, Effort, Truth, choose_factory, make_index
from promptcli.index.neighbours import dups
from promptcli.index.sentence_index import SentenceIndex
from promptcli.index.vector_index import VectorIndex
from promptcli.models import loading as encoders
from tests.embed_fakes import FakeEncoder


def vectors(n, d=16, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def built(n=50, factory="Flat", seed=0, texts=True):
    names = [f"text {row}" for row in range(n)] if texts else None
    return VectorIndex.build(ArrayRows(vectors(n, seed=seed), range(n), names), factory)


def of_a_cat(**options):
    return SentenceIndex.build(["A cat sleeps."], FakeEncoder(), **options)


def by_product(rows, query, k):
    """Return the k best rows and cosines by the plain formula, in float64."""
    rows, query = rows.astype(np.float64), query.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(query)
    cosines = rows @ query / np.where(lengths > 0, lengths, 1)
    order = np.lexsort((np.arange(len(rows)), -cosines))[:k]
    return order, cosines[order]


@pytest.fixture(autouse=True)
def fakes(monkeypatch):
    """A fake encoder is opened as it is."""
    monkeypatch.setattr(encoders, "open_encoder", lambda model, **_: model)


# Search


def test_scale_of_vectors_and_queries_does_not_matter():
    scales = np.float32(10) ** np.random.default_rng(2).integers(-30, 30, size=(50, 1)).astype(
        np.float32
    )
    rows = vectors(50) * scales
    before = rows.copy()
    scaled = VectorIndex.build(ArrayRows(rows, range(50), None))
    assert (rows == before).all(), "the caller's matrix is unchanged"
    found, expected = scaled.search(vectors(5, seed=1) * np.float32(1e-30), 50), built(texts=False)
    for left, right in zip(found, expected.search(vectors(5, seed=1), 50), strict=True):
        assert [hit.id for hit in left] == [hit.id for hit in right]
        np.testing.assert_allclose(
            [hit.score for hit in left], [hit.score for hit in right], atol=1e-6
        )


@pytest.mark.parametrize("factory", ["Flat", "IVF8,Flat", "SQ8", "PCA8,Flat,Refine(Flat)"])
def test_k_beyond_n_gives_n_and_never_minus_one(factory):
    index = built(400, factory=factory)
    index.effort = Effort(nprobe=8)
    hits = index.search(vectors(3, seed=1), 1000)
    assert all(sorted(hit.id for hit in answers) == [*range(400)] for answers in hits)


@pytest.mark.parametrize(
    "factory", ["IVF8,Flat", "IVF8,SQ4,Refine(SQfp16)", "PCA8,IVF8,Flat,Refine(Flat)"]
)
def test_an_inverted_file_is_searched_further_until_k_rows_are_found(factory):
    index, queries = built(400, factory=factory), vectors(20, seed=1)
    index.effort = Effort(nprobe=1, factor=2.0 if "Refine" in factory else None)
    near = index.search(queries, 5)
    for k in (100, 400, 1000):
        answers = index.search(queries, k)
        assert [len({hit.id for hit in hits}) for hits in answers] == [min(k, 400)] * 20, (
            "as many rows as there are"
        )
        assert all(hits == sorted(hits, key=lambda hit: (-hit.score, hit.id)) for hits in answers)
    assert index.search(queries, 5) == near, "a list that holds enough rows is enough"
    index.delete(range(300))
    assert {len(hits) for hits in index.search(queries, 1000)} == {100}


@pytest.mark.parametrize("factory", ["IVF8,Flat", "HNSW8"])
def test_a_condition_loses_no_row_among_k(factory, monkeypatch):
    # more rows are not compared one by one
    monkeypatch.setattr("promptcli.index.vector_index._FEW", 10)
    index = built(400, factory=factory)
    index.effort = Effort(nprobe=1, ef=8)
    allowed = np.arange(400) % 4 == 0
    for hits in index.search(vectors(20, seed=1), 90, among=allowed):
        assert len({hit.id for hit in hits if hit.id % 4 == 0}) == 90


def test_equal_rows_are_in_their_order_whatever_the_batch():
    distinct = vectors(3, 64)
    rows = np.tile(distinct, (400, 1))  # 400 copies of each: far more than any margin
    index = VectorIndex.build(ArrayRows(rows, range(1200), None))
    queries = np.concatenate([distinct, vectors(60, 64, seed=1)])
    together = index.search(queries, 30)
    for number in range(3):
        assert [hit.id for hit in together[number]] == list(range(number, 90, 3))
        assert len({hit.score for hit in together[number]}) == 1
    for query, hits in zip(queries, together, strict=True):
        assert index.search(query[None], 30)[0] == hits


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(np.float32, (12, 4), elements=st.integers(-2, 2).map(float)),
    hnp.arrays(np.float32, (3, 4), elements=st.integers(-2, 2).map(float)),
    st.integers(1, 14),
)
def test_small_integers_with_many_ties_and_zeros(rows, queries, k):
    index = VectorIndex.build(ArrayRows(rows, range(12), None))
    for query, hits in zip(queries, index.search(queries, k), strict=True):
        _, cosines = by_product(rows, query, k)
        assert [hit.rank for hit in hits] == list(range(1, min(k, 12) + 1))
        np.testing.assert_allclose([hit.score for hit in hits], cosines, atol=1e-6)
        for before, after in itertools.pairwise(hits):
            assert before.score > after.score or (
                before.score == after.score and before.id < after.id
            )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused_by_row(value):
    rows = vectors(9)
    rows[[3, 5], 1] = value
    with pytest.raises(UsageError, match=r"2 rows \(3, 5\)"):
        VectorIndex.build(ArrayRows(rows, range(9), None))
    index = built(9)
    with pytest.raises(UsageError, match=r"2 rows \(3, 5\)"):
        index.add(ArrayRows(rows, range(9), ["x"] * 9))
    assert index.rows == 9
    with pytest.raises(UsageError, match=r"2 queries \(3, 5\)"):
        index.search(rows, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: built().search(vectors(1, 15), 1),
        lambda: built().search(vectors(2)[0], 1),
        lambda: built().search(vectors(1), 0),
        lambda: built().add(ArrayRows(vectors(1, 15), [0], ["x"])),
        lambda: built().add(ArrayRows(vectors(1), [0], None)),
        lambda: built(texts=False).add(ArrayRows(vectors(1), [0], ["x"])),
        lambda: ArrayRows(vectors(3), range(2), None),
        lambda: ArrayRows(vectors(3), range(3), ["x"]),
        lambda: ArrayRows(vectors(0), [], None),
        lambda: VectorIndex.build(ArrayRows(vectors(3), range(3), None), target=1.5),
        lambda: VectorIndex.build(ArrayRows(vectors(3), range(3), None), memory=1 << 20),
        lambda: VectorIndex.build(ArrayRows(vectors(2), range(2), ["", " "])),
        lambda: SentenceIndex.build("A cat sleeps.", FakeEncoder()),
        lambda: SentenceIndex.build([], FakeEncoder()),
        lambda: of_a_cat(ids=[1, 2]),
        lambda: of_a_cat(factory=3),
        *(lambda ids=ids: of_a_cat().delete(ids) for ids in (0, "0")),
        *(lambda k=k: of_a_cat().search("x", k=k) for k in (0, 2.5, "3", None, np.nan)),
        lambda: of_a_cat().search("x", nprob=3),
        lambda: of_a_cat().dups("0.9"),
    ],
)
def test_mistakes_of_a_program_are_refused(wrong):
    with pytest.raises(UsageError):
        wrong()


# Adding


@pytest.mark.parametrize(
    ("first", "second", "ids"),
    [
        (range(2), ["x", "y"], ["0", "1", "x", "y", "4", "5"]),  # both kinds: numbers become texts
        (
            [10, 7],
            [50, 3],
            [10, 7, 50, 3, 51, 52],
        ),  # given numbers stay, and row numbers go on after them
    ],
)
def test_ids_of_additions(first, second, ids):
    index = VectorIndex.build(ArrayRows(vectors(2), first, None))
    index.add(ArrayRows(vectors(2, seed=1), second, None))
    index.add(ArrayRows(vectors(2, seed=2), range(2), None))
    queries = np.concatenate([vectors(2, seed=seed) for seed in range(3)])
    assert [hits[0].id for hits in index.search(queries, 1)] == ids
    assert index.upsert(ArrayRows(vectors(1, seed=3), [str(ids[2])], None)) == 1 and index.rows == 6
    assert index.search(vectors(1, seed=3), 1)[0][0].id == ids[2], "numbers stay numbers"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", "a"], "'a' is given twice"),
        ([1, "1"], "'1' is given twice"),
        (["x", "7"], "has the id 7"),
        ([7, 8], "has the id 7"),
        (np.array([7, 8]), "has the id 7"),
        ([1, 1_500_000_000_000_000_000], "has the id 1500000000000000000"),
    ],
)
def test_an_id_belongs_to_one_row(ids, said):
    index = SentenceIndex.build(["A cat.", "A dog."], FakeEncoder(), ids=[3, 7])
    index.upsert(["A bus."], [1_500_000_000_000_000_000])
    with pytest.raises(UsageError, match=said):
        index.add(["A boat.", "A car."], ids=ids)
    assert len(index) == 3 and index.delete([3]) == 1
    index.add(["A boat."], ids=[3])
    with pytest.raises(UsageError, match="given twice"):
        SentenceIndex.build(["A cat.", "A dog."], FakeEncoder(), ids=["a", "a"])


@pytest.mark.parametrize(
    ("ids", "taken"), [(["a"], True), (["b#1", "b#2"], True), (["a#3"], False), (["c"], False)]
)
def test_a_row_and_its_parts_have_one_id(ids, taken):
    index = VectorIndex.build(ArrayRows(vectors(3), ["a#1", "a#2", "b"], None), split=True)
    new = ArrayRows(vectors(len(ids), seed=1), ids, None)
    with pytest.raises(UsageError, match="has the id") if taken else contextlib.nullcontext():
        index.add(new)
    with pytest.raises(UsageError, match="given twice") if taken else contextlib.nullcontext():
        VectorIndex.build(
            ArrayRows(vectors(3 + len(ids)), ["a#1", "a#2", "b", *ids], None), split=True
        )


@pytest.mark.parametrize("factory", ["Flat", "HNSW8"])
def test_rows_with_a_blank_text_are_left_out_and_the_others_keep_their_numbers(factory):
    texts = ["a", "", "b", " \t", "c", "d"]
    index = VectorIndex.build(ArrayRows(vectors(6), range(6), texts), factory)
    assert index.rows == 4
    assert [hits[0].id for hits in index.search(vectors(6)[[0, 2, 4, 5]], 1)] == [0, 2, 4, 5]
    assert index.recall is None or index.recall.at_10 == 1.0, "a query's own row is known"
    index.add(ArrayRows(vectors(2, seed=1), range(2), ["\n", "e"]))
    assert index.rows == 5
    assert index.search(vectors(2, seed=1)[1:], 1)[0][0].id == 7


# Factories and recall


@pytest.mark.parametrize(
    "factory",
    [
        "Foo",
        "",
        "LSH",
        "PQ7",
        "IVF,Flat",
        "IVF0,Flat",
        "PQ4x0",
        "HNSW1",
        "ü",
        "HNSW8,PQ4",
        "IDMap,Flat",
    ],
)
def test_a_factory_faiss_does_not_make_is_one_line(factory, capfd):
    with pytest.raises(UsageError, match="factory") as raised:
        built(factory=factory)
    assert (
        "\n" not in str(raised.value)
        and ".cpp" not in str(raised.value)
        and len(str(raised.value)) < 300
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "factory",
    [
        "PCA8,Flat",
        "RR8,Flat",
        "ITQ8,Flat",
        "PCA8,L2norm,Flat",
        "PCA16,Flat",
        "PCAW16,SQ8",
        "PQ4x4",
        "RQ2x4",
    ],
)
def test_a_factory_of_other_cosines_is_refused_and_its_remedy_scores_by_the_vectors(factory):
    with pytest.raises(UsageError, match="does not keep the cosines") as raised:
        built(700, factory=factory)
    (remedy,) = re.findall(r"; (\S+) scores", str(raised.value))
    rows = vectors(700)
    rows[7] = 2 * rows[3]
    index = VectorIndex.build(ArrayRows(rows, range(700), None), remedy)
    units, queries = unit_rows(rows), unit_rows(np.concatenate([rows[:2], vectors(5, seed=1)]))
    for query, hits in zip(queries, index.search(queries, 5), strict=True):
        np.testing.assert_allclose(
            [hit.score for hit in hits], [units[hit.id] @ query for hit in hits], atol=2e-3
        )
    assert [[hit.id for hit in group] for group in dups(index, 0.99)] == [[3, 7]]


@pytest.mark.parametrize(
    ("factory", "needed"),
    [
        ("IVF64,Flat", 39 * 64),
        ("PQ4,RFlat", 9984),
        ("IVF2,PQ4,RFlat", 9984),
        ("OPQ4,PQ4x4,RFlat", 9984),
        ("RQ2x8,RFlat", 9984),
        ("IVF2,PQ4x4fs,RFlat", 624),
        ("IVF16(PQ4x4),Flat", 624),
    ],
)
def test_too_few_vectors_to_train_on_are_refused_with_the_number_needed(factory, needed, capfd):
    with pytest.raises(UsageError, match=f"needs {needed} vectors"):
        built(100, factory=factory)
    assert capfd.readouterr() == ("", ""), "nothing from FAISS itself"


def test_as_many_vectors_as_are_needed_are_enough(capfd):
    assert built(39 * 16, factory="IVF4,PQ4x4,RFlat").rows == 624
    assert capfd.readouterr() == ("", ""), "nothing from FAISS itself"


@pytest.mark.parametrize(("count", "width"), [(200_000, 256), (10_000_000, 256), (1_000_000, 33)])
def test_the_chosen_factory_can_be_made(count, width):
    factory, why = choose_factory(count, width, 0.95)
    assert factory.startswith("IVF") and factory in why and make_index(factory, width).d == width
    assert "PQ" not in factory if count > 5_000_000 or width % 2 else "PQ" in factory
    assert choose_factory(count, width, 1.0)[0] == choose_factory(99_999, width, 0.95)[0] == "Flat"


def test_recall_is_the_plain_definition():
    assert built().recall is None and built(factory="L2norm,Flat").recall.at_10 == 1.0
    index, rows = built(1500, factory="SQ4"), unit_rows(vectors(1500))
    found = 0
    asked = ArrayRows(rows, range(1500), None).sample(1000)[0]
    for row in asked:
        others = [hit.id for hit in index.search(rows[row][None], 11)[0] if hit.id != row][:10]
        nearest = [other for other in by_product(rows, rows[row], 11)[0].tolist() if other != row][
            :10
        ]
        found += len(set(others) & set(nearest))
    assert index.recall.at_10 == pytest.approx(found / (10 * len(asked)), abs=1e-3)
    assert 0 < index.recall.at_10 < 0.9 and (index.recall.queries, index.recall.rows) == (
        1000,
        1500,
    )


@pytest.mark.parametrize("block", [7, 60])
def test_recall_counts_equal_neighbours_and_small_indexes(block):
    units = unit_rows(np.repeat(vectors(2), 30, axis=0))
    truth = Truth(np.array([0]), units[:1])
    for start in range(0, 60, block):
        part = units[start : start + block]
        truth.add(part, np.arange(start, start + len(part)))

    def of(rows):
        return truth.recall(lambda queries, k, effort: [(np.array(rows), None)], Effort()).at_10

    assert truth.rows == 60 and of(range(15, 15 + NEIGHBOURS)) == 1.0, "any equal neighbour will do"
    assert of(range(30, 45)) == 0.0
    assert of([1, 2, 3, 40]) == pytest.approx(0.3)
    assert built(1, factory="HNSW8").recall.at_10 == built(2, factory="HNSW8").recall.at_10 == 1.0


def test_a_higher_target_is_searched_for_more_thoroughly():
    rows = ArrayRows(vectors(2000), range(2000), None)
    low, high = (VectorIndex.build(rows, "IVF32,Flat", target=target) for target in (0.3, 0.99))
    assert (low.effort.nprobe or 1) < high.effort.nprobe
    assert low.recall.at_10 >= 0.3 and high.recall.at_10 >= 0.99


# The library's index


def test_sentences_are_built_searched_saved_and_loaded(tmp_path):
    encoder = FakeEncoder()
    sentences = ["A cat sleeps.", "A dog runs fast.", "Rain falls on the roof."]
    index = SentenceIndex.build(sentences, encoder)
    hits = index.search("A dog runs fast.", k=2)
    assert (hits[0].text, hits[0].id, hits[0].rank) == (sentences[1], 1, 1) and hits[
        0
    ].score == pytest.approx(1)
    assert [found[0].id for found in index.search(sentences, k=1)] == [0, 1, 2] and len(index) == 3
    index.add(["Snow melts."])
    index.save(tmp_path / "idx")
    with pytest.raises(UsageError):
        index.save(tmp_path / "idx")
    again = SentenceIndex.load(tmp_path / "idx", encoder)
    assert again.search("Snow melts.", k=1)[0].id == 3
    again.add(["Birds sing."], ids=range(10, 11))
    again.save(tmp_path / "other")
    assert SentenceIndex.load(tmp_path / "other", encoder).search("Birds sing.", k=1)[0].id == 10
    other = FakeEncoder()
    other.fingerprint = "e" * 64
    with pytest.raises(UsageError, match="e" * 12):
        SentenceIndex.load(tmp_path / "idx", other)
    named = SentenceIndex.build(sentences, encoder, ids=["a", "b", "c"], factory="HNSW8")
    assert named.search("Rain falls on the roof.", k=1)[0].id == "c"
