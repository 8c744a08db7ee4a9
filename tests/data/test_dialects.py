"""Files as people have them: what is meant is read, every guess is one line, and what is ambiguous
is refused.
"""

import bz2
import json
import lzma
import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.data.column_choice import ColumnChoice
from promptcli.data.counted_files import count_input, read_range
from promptcli.data.input_files import STANDARD
from promptcli.data.layouts import CELLS, GRADED_PAIRS, LABELLED_PAIRS, PAIRS, SENTENCES, TRIPLETS
from promptcli.data.rows import open_rows
from promptcli.errors import UsageError
from tests.reading import fails, parquet, read, texts, write

GERMAN = "Über die Straße läuft ein Hund."
QUOTES = "He said “hello” to the café’s owner."
STSB = [
    (
        "main-captions\tMSRvid\t2012test\t0001\t5.000\tA plane is taking off.\tAn air plane is"
        " taking off."
    ),
    'main-news\theadlines\t2015\t0003\t3.800\tA man says "no.\tA man agrees.\thttp://a.b\tlicence',
]


@pytest.fixture
def told(caplog):
    """Return what was told, and forget it."""
    caplog.set_level("INFO", "promptcli")

    def lines():
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        assert all("\n" not in message for message in messages)
        return " | ".join(messages)

    return lines


def zstd(data):
    return pa.compress(data, codec="zstd", asbytes=True)


ROWS = [(0, "One cat; two dogs."), (1, "Three")]
LINES = "One cat; two dogs.\nThree\n"


def many(text, count, last):
    """Return the rows of a text that stands so often, and of the last one."""
    return list(enumerate([text] * count + [last]))


