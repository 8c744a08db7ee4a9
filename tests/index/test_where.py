"""Conditions on columns: against a plain list of rows through all changes, from files, and what is
refused.
"""

import json
import subprocess
import sys
import threading

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptcli as pc
from promptcli.data.cells import cells_array
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.errors import UsageError
from promptcli.index import where
from promptcli.index.array_rows import ArrayRows
from promptcli.index.sentence_index import SentenceIndex
from promptcli.index.stored import StoredIndex, allowed_rows, load, save
from promptcli.index.vector_index import VectorIndex
from promptcli.index.where import Condition
from tests.index.test_changes import ORIGIN, brute
from tests.index.test_index import vectors
from tests.reading import write_table

#: Conditions, and the same for a row of Python's; None is an empty cell.
CONDITIONS = {
    "year > 2020": lambda row: row.get("year") is not None and row["year"] > 2020,
    'year <= 2021 and lang = "en"': lambda row: (
        (row.get("year") or 9999) <= 2021 and row.get("lang") == "en"
    ),
    'lang != "en" or ok = true': lambda row: (
        row.get("lang", "en") not in ("en", None) or row.get("ok") is True
    ),
    'not (lang = "en" or year = 2019)': lambda row: (
        row.get("lang") not in ("en", None) and row.get("year") not in (2019, None)
    ),
    "year in (2019, 2022) and lang not in ('de')": lambda row: (
        row.get("year") in (2019, 2022) and row.get("lang") not in ("de", None)
    ),
    "lang is null": lambda row: row.get("lang") is None,
    "lang is not null and year is null": lambda row: (
        row.get("lang") is not None and row.get("year") is None
    ),
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
        row |= {
            "day": some("2024-01-31", "2024-05-01", None),
            "price": some(-1.5, -0.5, 2.25, float("nan")),
        }
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
        matrix,
        ids,
        [f"text {name}" for name in ids],
        cells_array([tuple(row.items()) for row in written]),
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
        st.tuples(
            st.sampled_from(["add", "bare", "upsert", "delete", "compact", "store"]),
            st.integers(0, 999),
        ),
        max_size=10,
    ),
    st.sets(st.sampled_from([*CONDITIONS]), min_size=3, max_size=3),
)
def test_any_sequence_of_changes_is_that_of_a_dictionary_of_rows(
    tmp_path_factory, changes, conditions
):
    index, known = started()
    for number, (kind, seed) in enumerate(changes):
        random, new = np.random.default_rng(seed), vectors(4, seed=1000 + number)
        rows = random_rows(4, seed)
        if kind in ("add", "bare"):  # bare: of a file without columns
            names, rows = (
                [f"id {number} {row}" for row in range(4)],
                rows if kind == "add" else [{}] * 4,
            )
            index.add(given_rows(new, names, rows))
        elif kind == "upsert":
            names = [f"id {row}" for row in random.choice(70, 4, replace=False)]
            assert index.upsert(given_rows(new, names, rows)) == sum(
                name in known for name in names
            )
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
    for condition in (None, *sorted(conditions)):
        fulfils = CONDITIONS.get(condition, lambda row: True)
        [hits] = index.search(query[None], 1000, where=condition)
        assert [hit.id for hit in hits] == expected(known, query, fulfils, 1000), condition
        for hit in hits:
            row = {
                name: cell
                for name, cell in known[hit.id][1].items()
                if cell is not None and cell == cell
            }
            assert hit.columns.keys() == row.keys()
            assert all(hit.columns[name] == cell for name, cell in row.items())


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
        ("day > 2024-01-01", 'put dates and texts in quotes, e.g. day > "2024-01-01"'),
        ('day > "soon"', "'day' holds dates, e.g. '2024-.*a date in quotes"),
        ("lang = en", 'put dates and texts in quotes, e.g. lang = "en"'),
        ("(year = 1", "cannot be read: syntax error"),
        ("year = 1) or ok = true", r"syntax error at or near \"\)\""),
        ("year in ()", "row is not allowed"),
        ("", "at its end"),
        ("(" * 9999, "too many parentheses"),
        ("9" * 9999 + "x", "cannot be read"),
        ("year = 1 or " * 900, "10,800 characters; give at most 10,000"),
        ("year=1 or " * 500 + "year=1", "more than 500 comparisons"),
        (f"year in ({'1,' * 500}1)", "more than 500 comparisons"),
        (f'lang like "{"%a" * 101}"', "a pattern has 202 characters; give at most 200"),
        ("lang like text", "a pattern is a text in quotes"),
        ("lang = null", "'lang' holds texts"),
        ("lang = year", "one type"),
        ("lang > 'a' and lang", "BOOL"),
        ("year", "is no comparison"),
        ("not " * 400 + "ok", "too many parentheses"),
        ("year = " + "- " * 900 + "1", "too many parentheses"),
        ("lower(" * 60 + "lang" + ")" * 60 + " = 'en'", "too many parentheses"),
        ("year = 1 " + "+ 1" * 900, "expression depth|too many parentheses"),
        ("year = 1 -- or ok", "cannot be read at ' or ok'"),
        ("year = 1 /* or ok */", "cannot be read"),
        ("lang = 'x", "cannot be read"),
        ("ok limit 1", "more than one condition"),
        ("ok union all select true", "more than one condition"),
        ("ok) union select (true", "cannot be read"),
        ("ok; copy rows to 'x.csv'", "cannot be read"),
        ("ok; select 1", "syntax error|more than one|cannot be read"),
        ("exists (from 'x.csv')", "SUBQUERY is not allowed"),
        ("lang = (select 'en')", "SUBQUERY is not allowed"),
        ("lang in (select lang from rows)", "SUBQUERY is not allowed"),
        ("lang = read_text('/etc/passwd')", "read_text is not allowed"),
        ("getenv('HOME') = 'x'", "getenv is not allowed"),
        ("current_setting('threads') = '1'", "current_setting is not allowed"),
        ("lang = repeat('a', 1000000000)", "repeat is not allowed"),
        ("row_number() over () = 1", "row_number is not allowed"),
        ("count(*) > 1", "count_star is not allowed"),
        ("columns('lang') = 'en'", "STAR is not allowed"),
        ("lang = ?", "PARAMETER is not allowed"),
        ("year = nextval('x')", "nextval is not allowed"),
        ("list_filter([1], x -> x > 1) = [1]", "list_filter is not allowed"),
        ("cast(lang as blob) = lang", "BLOB is not allowed"),
    ],
)
def test_a_condition_that_does_not_fit_is_refused_in_one_line(condition, said):
    with pytest.raises(UsageError, match=said) as refused:
        started()[0].search(vectors(1), where=condition)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_a_condition_that_nobody_waits_for_ends_before_its_next_block(monkeypatch):
    monkeypatch.setattr(where, "_BLOCK", 7)
    index, asked = started()[0], []

    def stop():
        asked.append(True)
        if len(asked) == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        index.allowed_rows('year = 2020 or lang like "%e%" or ok = true', stop)
    condition = "year = 2020"
    in_blocks = index.allowed_rows(condition, lambda: None).tolist()
    monkeypatch.undo()
    assert in_blocks == index.allowed_rows(condition).tolist()


