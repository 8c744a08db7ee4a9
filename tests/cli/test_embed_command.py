"""``embed`` and ``similarity`` on the fake encoder: files, folders of parts, pipes.

What they print and refuse.
"""

import json
import os
import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from promptcli.data.vectors.formats import read_vectors
from promptcli.data.vectors.part_folder import part_name
from tests.comparing import refused
from tests.fake_commands import ROWS, TEXT, contents, fake_encoder, names  # noqa: F401
from tests.fake_encoder import FakeEncoder, vector

EMBED = ("embed", "a.txt", "-o", "v.npy")
PARTS = ("embed", "lines.txt", "-o", "out", "--shards", "4")
LINES = [f"line {number}" for number in range(10)]


@pytest.fixture(autouse=True)
def text():
    Path("a.txt").write_text(TEXT)
    Path("lines.txt").write_text("".join(f"{line}\n" for line in LINES))


def test_embed_writes_beside_the_input(run, fake):
    Path("b.txt").write_text(TEXT + "w " * 17 + "\n")
    code, out, err = run("embed", "b.txt")
    assert (code, out, fake[0][1]) == (0, "", "auto")
    assert names() == ["a.txt", "b.txt", "b.txt.npy", "b.txt.npy.manifest.json", "lines.txt"]
    assert np.array_equal(np.load("b.txt.npy")[:4], np.stack([vector(row) for row in ROWS]))
    blank, cut, last = err.splitlines()
    assert (
        "blank lines, which keep their rows: 1 of 5" in blank
        and "sentences cut to 16 tokens: 1 of 5" in cut
    )
    assert last.startswith("5 vectors of 8 dimensions in b.txt.npy, ") and last.endswith(
        " sentences/s)"
    )
    assert run("embed", "b.txt", "-q", "--force") == (0, "", "")


def test_fields_of_a_table_are_texts_and_ids(run):
    Path("a.csv").write_text("key,body\nk1,one\nk2,two\n")
    assert (
        run("embed", "a.csv", "-o", "v.parquet", "--text-field", "body", "--id-field", "key").code
        == 0
    )
    stored = read_vectors(Path("v.parquet"))
    assert (list(stored.ids), stored.texts) == (["k1", "k2"], ["one", "two"])


def test_json_lines_go_to_stdout(run):
    code, out, err = run("embed", "a.txt", "-o", "-", "--normalize")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [(row["id"], row["text"]) for row in rows] == list(enumerate(ROWS))
    assert (
        np.allclose([np.linalg.norm(row["embedding"]) for row in rows], 1)
        and "in standard output" in err
    )


def test_the_same_command_again_leaves_the_output(run):
    words = (*EMBED, "--precision", "int8")
    assert run(*words).code == 0
    before = os.stat("v.npy").st_mtime_ns, Path("v.npy.manifest.json").read_bytes()
    code, out, err = run(*words)
    assert (code, out) == (0, "") and "already there, unchanged\n" in err
    assert run(*words, "--json").json["blank"] == 1
    assert (os.stat("v.npy").st_mtime_ns, Path("v.npy.manifest.json").read_bytes()) == before