@pytest.mark.parametrize(
    ("name", "content", "expected", "guess"),
    [
        # encodings and line ends
        ("a.txt", LINES, ROWS, ""),
        ("a.txt", LINES.encode("utf-16"), ROWS, "UTF-16"),
        (
            "a.txt",
            (LINES * 9_000).encode("utf-16"),
            [(n, ROWS[n % 2][1]) for n in range(18_000)],
            "UTF-16",
        ),
        (
            "a.txt",
            f"{GERMAN}\n{QUOTES}\n".encode("cp1252"),
            [(0, GERMAN), (1, QUOTES)],
            "cp1252, e.g. line 1: Über die",
        ),
        (
            "a.txt",
            b"Plain.\n" * 20_000 + QUOTES.encode("cp1252"),
            many("Plain.", 20_000, QUOTES),
            "line 20001: He",
        ),
        ("a.txt", LINES.replace("\n", "\r"), ROWS, "carriage return alone"),
        ("a.txt", LINES.replace("\n", "\r\n"), ROWS, ""),
        ("a.csv", "id;text\r7;one\r", [("7", "one")], "carriage return alone"),
        # compressed
        ("a.txt.bz2", bz2.compress(LINES.encode()), ROWS, ""),
        ("a.csv.xz", lzma.compress(b"id,text\n7,one\n"), [("7", "one")], ""),
        ("a.jsonl.zst", zstd(b'{"id": 7, "text": "one"}\n'), [("7", "one")], ""),
        # delimiters, quoting, headers
        (
            "a.csv",
            'id;text\r\n7;"A; ""b"""\r\n8;Drei, vier\r\n',
            [("7", 'A; "b"'), ("8", "Drei, vier")],
            "semicolons",
        ),
        ("a.csv", "sep=;\r\nid;text\r\n7;One, two\r\n", [("7", "One, two")], "semicolons"),
        ("a.csv", "id\ttext\n7\tOne, two\n", [("7", "One, two")], "tabs"),
        ("a.csv", "id|text\n7|One, two\n", [("7", "One, two")], "bars"),
        (
            "a.csv",
            "text;score\nHello, world;3,8\nYes, sir;4,0\n",
            [(0, "Hello, world"), (1, "Yes, sir")],
            "semicolons",
        ),
        ("a.csv", "\n\nid,text\n7,one\n", [("7", "one")], ""),
        ("a.csv", 'text,score\none,"3,8"\ntwo,"4,0"\n', [(0, "one"), (1, "two")], ""),
        (
            "a.txt",
            "id\ttext\r\n7\tGrün, blau\r\n8\tx\r\n".encode("utf-16"),
            [("7", "Grün, blau"), ("8", "x")],
            "tabs",
        ),
        ("a.csv", 'text\nHello; world\n"a; b, c"\n', [(0, "Hello; world"), (1, "a; b, c")], ""),
        ("a.tsv", 'id\ttext\n7\t"He said ""hi"""\n', [("7", 'He said "hi"')], "double quotes"),
        (
            "a.tsv",
            'id\ttext\n7\t"two\nlines"\n8\tx\n',
            [("7", "two\nlines"), ("8", "x")],
            "double quotes",
        ),
        ("a.tsv", '"id"\t"text"\n"7"\t"No."\n', [("7", "No.")], "double quotes"),
        ("a.tsv", "text\n" + "x\n" * 40_000 + '"a ""b"""\n', many("x", 40_000, 'a "b"'), "40002"),
        (
            "a.tsv",
            'id\ttext\n7\t"No."\n8\tits "own" way\n',
            [("7", '"No."'), ("8", 'its "own" way')],
            "",
        ),
        (
            "a.csv",
            "A cat is on the sofa.\nRain.\n",
            [(0, "A cat is on the sofa."), (1, "Rain.")],
            "without a header",
        ),
        (
            "a.csv",
            "1,A cat sleeps.\n2,It rains.\n",
            [(0, "A cat sleeps."), (1, "It rains.")],
            "without a header",
        ),
        (
            "a.tsv",
            "0\tThe cat sleeps.\n1\tIt rains.\n",
            [(0, "The cat sleeps."), (1, "It rains.")],
            "2 as text",
        ),
        ("a.csv", "Comment\none\n", [(0, "one")], "the header Comment"),
        ("a.txt", "nr\tText\n1\tone\n2\ttwo\n", [(0, "one"), (1, "two")], "tabs"),
        ("a.txt", "text;n\none;1\ntwo;2\n", [(0, "one"), (1, "two")], "semicolons"),
        (
            "a.txt",
            "1\tMilk for the cat\n2\tBread\n3\tEggs\n",
            [(0, "Milk for the cat"), (1, "Bread"), (2, "Eggs")],
            "without a header",
        ),
        ("a.txt", "One, two.\nThree, four.\n", [(0, "One, two."), (1, "Three, four.")], ""),
        # names of columns
        ("a.csv", "ID,Text\n7,one\n", [("7", "one")], "ID as id"),
        ("a.csv", ",text\n0,one\n", [(0, "one")], ""),
        ("a.csv", "_id,id,text\nx,7,one\n", [("7", "one")], ""),
        ("a.csv", "n, text \n7,one\n", [(0, "one")], " text  as text"),
        ("a.csv", "n,sentence\n7,one\n", [(0, "one")], ""),
        # JSON
        (
            "a.json",
            '[{"id": 7, "text": "a"},\n {"id": 8, "text": "b"}]',
            [("7", "a"), ("8", "b")],
            "JSON array",
        ),
        ("a.json", '["one", "two"]', [(0, "one"), (1, "two")], "JSON array"),
        ("a.txt", '{"id": 7, "text": "one"}\n', [("7", "one")], "JSON lines"),
        (
            "corpus.jsonl",
            (
                '{"_id": "d1", "title": "Cats", "text": "They purr."}\n{"_id": "d2", "title": "",'
                ' "text": "x"}'
            ),
            [("d1", "Cats They purr."), ("d2", "x")],
            "title",
        ),
    ],
)
def test_what_is_meant_is_read_and_every_guess_is_told(
    name, content, expected, guess, tmp_path, told
):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert read(path) == expected
    message = told()
    assert (guess in message and message.startswith(str(path))) if guess else message == ""
    # a second walk: the same rows, and nothing is told twice
    if not name.endswith((".bz2", ".xz", ".zst")):
        file = count_input(str(path), ColumnChoice())
        told()
        rows = [
            row["text"]
            for batch in read_range([file], 1, file.rows, "it")
            for row in batch.to_pylist()
        ]
        assert rows == [text for _, text in expected[1:]] and told() == ""


def test_the_first_line_of_a_text_with_tabs_is_not_taken_for_names(tmp_path, told):
    path = tmp_path / "shop.txt"
    path.write_text("Milk\t2 litres\nBread\tone loaf\nEggs\ta dozen\n")
    assert texts(path, text="1") == ["Milk", "Bread", "Eggs"]
    assert "without a header" in told()