class Hasty(threading.Thread):
    """A clock that has run out at once, and says so until it is heard."""

    def __init__(self, seconds, function):
        super().__init__()
        self.function, self.heard = function, threading.Event()

    def run(self):
        while not self.heard.wait(0.001):
            self.function()

    def cancel(self):
        self.heard.set()


def test_a_condition_has_a_limit_of_time(monkeypatch):
    monkeypatch.setattr(where.threading, "Timer", Hasty)
    labels = pa.table({"n": pa.array(range(50_000))})
    with pytest.raises(UsageError, match="takes more than 60 seconds"):
        Condition(" or ".join(["n % 7 = 8"] * 400)).rows(labels)


#: Text of up to 30,000 characters on which patterns of other engines take years.
CATASTROPHES = [
    ("like '" + "%a" * 60 + "%b'", "a" * 30_000),
    ("like '" + "%_a" * 40 + "b'", "a" * 30_000),
    ("ilike '" + "%A" * 60 + "%b'", "a" * 30_000),
    ("similar to '(a|a)*b'", "a" * 30_000),
    ("similar to '((a+)+)+b'", "a" * 30_000),
]


@pytest.mark.parametrize(("pattern", "text"), CATASTROPHES)
def test_no_pattern_takes_long(pattern, text):
    assert chosen(of_cells({"n": text}, {"n": "ab"}), f"n {pattern}") in ([], [1])


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("n + 1 = 3", [1]),
        ("n between 1 and 2", [0, 1]),
        ("n % 2 = 1 and abs(0 - n) < 3", [0]),
        ("n == 1", [0]),
        ("n not between 2 and 9", [0]),
        ("m ilike 'A%'", [0, 2]),
        ("lower(m) = 'ab'", [0]),
        ("m like 'a!%' escape '!'", [2]),
        (r"m like 'a\%'", [2]),
        ("starts_with(m, 'B')", [1]),
        ("contains(m, 'b') or m = 'B'", [0, 1]),
        ("length(m) = 2 and n is not null", [0]),
        ("coalesce(n, 7) = 7", [2]),
        ("n like '1%'", [0]),
        ("d < date '2024-03-01'", [0]),
        ("d between '2024-01' and '2024-06'", [0, 1]),
        ("year(d) = 2024 and month(d) = 4", [1]),
        ("extract(year from d) = 2025", [2]),
        ("f", [1]),
        ("not f", [0]),
        ("f is true", [1]),
        ("order = 5", [0]),
        ("`group by` = 1", [2]),
        ("a.b-c = 1", [1]),
        ("ä = 'ö'", [2]),
        ("true", [0, 1, 2]),
    ],
)
def test_conditions_are_sql(condition, rows):
    index = of_cells(
        {"n": "1", "m": "Ab", "d": "2024-01-05", "f": "false", "order": "5"},
        {"n": "2", "m": "B", "d": "2024-04-05", "f": "true", "a.b-c": "1"},
        {"m": "a%", "d": "2025-01-01", "group by": "1", "ä": "ö"},
    )
    assert chosen(index, condition) == rows


