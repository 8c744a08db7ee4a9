"""Near-duplicates and leaks beside plain loops."""

import csv
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptcli as pc
from promptcli.retrieval.new_rows import unit_rows
from promptcli.retrieval.pairs import _link_pairs, normalise, write_without_duplicates
from tests.comparing import refusal

WORD = st.sampled_from("cat cats dog dogs rain snow the a on".split())
TEXTS = st.lists(st.lists(WORD, min_size=1, max_size=4).map(" ".join), min_size=2, max_size=14)


@pytest.fixture(scope="module")
def encoder():
    return pc.load("mini-static")


def plain_complete(cosines, threshold):
    """Agglomerative clustering by complete linkage, cut at a threshold, in plain loops."""
    clusters = [[row] for row in range(len(cosines))]
    while True:
        best = None
        for one, other in itertools.combinations(clusters, 2):
            lowest = min(cosines[i][j] for i in one for j in other)
            if lowest >= threshold and (best is None or lowest > best[0]):
                best = (lowest, one, other)
        if best is None:
            return sorted(sorted(cluster) for cluster in clusters if len(cluster) > 1)
        clusters = [each for each in clusters if each not in best[1:]] + [best[1] + best[2]]


@settings(max_examples=80)
@given(data=st.data(), n=st.integers(2, 9))
def test_complete_links_are_those_of_plain_clustering(data, n):
    upper = {pair: data.draw(st.floats(0, 1)) for pair in itertools.combinations(range(n), 2)}
    if len(set(upper.values())) < len(upper):  # ties may fall either way
        return
    cosines = [[upper.get((min(i, j), max(i, j)), 1.0) for j in range(n)] for i in range(n)]
    pairs = sorted((pair for pair in upper if upper[pair] >= 0.5), key=lambda pair: -upper[pair])
    label = np.arange(n)
    _link_pairs(label, pairs, complete=True)
    groups = [np.flatnonzero(label == name).tolist() for name in set(label.tolist())]
    assert sorted(group for group in groups if len(group) > 1) == plain_complete(cosines, 0.5)


@settings(max_examples=40)
@given(
    texts=TEXTS,
    threshold=st.sampled_from([0.5, 0.8, 1.0]),
    links=st.sampled_from(["complete", "chain"]),
)
def test_groups_of_an_index_are_its_near_duplicates(encoder, texts, threshold, links):
    index = pc.SentenceIndex.build(texts, encoder)
    groups = index.dups(threshold, links=links)
    units = unit_rows(encoder.encode(texts)).astype(np.float64)
    of_row = {hit.id: number for number, group in enumerate(groups) for hit in group}
    for group in groups:
        rows = [hit.id for hit in group]
        assert rows == sorted(rows) and len(rows) > 1
        lowest = min(units[i] @ units[j] for i in rows for j in rows)
        assert group.lowest == pytest.approx(lowest, abs=1e-5)
        if links == "complete" and threshold < 1:
            assert lowest >= threshold - 1e-5
    for one, other in itertools.combinations(range(len(texts)), 2):
        if texts[one] == texts[other] and units[one].any():
            assert of_row[one] == of_row[other]
        if threshold == 1:
            assert (of_row.get(one, -1) == of_row.get(other, -2)) == (texts[one] == texts[other])
        elif links == "chain" and units[one] @ units[other] >= threshold + 1e-5:
            assert of_row[one] == of_row[other]


def test_words_in_another_order_and_other_numbers_are_no_copies(encoder):
    texts = ["The dog bit the man 12.", "the man 12. The dog bit", "The dog bit the man 13."]
    index = pc.SentenceIndex.build([*texts, texts[0]], encoder)
    assert [[hit.id for hit in group] for group in index.dups(1)] == [[0, 3]]
    assert [[hit.id for hit in group] for group in index.dups(0.7)] == [[0, 1, 2, 3]]
    assert [[hit.id for hit in group] for group in index.dups(0.7, differ="numbers")] == [[0, 1, 3]]
    for wrong in (0, 1.5, float("nan")):
        with refusal("threshold"):
            index.dups(wrong)
    with pytest.raises(pc.UsageError):
        index.dups(0.9, links="single")


@pytest.mark.parametrize(("keep", "kept"), [("first", "012"), ("last", "123"), ("Price", "120")])
def test_one_of_each_is_kept(tmp_path, encoder, keep, kept):
    texts = ["A cat.", "A dog.", "Snow fell.", "A cat."]
    index = pc.SentenceIndex.build(texts, encoder, columns={"price": [5, 1, 2, 4], "by": "abcd"})
    count = write_without_duplicates(index, index.dups(1), keep, tmp_path / "clean.csv")
    rows = list(csv.DictReader((tmp_path / "clean.csv").open()))
    assert count == 1 and sorted(row["id"] for row in rows) == sorted(kept)
    assert all(
        row["text"] == texts[int(row["id"])] and row["by"] == "abcd"[int(row["id"])] for row in rows
    )