def test_a_pipe_has_a_dialect_too(tmp_path, told):
    os.mkfifo(tmp_path / "a.csv")
    content = "id;text\n" + "".join(
        f"{number};Zeile {number}, {'x' * 90}\n" for number in range(2_000)
    )
    writer = threading.Thread(target=(tmp_path / "a.csv").write_text, args=(content,), daemon=True)
    writer.start()
    rows = read(tmp_path / "a.csv")
    assert len(rows) == 2_000 and rows[1_999][0] == "1999" and "semicolons" in told()
    assert texts(STANDARD, text="text", stdin=b"id;text\n7;one\n") == ["one"]
    assert texts(STANDARD, text="text", stdin=b'[{"text": "one"}]') == ["one"]
    assert texts(STANDARD, stdin=b'{"text": "one"}\n') == ["one"]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (
            "a.csv",
            "A cat, asleep;The dog\nA dog, awake;The cat\n",
            ["commas or semicolons", "sep="],
        ),
        ("a.csv", "question1;question2\na;b\n", ["`text_field`", "columns: question1, question2"]),
        ("a.csv", "n;value\n1;2,5\n", ["`text_field`", "n, value"]),
        (
            "a.csv",
            "When,What do you like?\n2024-01-02 10:00,The food\n",
            ["columns: When, What do you like?"],
        ),
        ("a.csv", "Hello, world and all.\nNo comma here.\n", ["by number: 1 (Hello), 2 ( world"]),
        ("a.csv", "Well, I think so.\nYes, I do.\n", ["by number: 1 (Well), 2 ( I think so.)"]),
        (
            "a.csv",
            "1,Hello.\n2,Hello, world.\n",
            ["line 2: 3 columns, but the first line has 2", "double quotes"],
        ),
        ("a.csv", "value\n1\n2\n", ["'value' holds numbers"]),
        (
            "a.txt",
            "A cat.\tA dog.\nIt rains.\tIt snows.\n",
            ["by number: 1 (A cat.), 2 (A dog.)", "`text_field`"],
        ),
        ("a.csv", "\n".join(STSB), ["by number: 1 (main-captions)", "6 (A plane is taking"]),
        ("a.csv.zst", zstd(b"text\none\n" * 9)[:-5], ["damaged or cut-off .zst data"]),
        ("a.txt.xz", b"no xz", ["damaged or cut-off .xz data"]),
        ("a.csv", "Text,text ,other\na,b,c\n", ["columns: Text, text , other"]),
    ],
)
def test_what_is_ambiguous_is_refused_with_the_words_to_type(name, content, parts, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    fails(tmp_path / name, *parts)


def test_columns_are_named_by_number_too(tmp_path):
    assert texts(write(tmp_path, "a.csv", "\n".join(STSB)), text="6") == [
        "A plane is taking off.",
        'A man says "no.',
    ]
    assert read(write(tmp_path, "b.csv", "key;body\nk;one\n"), text="2", identifier="KEY") == [
        ("k", "one")
    ]


@pytest.mark.parametrize(
    ("header", "layout"),
    [
        ("sentence_A,sentence_B,relatedness_score", GRADED_PAIRS),
        ("question1,question2,is_duplicate", GRADED_PAIRS),
        ("premise,hypothesis,similarity", GRADED_PAIRS),
        ("Sentence 1,Sentence 2,Score", GRADED_PAIRS),
        ("sent0,sent1,label", GRADED_PAIRS),
        ("sentence_A,sentence_B,entailment_judgment", LABELLED_PAIRS),
        ("anchor,positive,negative", TRIPLETS),
        ("query,answer,hard_negative", TRIPLETS),
        ("anchor,positive", PAIRS),
        ("Question,Answer", PAIRS),
        ("sentence1,sentence2", PAIRS),
        ("question1,question2", PAIRS),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_roles_of_columns_by_their_names(header, layout, kind, tmp_path, told):
    names, row = header.split(","), ("A cat.", "A dog sleeps.", "1.0")
    if kind == "parquet":
        path = parquet(tmp_path, {name: [cell] for name, cell in zip(names, row, strict=False)})
    elif kind == "jsonl":
        path = write(tmp_path, "a.jsonl", json.dumps(dict(zip(names, row, strict=False))))
    else:
        path = write(tmp_path, "a.csv", f"{header}\n{','.join(row[: len(names)])}\n")
    with open_rows(path, ColumnChoice(layouts=(layout,))) as rows:
        assert dict(rows.columns) == dict(zip(layout, names, strict=True))
        assert list(rows.tuples()) == [row[: len(names)]]
    assert f"{names[1]} as {layout[1]}" in told()


@pytest.mark.parametrize(
    "header",
    ["sentence1,sentence2,score", "question1;question2;is_duplicate", "premise,hypothesis,label"],
)
def test_judged_pairs_are_not_taken_for_positives(header, tmp_path):
    sign = ";" if ";" in header else ","
    path = write(tmp_path, "a.csv", f"{header}\n{sign.join(('A cat.', 'A dog.', '0'))}\n")
    with (
        pytest.raises(
            UsageError, match=r'a\.csv:.*,.*" for sent0, sent1 or ".*a\.csv:.*" for text; columns: '
        ),
        open_rows(path, ColumnChoice(layouts=(TRIPLETS, PAIRS, SENTENCES), remedy="")),
    ):
        pass


@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_sts_b_as_distributed(name, tmp_path):
    path = write(tmp_path, name, "\n".join(STSB))
    for fields in (
        ColumnChoice(layouts=(GRADED_PAIRS,)),
        ColumnChoice(layouts=(GRADED_PAIRS,), named=("6", "7", "5")),
    ):
        with open_rows(path, fields) as rows:
            assert next(rows.tuples()) == (
                "A plane is taking off.",
                "An air plane is taking off.",
                "5.000",
            )


def test_graded_pairs_without_a_header(tmp_path, told):
    path = write(
        tmp_path, "a.csv", "A cat sleeps.;A cat is asleep.;4,5\nIt rains.;It is dry.;0,5\n"
    )
    with open_rows(path, ColumnChoice(layouts=(GRADED_PAIRS,))) as rows:
        assert list(rows.tuples()) == [
            ("A cat sleeps.", "A cat is asleep.", "4,5"),
            ("It rains.", "It is dry.", "0,5"),
        ]
    assert "1 as sentence1, 2 as sentence2, 3 as score" in told()


def test_columns_of_one_name_are_kept_or_refused(tmp_path, caplog):
    path = write(
        tmp_path,
        "twice.csv",
        "id,text,tag,tag.1,tag\n1,A ferry.,boat,no,left\n2,A baker.,food,yes,right\n",
    )
    with caplog.at_level("INFO", "promptcli"), open_rows(path, ColumnChoice(cells=True)) as rows:
        [batch] = rows
    assert batch.column(CELLS).to_pylist()[0] == [
        ("tag", "boat"),
        ("tag.1", "no"),
        ("tag.2", "left"),
    ]
    assert "several columns have one name; the further ones are called tag.2" in caplog.text
    path = write(tmp_path, "texts.csv", "id,text,text\n1,A ferry.,x\n2,A baker.,y\n")
    for fields in (ColumnChoice(), ColumnChoice(text="text")):
        with pytest.raises(
            UsageError,
            match=r"several columns are named 'text'; .* number of one; columns: id, text, text.1",
        ):
            with open_rows(path, fields):
                pass
    for given, expected in (
        ("2", ["A ferry.", "A baker."]),
        ("3", ["x", "y"]),
        ("text.1", ["x", "y"]),
    ):
        with open_rows(path, ColumnChoice(text=given)) as rows:
            assert list(rows.texts()) == expected
    path = write(tmp_path, "scores.csv", "sentence1,sentence2,score,score\na b,c d,1,2\n")
    with (
        pytest.raises(UsageError, match="several columns are named 'score'"),
        open_rows(path, ColumnChoice(layouts=(GRADED_PAIRS,))),
    ):
        pass
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with (
        pytest.raises(UsageError, match="several columns are named 'text'"),
        open_rows(tmp_path / "twice.parquet"),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "A ferry.\r\r\nA baker.\r\r"),
        ("a.csv", 'text,n\r\r\n"A ferry.",1\r\r\nA baker.,2\r\r\n'),
        ("a.tsv", "n\ttext\r\r\n1\tA ferry.\r\r\n2\tA baker.\r\r\n"),
        ("a.tsv", "n\ttext\r\n1\tA ferry.\r\n2\tA baker.\r\r\n"),
    ],
)
def test_carriage_returns_that_were_doubled_are_no_part_of_a_sentence(name, text, tmp_path):
    with open_rows(write(tmp_path, name, text)) as rows:
        assert list(rows.texts()) == ["A ferry.", "A baker."]


@pytest.mark.parametrize(
    ("lines", "is_told"),
    [
        (["Export of May 2024;;", "name;remark;n", "Ann;good;1"], True),
        (["Export;as of May 2024;", ";;", "name;remark;n", "Ann;good;1"], True),
        (["Export of May 2024", "name;remark;n", "Ann;good;1"], True),
        (["name;words;n", "Ann;good;1"], False),
        ([",words,n", "0,good,1"], False),
        (["name;words;", "Ann;good;", "Bob;bad;"], False),
        (["words", "good, and more"], False),
    ],
)
def test_a_title_above_the_names_of_the_columns_is_thought_of(lines, is_told, tmp_path):
    path = write(tmp_path, "t.csv", "\n".join(lines))
    with pytest.raises(UsageError, match="no column 'note'") as error:
        read(f"{path}:note")
    assert ("remove the lines above" in str(error.value)) is is_told
