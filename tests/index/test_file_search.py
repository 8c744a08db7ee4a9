"""Search in files: against cosines of every line, in one pass or several, and what is not read."""

import contextlib
import os

import numpy as np
import pytest

import promptcli as pc
from promptcli.errors import NotFoundError, PromptcliError, UsageError
from promptcli.index import file_search
from promptcli.index.file_search import _products
from promptcli.notes import stages_shown
from tests.index.test_lexical import random_texts
from tests.index.test_sync import LINES


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "notes.md").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "deep" / "table.csv").write_text(
        "text,year\nA dog barks.,1\nA cat naps.,2\n", encoding="utf-8"
    )
    (tmp_path / "deep" / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\xff\xfe")
    (tmp_path / ".hidden").write_text("A cat sleeps.", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("window", [1, 2, 1000])
def test_the_nearest_lines_are_those_of_all_cosines(window, folder, monkeypatch):
    monkeypatch.setattr(file_search, "_WINDOW", window)
    encoder = pc.load("static-avg")
    texts = {("notes.md", number): line for number, line in enumerate(LINES, 1) if line}
    texts |= {("table.csv", 1): "A dog barks.", ("table.csv", 2): "A cat naps."}
    query, vectors = (
        encoder.encode("A sleeping cat"),
        encoder.encode([text.strip() for text in texts.values()]),
    )
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    expected = sorted(zip(cosines, texts, texts.values(), strict=True), reverse=True)[:4]
    options = {"model": encoder, "rows": "lines", "by": "meaning"}
    lines = pc.search("A sleeping cat", [folder], k=4, **options)
    assert [(line.file.rpartition("/")[2], line.line) for line in lines] == [
        place for _, place, _ in expected
    ]
    assert [line.text for line in lines] == [text for *_, text in expected]
    assert [line.score for line in lines] == pytest.approx(
        [cosine for cosine, *_ in expected], abs=1e-5
    )
    least = expected[1][0] - 1e-6
    assert pc.search("A sleeping cat", [folder], min_score=least, **options) == lines[:2]


@pytest.mark.parametrize("window", [30, 10_000])
def test_lines_are_ranked_as_by_an_index(window, tmp_path, monkeypatch):
    monkeypatch.setattr(file_search, "_WINDOW", window)
    encoder = pc.load("static-avg")
    texts = list(dict.fromkeys(f"{text}." for text in random_texts(400)))
    file = tmp_path / "a.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    pc.build_index(file, tmp_path / "idx", encoder, rows="lines")
    for query in ("x-200 cat naps", "größe 7", "absent", "the"):
        for by in ("both", "words", "meaning"):
            [(_, hits)] = pc.search_index(tmp_path / "idx", [query], model=encoder, by=by)
            lines = pc.search(query, [file], model=encoder, by=by, rows="lines")
            assert [line.line for line in lines] == [hit.id + 1 for hit in hits]
            for line, hit in zip(lines, hits, strict=True):
                assert line.score == pytest.approx(hit.score, abs=1e-5)
                assert (line.found_by, line.cosine_rank) == (hit.found_by, hit.cosine_rank)
                assert line.bm25_rank == hit.bm25_rank
                assert line.bm25 == (hit.bm25 and pytest.approx(hit.bm25, abs=1e-5))
    assert pc.search("cat", [file], model=encoder) == pc.search(
        "cat", [file], model=encoder, hybrid=True
    )
    assert pc.search("absent", [file], model=encoder, lexical=True) == []
    with pytest.raises(UsageError, match="give one"):
        pc.search("cat", [file], model=encoder, by="words", hybrid=True)


def test_the_parts_of_a_long_row_are_one_answer(tmp_path):
    encoder = pc.load("static-avg")
    long = " ".join(f"Sentence number {number} names a cat." for number in range(400))
    (tmp_path / "t.csv").write_text(f"text\nA dog barks.\n{long}\nA cat naps.\n")
    for by in ("both", "words", "meaning"):
        lines = pc.search("a cat", [tmp_path / "t.csv"], model=encoder, split=True, by=by)
        assert sorted(line.line for line in lines) == [1, 2, 3]
        assert len(next(line.text for line in lines if line.line == 2)) < len(long)


def test_progress_counts_the_lines_as_they_are_encoded(folder, monkeypatch):
    monkeypatch.setattr(file_search, "_WINDOW", 2)
    done = []
    with stages_shown(lambda name, steps: contextlib.nullcontext(done.append)):
        pc.search("A sleeping cat", [folder], model="static-avg", rows="lines")
    assert sum(done) == 7 and len(done) >= 4


def test_neighbours_and_what_is_not_text(folder, caplog):
    caplog.set_level("INFO", logger="promptcli")
    [line] = pc.search(LINES[3], [folder / "notes.md"], k=1, context=2, rows="lines")
    assert (line.line, line.before, line.after) == (4, ("", LINES[2]), (LINES[4], LINES[5]))
    pc.search("The kitten sleeps", [folder, folder / "deep" / "*.csv"], rows="lines")
    assert (
        "searched 7 rows of 2 files with mini-static (English); skipped 1 file that cannot"
        in caplog.text
    )
    assert "picture.png" in caplog.text


@pytest.mark.parametrize(
    ("query", "names", "error", "said"),
    [
        (" ", ["notes.md"], UsageError, "query is empty"),
        ("cat", ["no.md"], NotFoundError, "no.md"),
        ("cat", ["*.html"], NotFoundError, "no file in"),
        ("cat", ["notes.md:text"], UsageError, "plain text and has no columns"),
        ("cat", ["deep/table.csv:txet"], UsageError, "no column 'txet'"),
        ("cat", ["deep/picture.png"], UsageError, "picture.png"),
        ("cat", ["empty.txt"], UsageError, "no line to search"),
    ],
)
def test_what_cannot_be_searched(query, names, error, said, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(PromptcliError, match=said) as raised:
        pc.search(query, names)
    assert raised.type is error


def test_tables_without_a_text_column_are_not_called_unreadable(folder, caplog):
    caplog.set_level("INFO", logger="promptcli")
    table = folder / "deep" / "survey.csv"
    table.write_text("id,comment,rating\n1,Too loud.,3\n2,Good food.,5\n", encoding="utf-8")
    pc.search("food", [folder])
    assert f"1 file that cannot be read as text or tables: {folder}/deep/picture.png" in caplog.text
    said = f"skipped 1 table without a column 'text' or 'sentence': {table}; name the columns"
    assert f'{said}, e.g. "{table}:comment" for text' in caplog.text


def test_one_file_may_be_given_alone(folder):
    alone = pc.search("A dog", str(folder / "notes.md"), model="static-avg")
    assert alone and alone == pc.search("A dog", [folder / "notes.md"], model="static-avg")
    assert alone == pc.search("A dog", folder / "notes.md", model="static-avg")


def test_an_index_is_searched_by_another_command(folder):
    pc.build_index(folder / "notes.md", folder / "idx", "static-avg")
    with pytest.raises(UsageError, match=r"idx is an index.*promptcli index search .*idx QUERY"):
        pc.search("A dog", [folder / "idx"])
    with pytest.raises(UsageError, match=r"is a folder; `promptcli index sync .*/new .*/deep`"):
        pc.build_index(folder / "deep", folder / "new", "static-avg")
    assert not (folder / "new").exists()


def test_a_pair_s_first_column_is_proposed_as_the_text(tmp_path):
    (tmp_path / "a.csv").write_text("sent0,sent1,hard_neg\nA cat.,A pet.,A cat eats the dog.\n")
    with pytest.raises(UsageError, match=r'a\.csv:sent0"'):
        pc.search("A dog", [tmp_path / "a.csv"])


def test_a_query_in_the_place_of_the_files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(UsageError, match=r'promptcli search "where is it" deep notes\.md'):
        pc.search("deep", ["notes.md", "where is it"])
    with pytest.raises(NotFoundError, match="give a file, a folder, or a glob"):
        pc.search("where is it", ["nofolder"])


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file that cannot be read")
def test_a_file_that_cannot_be_read_is_left_out_and_named(tmp_path, caplog):
    caplog.set_level("INFO", "promptcli")
    (tmp_path / "a.txt").write_text("A cat sleeps.\n")
    (tmp_path / "mem.txt").symlink_to("/proc/self/mem")
    encoder = pc.load("static-avg")
    assert [line.text for line in pc.search("cat", [tmp_path], model=encoder)] == ["A cat sleeps."]
    assert "skipped 1 file" in caplog.text and "mem.txt" in caplog.text
    with pytest.raises(UsageError, match=r"mem\.txt.*cannot be read"):
        pc.search("cat", [tmp_path / "mem.txt"], model=encoder)


@pytest.mark.parametrize("rows", [0, 1, 4, 33, 1003])
@pytest.mark.parametrize("width", [1, 256, 4096])
def test_products_with_a_query_are_those_of_a_matrix(rows, width):
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((rows, width)).astype(np.float32)
    vector = generator.standard_normal(width).astype(np.float32)
    found = _products(matrix, vector)
    assert found.dtype == np.float32
    assert found == pytest.approx(matrix @ vector, abs=1e-3)