def test_vectors_of_other_library_versions_are_not_taken_for_the_same(run):
    assert run(*EMBED).code == 0
    path = Path("v.npy.manifest.json")
    manifest = json.loads(path.read_text())
    manifest["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(manifest))
    code, _, err = run(*EMBED)
    assert code == 2 and "v.npy exists" in err


@pytest.mark.parametrize("more", [("-o", "v.npy"), ("-o", "out", "--shards", "2")])
def test_rows_left_out_are_refused_without_the_option(run, more):
    Path("a.csv").write_bytes(b"id,text\n" + b"1,A cat sleeps.\n" * 5000 + b"2,Hel\xfflo\n3,a\n")
    words = ("embed", "a.csv", *more)
    for _ in range(2):
        assert run(*words, "--skip-bad").code == 0
    refused(run(*words), 2)


@pytest.mark.parametrize(
    "change",
    [
        "input",
        "settings",
        "encoder",
        "precision of the encoder",
        "output",
        "manifest",
        "no manifest",
    ],
)
def test_another_output_takes_force(run, fake, monkeypatch, change):
    assert run(*EMBED).code == 0
    if change == "input":
        Path("a.txt").write_text(f"{TEXT}more\n")
    elif change.endswith("encoder"):
        other = FakeEncoder()
        other.fingerprint = "e" * 64 if change == "encoder" else other.fingerprint
        other.provenance = (
            other.provenance if change == "encoder" else {"backbone": "fake", "dtype": "bfloat16"}
        )
        monkeypatch.setattr("promptcli.models.loading.open_encoder", lambda *_, **__: other)
    elif change == "output":
        np.save("v.npy", np.zeros((4, 8), np.float32))
    elif change == "manifest":
        Path("v.npy.manifest.json").write_text("{")
    elif change == "no manifest":
        Path("v.npy.manifest.json").unlink()
    before = Path("v.npy").read_bytes()
    more = ["--normalize"] if change == "settings" else []
    refused(run(*EMBED, *more), 2, "v.npy", "force")
    assert Path("v.npy").read_bytes() == before
    assert run(*EMBED, *more, "--force").code == 0


def test_a_folder_of_parts_is_made_and_continued(run):
    code, out, err = run(*PARTS)
    assert (code, out) == (0, "")
    assert err.startswith("out: 10 vectors of 8 dimensions in 4 parts (4 new, ")
    wanted = contents()
    assert "none new" in run(*PARTS).err
    Path("out", part_name(1, 4)).unlink()
    assert "(1 new, " in run(*PARTS).err and contents() == wanted
    told = run(*PARTS, "--json").json
    assert (told["rows"], told["shards"], told["made"], told["finished"]) == (10, 4, [], True)
    assert run(*PARTS, "-q", "--force") == (0, "", "") and contents() == wanted
    assert (
        "one: 1 of 4 parts exist (1 new, " in run(*PARTS[:3], "one", *PARTS[4:], "--shard", 2).err
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("embed none.txt", 3, "none.txt"),
        ("embed line.txt", 3, "did you mean lines.txt?"),
        ("embed folder", 2, "is a folder"),
        ("embed table.csv --id-field id", 2, "npy stores no ids; give an output of: .parquet"),
        ("embed a.txt -o v.csv", 2, ".npy, .parquet, .jsonl"),
        ("embed a.txt -o a.txt --force", 2, "a.txt"),
        ("embed a.txt none/v.npy", 2, "--shards N -o FOLDER"),
        ("embed sentence", 3, "'sentence' cannot be opened"),
        ("embed a.txt lines.txt", 2, "--shards N -o FOLDER"),
        ("embed a.txt --shard 1", 2, "--shards"),
        ("embed a.txt --shards 2", 2, "-o FOLDER"),
        ("embed a.txt -o out --shards 2 --split", 2, "--split is for one output file"),
        ("embed a.txt -o out --shards 2 --batch-size 4", 2, "--batch-size is for one output file"),
        ("embed s3://b/a.txt -o out --shards 2 --offline", 2, "another machine"),
        (" ".join([*PARTS, "--shard 4"]), 2, "0 to 3"),
        (" ".join([*PARTS, "--shard 1 --workers 2"]), 2, "one part"),
    ],
)
def test_an_embedding_that_cannot_be_is_refused_before_a_model_is_opened(
    run, fake, line, code, message
):
    Path("folder").mkdir()
    Path("table.csv").write_text("id,text\n1,one\n")
    before = names()
    refused(run(*line.split()), code, message)
    assert not fake and names() == before


