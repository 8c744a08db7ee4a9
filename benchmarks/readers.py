"""Readers of tables beside ours: which cases each reads rightly, and its time and memory.

python benchmarks/readers.py            cases, as a table of Markdown
python benchmarks/readers.py --rows N   CPU seconds and peak memory for N rows of CSV and Parquet
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Name of a case -> file, content, and the texts of its column ``text``; "" for a row that cannot
#: be read, which keeps its number.
CASES = {
    "commas, quotes, a line feed in a cell": (
        "a.csv",
        b'text,n\n"one, two",1\n"a\nb",2\n"say ""x""",3\n',
        ["one, two", "a\nb", 'say "x"'],
    ),
    "semicolons and decimal commas": ("a.csv", b"text;n\none;1,5\ntwo;2,5\n", ["one", "two"]),
    "sep=; above the header": ("a.csv", b"sep=;\ntext;n\none;1\ntwo;2\n", ["one", "two"]),
    "blank lines above the header": ("a.csv", b"\n\ntext,n\none,1\ntwo,2\n", ["one", "two"]),
    "an empty line is a row": ("a.csv", b"text,n\none,1\n\ntwo,2\n", ["one", "", "two"]),
    "a short line is a bad row": ("a.csv", b"text,n\none,1\nfive\ntwo,2\n", ["one", "", "two"]),
    "an open quote takes one line": (
        "a.csv",
        b'text,n\none,1\n"two,2\nthree,3\n',
        ["one", "", "three"],
    ),
    "quotes are text between tabs": (
        "a.tsv",
        b'text\tn\none "x\t1\n"two\t2\n',
        ['one "x', '"two'],
    ),
    "quoted cells between tabs": (
        "a.tsv",
        b'"text"\t"n"\n"one\ttwo"\t"1"\n"x"\t"2"\n',
        ["one\ttwo", "x"],
    ),
    "NA and null are texts": ("a.csv", b"text,n\nNA,1\nnull,2\n", ["NA", "null"]),
    "numbers and dates stay as written": (
        "a.csv",
        b"text,n\n007,1\n1.10,2\n",
        ["007", "1.10"],
    ),
    "cp1252": ("a.csv", "text,n\nMüller,1\nCafé,2\n".encode("cp1252"), ["Müller", "Café"]),
    "UTF-16": ("a.csv", "text,n\nMüller,1\nCafé,2\n".encode("utf-16"), ["Müller", "Café"]),
    "byte order mark": ("a.csv", b"\xef\xbb\xbftext,n\none,1\n", ["one"]),
    "carriage returns alone": ("a.csv", b"text,n\rone,1\rtwo,2\r", ["one", "two"]),
    "line ends converted twice": ("a.csv", b"text,n\r\r\none,1\r\r\ntwo,2\r\r\n", ["one", "two"]),
    "U+2028 inside a cell": ("a.csv", "text,n\na\u2028b,1\n".encode(), ["a\u2028b"]),
    "two columns of one name": ("a.csv", b"text,n,n\none,1,2\n", ["one"]),
    "a cell of 1 MB": ("a.csv", b"text,n\n" + b"a" * 1_000_000 + b",1\n", ["a" * 1_000_000]),
    "JSON lines": ("a.jsonl", b'{"text": "one"}\n{"text": "two", "n": 1}\n', ["one", "two"]),
    "JSON: a broken line": (
        "a.jsonl",
        b'{"text": "one"}\n{broken\n{"text": "two"}\n',
        ["one", "", "two"],
    ),
    "JSON: an empty line is a row": (
        "a.jsonl",
        b'{"text": "one"}\n\n{"text": "two"}\n',
        ["one", "", "two"],
    ),
    "JSON: half a surrogate pair": (
        "a.jsonl",
        b'{"text": "one"}\n{"text": "\\ud83d"}\n',
        ["one", ""],
    ),
    "JSON: NaN": ("a.jsonl", b'{"text": "one", "n": NaN}\n', ["one"]),
    "JSON: a field of two types": (
        "a.jsonl",
        b'{"text": "one", "n": 1}\n{"text": "two", "n": [1, {"a": 2}]}\n',
        ["one", "two"],
    ),
    "one JSON array": ("a.json", b'[{"text": "one"}, {"text": "two"}]', ["one", "two"]),
}


def ours(path):
    from promptcli.data.layouts import ColumnChoice
    from promptcli.data.rows import open_rows

    with open_rows(path, ColumnChoice(cells=True), skip_bad=True) as rows:
        return list(rows.texts())