def test_the_database_is_closed():
    for statement in (
        "SELECT * FROM read_csv('/etc/passwd')",
        "COPY (SELECT 1) TO '/tmp/x'",
        "ATTACH '/tmp/x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_profiling",
        "SELECT * FROM CONDITIONS",
    ):
        with pytest.raises(duckdb.Error):
            where._database().cursor().execute(statement).fetchall()


def test_an_index_without_columns_has_those_of_its_ids_and_texts():
    index = VectorIndex.build(ArrayRows(vectors(3), range(3), ["a", "b", "c"]))
    assert [hit.id for hit in index.search(vectors(1), where='id > 0 and text != "b"')[0]] == [2]
    with pytest.raises(UsageError, match="no column 'year'; columns: id, text"):
        index.search(vectors(1), where="year > 2020")


TABLE = (
    "id,text,year,lang\nr1,A cat sleeps.,2019,en\nr2,A cat naps.,2022,\nr3,Prices fell.,2023,en\n"
)


def test_columns_come_from_tables(tmp_path):
    file, encoder = tmp_path / "t.csv", pc.load("static-avg")
    file.write_text(
        "id,text,year,lang\nr1,A cat sleeps.,2019,en\nr2, ,2022,en\nr3,A cat naps.,2022,\n"
    )
    assert pc.build_index(file, tmp_path / "idx", encoder).columns == ["lang", "year"]
    [(_, hits)] = pc.search_index(tmp_path / "idx", ["a cat"], model=encoder, where="year > 2000")
    assert {hit.id: hit.columns for hit in hits} == {
        "r1": {"year": 2019, "lang": "en"},
        "r3": {"year": 2022},
    }
    [line] = pc.search("a cat", [file], model=encoder, where="year > 2020")
    assert (line.line, line.text) == (3, "A cat naps.")


def test_sync_carries_columns_and_encodes_no_text_again_when_only_they_change(
    tmp_path, monkeypatch, caplog
):
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
    assert (
        "rows: 1 renamed (same text, new path or columns), 0 added, 0 removed, 3 unchanged"
        in caplog.text
    )
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


def of_cells(*rows):
    """Return an index of rows, each given as its further columns."""
    cells = cells_array([tuple(row.items()) for row in rows])
    texts = [f"row {number}" for number in range(len(rows))]
    return VectorIndex.build(ArrayRows(vectors(len(rows)), range(len(rows)), texts, cells))


def chosen(index, condition):
    return np.flatnonzero(index.allowed_rows(condition)).tolist()