@pytest.mark.parametrize(
    ("column", "header"), [("Subject", "No,Subject,Body"), ("Subject,Body", "No,text,Subject,Body")]
)
def test_what_is_kept_has_the_columns_of_the_file(tmp_path, encoder, column, header):
    (tmp_path / "mails.csv").write_text("No,Subject,Body\na1,Rain,It pours.\na2,Rain,It pours.\n")
    index = pc.SentenceIndex.build(
        tmp_path / "mails.csv", encoder, text_field=column, id_field="No"
    )
    write_without_duplicates(index, index.dups(1), "first", tmp_path / "clean.csv")
    lines = (tmp_path / "clean.csv").read_text().splitlines()
    assert lines[0] == header and len(lines) == 2 and lines[1].startswith("a1,Rain")


def test_a_file_and_the_folder_of_an_index_have_the_groups_of_an_index(tmp_path, encoder):
    texts = ["A cat sleeps.", "Rain falls.", "A cat sleeps.", "The cat sleeps."]
    file, folder = tmp_path / "texts.txt", tmp_path / "index"
    file.write_text("".join(f"{text}\n" for text in texts))
    index = pc.SentenceIndex.build(texts, encoder, output=folder)
    for rows in (file, folder, index):
        groups = pc.find_dups(rows, 0.7, model=encoder)
        assert [[hit.id for hit in group] for group in groups] == [[0, 2, 3]]


def test_leaks_by_text_and_by_cosine(tmp_path, encoder):
    (tmp_path / "train.txt").write_text("A cat sleeps.\nDogs run.\n\nCafé closed\nA cat sleeps.\n")
    (tmp_path / "test.tsv").write_text(
        "sentence1\tsentence2\nA cat sleeps.\tCAFE\u0301  closed\nThe dogs run.\tQuantum fields\n"
    )
    leaks = pc.find_leaks(tmp_path / "train.txt", tmp_path / "test.tsv", 0.8, model=encoder)
    found = [(leak.kind, leak.id, leak.source.id) for leak in leaks.found]
    assert found == [
        ("exact", "0:sentence1", 0),
        ("normalised", "0:sentence2", 3),
        ("near", "1:sentence1", 1),
    ]
    assert (leaks.rows, leaks.source_rows, leaks.share) == (4, 4, 0.75)
    texts_alone = pc.find_leaks(tmp_path / "train.txt", tmp_path / "test.tsv", 1, model="none such")
    assert [leak.kind for leak in texts_alone.found] == ["exact", "normalised"]
    index = pc.SentenceIndex.build(
        tmp_path / "train.txt", encoder, output=tmp_path / "i", rows="lines"
    )
    lines = tmp_path / "test.txt"
    lines.write_text("A cat sleeps.\ncafe\u0301 closed\nThe dogs run.\nQuantum fields\n")
    by_index = index.leaks(lines, 0.8)
    assert [leak.kind for leak in by_index.found] == [leak.kind for leak in leaks.found]
    other = pc.SentenceIndex.build(lines, encoder, output=tmp_path / "j")
    assert index.leaks(tmp_path / "j", 0.8) == by_index and len(other) == 4
    assert pc.find_leaks(tmp_path / "i", lines, 0.8) == by_index
    turned = pc.find_leaks(lines, tmp_path / "i", 0.8)  # which are the rows of the index
    assert [(leak.id, leak.source.id) for leak in turned.found] == [(0, 0), (1, 2), (3, 1), (4, 0)]


def test_a_list_of_texts_is_compared_like_a_file(encoder):
    texts = ["A cat sleeps.", " ", "Rain falls.", "A cat sleeps."]
    [group] = pc.find_dups(texts, model=encoder)
    assert [hit.id for hit in group] == [0, 3]
    for source in (texts, pc.SentenceIndex.build(texts, encoder)):
        leaks = pc.find_leaks(source, ["Dogs run.", "rain  falls."], model=encoder)
        assert [(leak.kind, leak.id, leak.source.id) for leak in leaks.found] == [
            ("normalised", 1, 2)
        ]
    with refusal("sentence 1 is int"):
        pc.find_dups(["a", 1], model=encoder)


@given(text=st.text(max_size=40))
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)
    assert normalise(f"  {text}\u200b\t") == normalise(text)