def duckdb(path):
    import duckdb

    path = str(path)
    if path.endswith(".parquet"):
        reader = f"read_parquet('{path}')"
    elif path.endswith((".jsonl", ".json")):
        reader = f"read_json_auto('{path}', ignore_errors = {path.endswith('l')})"
    else:
        parallel = Path(path).stat().st_size > 1 << 21  # it cannot pad rows of several lines then
        options = (
            "all_varchar = true, null_padding = true, ignore_errors = true, header = true,"
            f" parallel = {parallel}"
        )
        reader = f"read_csv('{path}', {options})"
    relation = duckdb.sql(f"SELECT * FROM {reader}").to_arrow_table()
    return [text or "" for text in relation.column("text").to_pylist()]


def pandas(path):
    import pandas

    path = str(path)
    if path.endswith(".parquet"):
        frame = pandas.read_parquet(path)
    elif path.endswith((".jsonl", ".json")):
        frame = pandas.read_json(path, lines=path.endswith("l"), dtype=False)
    elif path.endswith(".tsv"):
        frame = pandas.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    else:
        few = Path(path).stat().st_size < 1 << 20
        options = {"sep": None, "engine": "python"} if few else {}
        frame = pandas.read_csv(
            path, dtype=str, keep_default_na=False, skip_blank_lines=False, **options
        )
    return frame["text"].fillna("").tolist()


def pyarrow(path):
    path = str(path)
    if path.endswith(".parquet"):
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
    elif path.endswith((".jsonl", ".json")):
        import pyarrow.json

        table = pyarrow.json.read_json(path)
    else:
        import pyarrow.csv

        parse = pyarrow.csv.ParseOptions(
            delimiter="\t" if path.endswith(".tsv") else ",",
            newlines_in_values=True,
            ignore_empty_lines=False,
            invalid_row_handler=lambda row: "skip",
        )
        table = pyarrow.csv.read_csv(path, parse_options=parse)
    return [str(text or "") for text in table.column("text").to_pylist()]


READERS = {"ours": ours, "DuckDB": duckdb, "pandas": pandas, "pyarrow": pyarrow}


def print_cases():
    print("| case |", " | ".join(READERS), "|")
    print("|---" * (len(READERS) + 1) + "|")
    right = dict.fromkeys(READERS, 0)
    for case, (name, content, texts) in CASES.items():
        answers = []
        for reader, read in READERS.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / name
                path.write_bytes(content)
                try:
                    found = read(path)
                except Exception:
                    answers.append("refused")
                    continue
            right[reader] += found == texts
            answers.append("right" if found == texts else f"{len(found)} of {len(texts)} rows")
            if found != texts and len(found) == len(texts):
                answers[-1] = "other texts"
        print(f"| {case} | {' | '.join(answers)} |")
    print(f"| right, of {len(CASES)} | {' | '.join(map(str, right.values()))} |")


def print_speed(rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        numbers = range(rows)
        table = pa.table(
            {
                "text": [
                    f"Parcel {number} waits, unpaid, in hall {number % 7}" for number in numbers
                ],
                "year": [2000 + number % 25 for number in numbers],
                "price": [number / 4 for number in numbers],
                "lang": [("en", "de", "fr")[number % 3] for number in numbers],
            }
        )
        pq.write_table(table, f"{folder}/a.parquet")
        import pyarrow.csv

        pyarrow.csv.write_csv(table, f"{folder}/a.csv")
        for name in ("a.csv", "a.parquet"):
            for reader in READERS:
                ran = subprocess.run(
                    [sys.executable, __file__, "--one", reader, f"{folder}/{name}"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                print(name, reader, ran.stdout.strip())


def read_one(reader, path):
    """Print CPU seconds of import and of reading, and the peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / f"s{Path(path).suffix}"
        if small.suffix == ".csv":
            small.write_text("text,n\none,1\n")
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({"text": ["one"]}), small)
        start = time.process_time()
        READERS[reader](small)
        begun = time.process_time()
    rows = len(READERS[reader](path))
    done = time.process_time()
    status = Path("/proc/self/status").read_text()  # getrusage has the parent's peak
    peak = int(status.partition("VmHWM:")[2].split()[0]) >> 10
    print(
        json.dumps(
            {
                "rows": rows,
                "import_s": round(begun - start, 2),
                "read_s": round(done - begun, 2),
                "peak_mb": peak,
            }
        )
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int)
    parser.add_argument("--one", nargs=2)
    options = parser.parse_args()
    if options.one:
        read_one(*options.one)
    elif options.rows:
        print_speed(options.rows)
    else:
        print_cases()


if __name__ == "__main__":
    main()