@pytest.mark.parametrize("number", [0, 1], ids=["Slurm array", "loop"])
def test_scripts_of_the_guide_make_a_complete_folder(run, tmp_path, number):
    """The shell runs the scripts with a program that notes its arguments, in its order.

    Then these are run here.
    """
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    script = re.findall(r"```text\n(#!/bin/sh\n.*?)```", page, flags=re.DOTALL)[number]
    assert "--shards 64" in script
    script = script.replace("64", "8").replace("63", "7")
    Path("bin").mkdir()
    program = Path("bin", "promptcli")
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> noted\n')
    program.chmod(0o755)
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(8)))
    for task in range(8) if number == 0 else [0]:
        own = {"CORPUS": "a.txt", "FOLDER": "out", "SLURM_ARRAY_TASK_ID": str(task)}
        environment = {**os.environ, **own, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", script], env=environment, check=True)
    noted = Path("noted").read_text().splitlines()
    assert len(noted) == 8
    for line in noted:
        assert run(*line.split()).code == 0
    assert pq.read_table("out")["text"].to_pylist() == [f"line {number}" for number in range(8)]


def cosine(a, b):
    x, y = vector(a).astype(np.float64), vector(b).astype(np.float64)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def test_similarity_of_two_sentences_is_their_cosine(run, fake):
    for sentence in ("a b", "x" * 5000, "1/2 or 3/4", ".", "Mr."):
        ran = run("similarity", sentence, "c d")
        assert ran[:2] == (0, f"{cosine(sentence, 'c d'):.4f}\n")
        assert run("similarity", sentence, "c d", "-q").err == ""
    assert fake[0][1] == "stored"
    same = run("similarity", "a b", "a b", "--json").json
    assert same == {"a": "a b", "b": "a b", "similarity": pytest.approx(1, abs=1e-6)}


def test_a_blank_text_keeps_its_row_and_is_said_to_tell_nothing(run):
    ran = run("similarity", "", "c d")
    assert ran[:2] == (0, f"{cosine('', 'c d'):.4f}\n")
    assert "1 of 1 pair with a blank text" in ran.err
    Path("a.txt").write_text("one\n \nthree\n")
    ran = run("similarity", "a.txt", "a.txt", "--json")
    assert "1 of 3 pairs" in ran.err


def test_similarity_of_two_files_is_that_of_each_row(run):
    Path("a.txt").write_text(TEXT)
    Path("b.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(4)))
    code, out, _ = run("similarity", "a.txt", "b.jsonl")
    assert code == 0
    assert out.split() == [f"{cosine(row, f'row {i}'):.4f}" for i, row in enumerate(ROWS)]
    rows = [
        json.loads(line) for line in run("similarity", "a.txt", "b.jsonl", "--json")[1].splitlines()
    ]
    assert [(row["a"], row["b"]) for row in rows] == [
        (row, f"row {i}") for i, row in enumerate(ROWS)
    ]


def test_similarity_of_what_does_not_fit_is_refused(run, fake):
    Path("a.txt").write_text(TEXT)
    Path("b.txt").write_text("one\n")
    Path("c.txt").write_bytes(b"1\n2\n3\n\xff\n")
    refused(run("similarity", "a.txt", "b.txt"), 2, "a.txt has 4 rows and b.txt has 1")
    refused(run("similarity", "a.txt", "a sentence"), 2, "'a sentence' is not a file")
    refused(run("similarity", "a.txt", "c.txt"), 2, "c.txt: line 4")
    refused(run("similarity", "caf\udce9", "tea"), 2, "not UTF-8")
    assert not fake


@pytest.mark.parametrize(
    "words",
    [("none.csv", "b.csv"), ("none.csv", "a cat"), ("a cat", "none.csv"), ("b.csv", "none.csv")],
)
def test_similarity_refuses_names_of_files_that_are_not_there(run, fake, words):
    Path("b.csv").write_text("text\none\n")
    refused(run("similarity", *words), 3, "'none.csv' cannot be opened (No such file or directory)")
    refused(run("similarity", "folder/none", "a cat"), 3, "'folder/none'")
    assert not fake


#: Read at once, a pipe gives 64 KiB; these lines are more.
MANY = [f"line {number} of very many" for number in range(5000)]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("index build one -o index", ("index: 5,000 rows",)),
        ("embed one -q", [f'{{"id":{number},"text":"{line}"' for number, line in enumerate(MANY)]),
        ("similarity one two", ["1.0000"] * len(MANY)),
    ],
)
def test_every_line_arrives(words, lines, run):
    for name in {"one", "two"}.intersection(words.split()):
        pipe = Path(name).absolute()  # the thread may begin in another folder
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_text, args=("\n".join(MANY),), daemon=True).start()
    ran = run(*words.split())
    assert ran.code == 0, ran.err
    shown = (
        ran.out.replace(", ", ",").replace(": ", ":").splitlines()
        if "embed" in words
        else [*ran.out.splitlines(), *ran.err.splitlines()]
    )
    shown = [line for line in shown if line.startswith(("index: 5", "{", "1"))]
    assert len(shown) == len(lines) and all(map(str.startswith, shown, lines))


def test_a_column_is_named_with_the_file(run):
    Path("a.csv").write_text("key,body\nk1,one\nk2,two\n")
    assert run("embed", "a.csv:body", "-o", "v.parquet").code == 0
    assert read_vectors(Path("v.parquet")).texts == ["one", "two"]
    assert run("embed", "a.csv:body", "-o", "out", "--shards", "2").code == 0
    assert pq.read_table(f"out/{part_name(0, 2)}").column("text").to_pylist() == ["one"]
    assert run("similarity", "a.csv:body", "a.csv:body").out == "1.0000\n1.0000\n"
    code, _, err = run("embed", "b.csv:body")
    assert code == 3 and "'b.csv:body' cannot be opened" in err


def test_each_column_has_an_output_of_its_own_and_a_missing_one_is_named_first(run):
    Path("t.csv").write_text("a,b\nA cat,A dog\n")
    for column in ("a", "b"):
        assert run("embed", f"t.csv:{column}")[0] == 0
    assert {"t.csv.a.npy", "t.csv.b.npy"} < set(names())
    for words in (["t.csv:bb"], ["t.csv:bb", "-o", "t.csv.a.npy"]):
        code, _, err = run("embed", *words)
        assert code == 2 and "'bb'" in err
