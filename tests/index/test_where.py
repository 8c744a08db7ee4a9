"""Conditions on columns: against a plain list of rows through all changes, from files, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptcli as pc
from promptcli.data.rows import cells_array
from promptcli.errors import UsageError
from promptcli.index.rows import ArrayRows
from promptcli.index.stored import StoredIndex, load, save
from promptcli.index.vector_index import VectorIndex
from tests.index.test_changes import ORIGIN, brute
from tests.index.test_index import vectors

#: Conditions, and the same for a row of Python's; None is an empty cell.
CONDITIONS = {
    "year > 2020": lambda row: row.get("year") is not None and row["year"] > 2020,
    'year <= 2021 and lang = "en"': lambda row: (row.get("year") or 9999) <= 2021 and row.get("lang") == "en",
    'lang != "en" or ok = true': lambda row: row.get("lang", "en") not in ("en", None) or row.get("ok") is True,
    'not (lang = "en" or year = 2019)': lambda row: (
        row.get("lang") not in ("en", None) and row.get("year") not in (2019, None)
    ),
    "year in (2019, 2022) and lang not in ('de')": lambda row: (
        row.get("year") in (2019, 2022) and row.get("lang") not in ("de", None)
    ),
    "lang is null": lambda row: row.get("lang") is None,
    "lang is not null and year is null": lambda row: row.get("lang") is not None and row.get("year") is None,
    'day >= "2024-05"': lambda row: row.get("day") is not None and row["day"] >= "2024-05",
    '`a b` like "%""x%"': lambda row: '"x' in (row.get("a b") or ""),
    "price < -0.5 or ok = FALSE": lambda row: (
        (row.get("price") is not None and row["price"] < -0.5) or row.get("ok") is False
    ),
    'code = "007"': lambda row: row.get("code") == "007",
}


def random_rows(n, seed):
    random = np.random.default_rng(seed)

    def some(*values):
        return values[random.integers(len(values))]

    rows = []
    for _ in range(n):
        row = {
            "year": some(2019, 2020, 2021, 2022, None),
            "lang": some("en", "de", "fr", None),
            "ok": some(True, False),
        }
        row |= {"day": some("2024-01-31", "2024-05-01", None), "price": some(-1.5, -0.5, 2.25, float("nan"))}
        rows.append(row | {"code": some("007", "7", "A7"), "a b": some('say "x"', "x", None)})
    return rows


def given_rows(matrix, ids, rows):
    written = [
        {
            name: str(cell).lower() if cell in (True, False) else str(cell)
            for name, cell in row.items()
            if cell is not None and cell == cell
        }
        for row in rows
    ]
    return ArrayRows(
        matrix, ids, [f"text {name}" for name in ids], cells_array([tuple(row.items()) for row in written])
    )


def started(factory="Flat", n=60):
    names, matrix, rows = [f"id {row}" for row in range(n)], vectors(n), random_rows(n, 1)
    known = dict(zip(names, zip(matrix, rows, strict=True), strict=True))
    return VectorIndex.build(given_rows(matrix, names, rows), factory), known


def expected(known, query, fulfils, k):
    chosen = {name: vector for name, (vector, row) in known.items() if fulfils(row)}
    return brute(chosen, query, k) if chosen else []


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "bare", "upsert", "delete", "compact", "store"]), st.integers(0, 999)),
        max_size=10,
    )
)
def test_any_sequence_of_changes_is_that_of_a_dictionary_of_rows(tmp_path_factory, changes):
    index, known = started()
    for number, (kind, seed) in enumerate(changes):
        random, new = np.random.default_rng(seed), vectors(4, seed=1000 + number)
        rows = random_rows(4, seed)
        if kind in ("add", "bare"):  # bare: of a file without columns
            names, rows = [f"id {number} {row}" for row in range(4)], rows if kind == "add" else [{}] * 4
            index.add(given_rows(new, names, rows))
        elif kind == "upsert":
            names = [f"id {row}" for row in random.choice(70, 4, replace=False)]
            assert index.upsert(given_rows(new, names, rows)) == sum(name in known for name in names)
        elif kind == "delete":
            names = random.choice(sorted(known), min(len(known) - 1, 5), replace=False).tolist()
            assert index.delete(names) == len(names)
            known = {name: row for name, row in known.items() if name not in names}
        elif kind == "compact":
            index.compact()
            assert len(index.masked) == len(known)
        elif kind == "store":
            folder = tmp_path_factory.mktemp("idx") / "idx"
            save(folder, StoredIndex(index, ORIGIN, "now"))
            index = load(folder).index
        if kind in ("add", "bare", "upsert"):
            known |= dict(zip(names, zip(new, rows, strict=True), strict=True))
    assert index.rows == len(known)
    query = vectors(1, seed=7)[0]
    for condition, fulfils in {None: lambda row: True, **CONDITIONS}.items():
        [hits] = index.search(query[None], 1000, where=condition)
        assert [hit.id for hit in hits] == expected(known, query, fulfils, 1000), condition
        for hit in hits:
            row = {name: cell for name, cell in known[hit.id][1].items() if cell is not None and cell == cell}
            assert hit.columns.keys() == row.keys()
            assert all(hit.columns[name] == cell for name, cell in row.items() if name != "code")


@pytest.mark.parametrize("factory", ["HNSW8", "IVF2,SQ4,Refine(SQfp16)"])
def test_rows_are_chosen_before_the_search(factory):
    index, known = started(factory, 100)
    queries = vectors(3, seed=7)
    for query, hits in zip(queries, index.search(queries, 5, where="year > 2020"), strict=True):
        assert [hit.id for hit in hits] == expected(known, query, CONDITIONS["year > 2020"], 5)
    assert index.search(queries, 5, where="year > 3000") == [[], [], []]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("yaer > 2020", "no column 'yaer'; did you mean year.; columns: id, text, a b, code"),
        ('year = "2020"', "'year' holds numbers, e.g. '20.*without quotes"),
        ("lang > 5", "'lang' holds texts, e.g. .*in quotes"),
        ("code = 7", "'code' holds texts, e.g. .*in quotes"),
        ("ok = 1", "'ok' holds true and false.*true or false"),
        ("day > 2024-01-01", "cannot be read at '2024-01-01'"),
        ('day > "soon"', "'day' holds dates, e.g. '2024-.*a date in quotes"),
        ("lang = en", "cannot be read at 'en'"),
        ("(year = 1", "at its end"),
        ("year = 1) or ok = true", r"at '\) or ok = true'"),
        ("year in ()", r"at '\)'"),
        ("", "at its end"),
        ("(" * 9999, "too many parentheses"),
        ("9" * 9999 + "x", "cannot be read at '9999"),
        ("year = 1 or " * 900, "10,800 characters; give at most 10,000"),
        ("year=1 or " * 500 + "year=1", "more than 500 comparisons"),
        (f"year in ({'1,' * 500}1)", "more than 500 comparisons"),
        (f'lang like "{"%a" * 101}"', "a pattern has 202 characters; give at most 200"),
    ],
)
def test_a_condition_that_does_not_fit_is_refused_in_one_line(condition, said):
    with pytest.raises(UsageError, match=said) as refused:
        started()[0].search(vectors(1), where=condition)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_a_condition_that_nobody_waits_for_ends_before_its_next_comparison():
    index, asked = started()[0], []

    def stop():
        asked.append(True)
        if len(asked) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        index.allowed('year = 2020 or lang like "%e%" or ok = true', stop)
    assert index.allowed("year = 2020", lambda: None).tolist() == index.allowed("year = 2020").tolist()


def test_an_index_without_columns_has_those_of_its_ids_and_texts():
    index = VectorIndex.build(ArrayRows(vectors(3), range(3), ["a", "b", "c"]))
    assert [hit.id for hit in index.search(vectors(1), where='id > 0 and text != "b"')[0]] == [2]
    with pytest.raises(UsageError, match="no column 'year'; columns: id, text"):
        index.search(vectors(1), where="year > 2020")


TABLE = "id,text,year,lang\nr1,A cat sleeps.,2019,en\nr2,A cat naps.,2022,\nr3,Prices fell.,2023,en\n"


def test_columns_come_from_tables(tmp_path):
    file, encoder = tmp_path / "t.csv", pc.load("static-avg")
    file.write_text("id,text,year,lang\nr1,A cat sleeps.,2019,en\nr2, ,2022,en\nr3,A cat naps.,2022,\n")
    assert pc.build_index(file, tmp_path / "idx", encoder).columns == ["lang", "year"]
    [(_, hits)] = pc.search_index(tmp_path / "idx", ["a cat"], model=encoder, where="year > 2000")
    assert {hit.id: hit.columns for hit in hits} == {"r1": {"year": 2019, "lang": "en"}, "r3": {"year": 2022}}
    [line] = pc.search("a cat", [file], model=encoder, where="year > 2020")
    assert (line.line, line.text) == (3, "A cat naps.")


def test_sync_carries_columns_and_encodes_no_text_again_when_only_they_change(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", logger="promptcli")
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "notes.md").write_text("A cat in a text.\n")
    monkeypatch.chdir(tmp_path)
    encoder = pc.load("static-avg")

    def ids(where):
        [(_, hits)] = pc.search_index("idx", ["a cat"], model=encoder, where=where)
        return sorted(hit.id for hit in hits)

    pc.sync_index("idx", ["t.csv", "notes.md"], encoder)
    assert ids("year > 2020") == ["t.csv:2", "t.csv:3"]
    assert ids('id like "notes%"') == ["notes.md:1"]
    (tmp_path / "t.csv").write_text(TABLE.replace("2022", "1999"))
    pc.sync_index("idx", ["t.csv", "notes.md"], encoder)
    assert "1 row added, 1 removed, 3 unchanged; 1 row of those added had a stored vector" in caplog.text
    assert ids("year > 2020") == ["t.csv:3"]
    pc.sync_index("idx", ["t.csv", "notes.md"], encoder)
    assert "4 rows, unchanged" in caplog.text


def test_a_search_in_files_refuses_a_column_that_none_of_them_has(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "b.csv").write_text("text,price\nA cat for sale.,5\n")
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    assert [line.text for line in pc.search("cat", files, where="price = 5")] == ["A cat for sale."]
    assert pc.search("cat", files, where="price = 6") == []
    with pytest.raises(UsageError, match="no column 'prize'; did you mean price"):
        pc.search("cat", files, where="prize = 5")