DATES = [
    "2024-05-01",
    "2024-05-02 00:00:00",
    "2023-01-01T00:00:00.000",
    "2024-05-01T23:30:00+02:00",
    "2024-05-01 10:00",
]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ('day = "2024-05-01"', [0]),
        ('day <= "2024-05-01"', [0, 2]),
        ('day > "2024-05-01"', [1, 3, 4]),
        ('day >= "2024-05-01T10:00"', [1, 3, 4]),
        ('day = "2024-05-01 10:00"', [4]),
        ('day = "2024-05-01 21:30Z"', [3]),
        ('day in ("2024-05", "2023")', [0, 2]),
        ('day < "2024"', [2]),
        ('day like "2024-05-01%"', [0, 3, 4]),
    ],
)
def test_dates_are_moments_however_they_are_written(condition, rows):
    assert chosen(of_cells(*({"day": day} for day in DATES)), condition) == rows


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d.jsonl"])
def test_dates_of_every_format_have_the_same_answers(name, tmp_path):
    table = pa.table({"text": ["a", "b", "c"], "day": ["2024-05-01", "2024-05-02", "2023-01-01"]})
    if name.endswith("parquet"):  # as pandas writes datetime64
        table = table.set_column(1, "day", table["day"].cast(pa.timestamp("ns")))
        pq.write_table(table, tmp_path / name)
    else:
        end = "T00:00:00.000" if name.endswith("jsonl") else ""
        rows = [(row["text"], row["day"] + end) for row in table.to_pylist()]
        write_table(tmp_path / name, ("text", "day"), rows)
    with open_rows(tmp_path / name, ColumnChoice(cells=True)) as rows:
        labels = pa.Table.from_batches(list(rows))
    for condition, expected in (
        ('day = "2024-05-01"', [0]),
        ('day <= "2024-05-01"', [0, 2]),
        ('day > "2024-05-01"', [1]),
    ):
        assert np.flatnonzero(Condition(condition).rows(labels)).tolist() == expected


@pytest.mark.parametrize(
    ("cells", "condition", "rows"),
    [
        (["3,8", "1,25", "2", ""], "n > 1.5", [0, 2]),
        (["1,000", "100", "2,500.5"], "n > 500", [0, 2]),
        (["1,234,567", "2,000"], "n = 1234567", [0]),
        (["0,125", "1,000"], "n = 1", [1]),
        (["1.234", "12,50", "999,00", "2.000"], "n > 100", [0, 2, 3]),
        (["1.25", "12,50"], "n = 1.25", [0]),
        (["1,250", "2,500"], "n = 2.5", [1]),
        (["1,2", "3,4,5,6"], 'n = "1,2"', [0]),
        (["2024-02-31", "2024-02-01"], 'n = "2024-02-31"', [0]),
        (["31.12.2024", "02.01.2026"], "n >= '2026-01-01'", [1]),
    ],
)
def test_numbers_and_dates_of_a_file_are_read_by_its_form(cells, condition, rows, tmp_path):
    lines = [json.dumps({"text": f"row {row}", "n": cell}) for row, cell in enumerate(cells)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), encoding="utf-8")
    encoder = pc.load("static-avg")
    found = pc.search("row", [tmp_path / "t.jsonl"], model=encoder, where=condition)
    assert sorted(line.line - 1 for line in found) == rows
    pc.build_index(tmp_path / "t.jsonl", tmp_path / "idx", encoder)
    pc.sync_index(tmp_path / "synced", [tmp_path / "t.jsonl"], encoder)
    for folder in ("idx", "synced"):
        [(_, hits)] = pc.search_index(tmp_path / folder, ["row"], model=encoder, where=condition)
        assert sorted(int(hit.text.split()[1]) for hit in hits) == rows


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            ["1", "2", "NA", "4", "N/A"],
            "column 'n': 'NA' of row 2 is not a number; `where` compares its cells as texts",
        ),
        (["3,8", "-", "1,25"], "column 'n': '-' of row 1 is not a number"),
        (
            ["2024-05-01", "2024-05-02", "soon"],
            "column 'n': 'soon' of row 2 is not a date such as 2024-05-31",
        ),
        (
            ["1/5/2024", "31/5/2024", None],
            "column 'n': '1/5/2024' of row 0 is not a date such as 2024-05-31",
        ),
        (
            ["2024-05-01", "2024-5-2"],
            "column 'n': '2024-5-2' of row 1 is not a date such as 2024-05-31",
        ),
        (["true", "false", "maybe"], "column 'n': 'maybe' of row 2 is not true or false"),
        (["a", "b", "3"], None),
        (["1", "2", None], None),
        ([None, None], None),
    ],
)
def test_the_cell_for_which_a_column_is_compared_as_texts_is_named_once(
    cells, said, tmp_path, caplog
):
    caplog.set_level("INFO", "promptcli")
    folder = tmp_path / "idx"
    index = of_cells(*({"m": "x"} if cell is None else {"m": "x", "n": cell} for cell in cells))
    save(folder, StoredIndex(index, ORIGIN, "now"))
    assert [record.message for record in caplog.records if "column 'n'" in record.message][1:] == []
    assert (said or "") in caplog.text and ("column 'n'" in caplog.text) is (said is not None)
    caplog.clear()
    save(folder, load(folder), force=True)
    assert "column 'n'" not in caplog.text, "it was said at the build"


