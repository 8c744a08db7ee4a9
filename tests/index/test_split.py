"""Texts longer than the window: their parts, and the best part of a row in every search."""

import bisect
import json

import numpy as np
import pytest

import promptcli as pc
from promptcli.embedding.splitting import Splitter
from promptcli.errors import UsageError
from promptcli.index.stored import load, read_manifest

SENTENCES = [
    "A cat sleeps on the mat.",
    "Prices fell in May.",
    "Two dogs play in the park.",
    "Nobody came.",
]
LONG = " ".join(f"{text} Number {number} of them." for number, text in enumerate(SENTENCES * 3))


@pytest.fixture(scope="module")
def encoder():
    return pc.load("mini", max_length=40)


@pytest.fixture
def rows(tmp_path):
    lines = [("a", LONG), ("b", "Stocks lost."), ("c", LONG[::-1]), ("d", "")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in lines))
    return file


def test_parts_fit_the_window_and_hold_all_words_in_order(encoder):
    parts = Splitter(encoder).parts(LONG)
    assert len(parts) > 2 and " ".join(parts) == LONG and all(part.endswith(".") for part in parts)
    assert (
        not encoder.encode_report(parts).truncated.any()
        and encoder.encode_report([LONG]).truncated.all()
    )
    assert Splitter(encoder).parts("Short.") == ["Short."] and Splitter(encoder).parts("") == [""]
    too_long = bisect.bisect(
        range(len(LONG)), False, key=lambda end: encoder.encode_report([LONG[:end]]).truncated[0]
    )
    fits = LONG[: too_long - 1]
    assert not encoder.encode_report([fits]).truncated[0]
    assert Splitter(encoder).parts(fits) == [fits]


def test_an_index_of_parts_answers_with_the_best_part_of_each_row(rows, encoder, tmp_path):
    splitter, query = Splitter(encoder), encoder.encode("dogs in a park")
    texts = {f"a#{number}": part for number, part in enumerate(splitter.parts(LONG), 1)}
    texts |= {"b": "Stocks lost."} | {
        f"c#{number}": part for number, part in enumerate(splitter.parts(LONG[::-1]), 1)
    }
    vectors = encoder.encode(list(texts.values()))
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    best = dict[str, tuple[float, str]]()
    for cosine, name in sorted(zip(cosines.tolist(), texts, strict=True), reverse=True):
        best.setdefault(name.partition("#")[0], (cosine, name))
    pc.build_index(rows, tmp_path / "idx", encoder, split=True)
    for k in (1, 2, 3):
        [(_, hits)] = pc.search_index(
            tmp_path / "idx", ["dogs in a park"], k, model=encoder, by="meaning"
        )
        assert [hit.id for hit in hits] == [name for _, name in list(best.values())[:k]]
        assert [hit.score for hit in hits] == pytest.approx(
            [cosine for cosine, _ in list(best.values())[:k]], abs=1e-5
        )
        assert [hit.text for hit in hits] == [texts[hit.id] for hit in hits]
    lines = pc.search("dogs in a park", [rows], 3, model=encoder, split=True, by="meaning")
    assert [(line.line, line.text) for line in lines] == [
        ("abc".index(row) + 1, texts[name]) for row, (_, name) in best.items()
    ]


def test_rows_of_parts_are_embedded_added_replaced_and_deleted(rows, encoder, tmp_path):
    from promptcli.data.vectors import read_vectors

    pc.embed(rows, tmp_path / "v.parquet", encoder, split=True)
    vectors, parts = read_vectors(tmp_path / "v.parquet"), Splitter(encoder).parts(LONG)
    assert list(vectors.ids)[: len(parts) + 1] == [
        *(f"a#{number}" for number in range(1, len(parts) + 1)),
        "b",
    ]
    assert np.allclose(vectors.matrix[: len(parts)], encoder.encode(parts), atol=1e-5)
    pc.build_index(rows, tmp_path / "idx", encoder, split=True)
    rows.write_text(json.dumps({"id": "a", "text": "One sentence."}) + "\n")
    pc.add_to_index(tmp_path / "idx", rows, encoder, replace=True)
    index = load(tmp_path / "idx").index
    names = {str(hit.id) for hit in index.search(encoder.encode(["x"]), 100)[0]}
    assert "a" in names and len(names) == 3 and read_manifest(tmp_path / "idx").split
    assert index.delete(["c"]) == len(Splitter(encoder).parts(LONG[::-1]))


def test_a_changed_part_of_a_synced_line(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a.txt"
    file.write_text(f"{LONG}\nShort.\n")
    pc.sync_index("idx", ["a.txt"], encoder, rows="lines", split=True)
    file.write_text(f"{LONG.replace('Number 0', 'Number 9')}\nShort.\n")
    pc.sync_index("idx", ["a.txt"], encoder)
    pc.sync_index("fresh", ["a.txt"], encoder, rows="lines", split=True)
    query = encoder.encode(["a cat"])
    found, fresh = (load(tmp_path / name).index.search(query, 10)[0] for name in ("idx", "fresh"))
    assert [hit[:3] for hit in found] == [hit[:3] for hit in fresh]
    assert load(tmp_path / "idx").index.rows == len(Splitter(encoder).parts(LONG)) + 1


def test_what_is_refused(rows, encoder, tmp_path):
    with pytest.raises(UsageError, match="`split` needs ids"):
        pc.embed(rows, tmp_path / "v.npy", encoder, split=True)
    rows.write_text('{"id": "a#1", "text": "x"}\n')
    with pytest.raises(UsageError, match="'a#1' looks like a part"):
        pc.build_index(rows, tmp_path / "idx", encoder, split=True)
    pc.embed(rows, tmp_path / "v.parquet", encoder)
    with pytest.raises(UsageError, match="give it to `embed`"):
        pc.build_index(tmp_path / "v.parquet", tmp_path / "idx", split=True)