def test_a_search_names_the_cell_for_which_its_column_is_compared_as_texts(tmp_path, caplog):
    caplog.set_level("INFO", "promptcli")
    folder = tmp_path / "idx"
    index = of_cells({"n": "1", "m": "x"}, {"n": "NA", "m": "x"}, {"n": "30", "m": "x"})
    save(folder, StoredIndex(index, ORIGIN, "now"))
    caplog.clear()
    stored = load(folder)
    assert list(allowed_rows(stored, "n > '2'")) == [False, True, True]
    assert "column 'n': 'NA' of row 1" in caplog.text
    caplog.clear()
    assert list(allowed_rows(stored, "m = 'x'")) == [True, True, True]
    assert allowed_rows(stored, None) is None
    assert not caplog.text


def test_numbers_beside_a_word_are_compared_as_the_message_says(tmp_path):
    index = of_cells({"net price": "1"}, {"net price": "NA"}, {"net price": "30"})
    with pytest.raises(UsageError, match=r"try_cast\(`net price` as double\)"):
        index.allowed_rows("`net price` > 2")
    mask = index.allowed_rows("try_cast(`net price` as double) > 2")
    assert list(mask) == [False, False, True]
    with pytest.raises(UsageError) as error:
        of_cells({"n": "a"}).allowed_rows("n > 2")
    assert "try_cast" not in str(error.value)


def test_an_odd_cell_that_is_added_is_named(tmp_path, caplog):
    caplog.set_level("INFO", "promptcli")
    folder = tmp_path / "idx"
    save(folder, StoredIndex(of_cells({"n": "1"}, {"n": "2"}), ORIGIN, "now"))
    assert "column 'n'" not in caplog.text
    stored = load(folder)
    stored.index.add(
        ArrayRows(vectors(1, seed=3), range(1), ["more"], cells_array([(("n", "n/a"),)]))
    )
    save(folder, stored, force=True)
    assert "column 'n': 'n/a' of row 2 is not a number" in caplog.text


def test_a_column_has_one_type_in_all_answers(tmp_path):
    index = of_cells({"n": "7", "m": "1.5"}, {"n": "007", "m": "3"}, {"n": "true"})
    save(tmp_path / "idx", StoredIndex(index, ORIGIN, "now"))
    for each in (index, load(tmp_path / "idx").index):
        [hits] = each.search(vectors(1), 3)
        assert sorted(hit.columns["n"] for hit in hits) == ["007", "7", "true"]
        assert sorted(hit.columns["m"] for hit in hits if "m" in hit.columns) == [1.5, 3]
    index.delete([1, 2])
    assert index.search(vectors(1))[0][0].columns == {"n": 7, "m": 1.5}


class Frame(dict):
    """What a DataFrame is here: columns by name, of values with an ``item``."""


def test_columns_of_a_frame_are_those_of_an_index():
    encoder = pc.load("static-avg")
    frame = Frame(
        year=np.array([2020, 2021]),
        day=["31.12.2024", "01.02.2025"],
        price=["3,50", None],
        ok=np.array([True, False]),
    )
    index = SentenceIndex.build(["A cat", "A dog"], encoder, columns=frame)
    assert [hit.id for hit in index.search("cat", where="day < '2025' and price = 3.5 and ok")] == [
        0
    ]
    index.add(["A ship"], columns={"year": [1999]})
    assert [hit.columns for hit in index.search("cat", where="year < 2000")] == [{"year": 1999}]
    with pytest.raises(UsageError, match="'year' has 1 values for 2"):
        SentenceIndex.build(["a", "b"], encoder, columns={"year": [1]})
    with pytest.raises(UsageError, match="valid: sentences, encoder"):
        SentenceIndex.build(["a"], encoder, colums={})


def test_nothing_imports_duckdb_before_there_is_a_condition():
    code = "import sys, promptcli.index.file_search, promptcli.index.vector_index as _;"
    subprocess.run([sys.executable, "-c", f"{code} assert 'duckdb' not in sys.modules"], check=True)
