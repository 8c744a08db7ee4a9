import errno
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from promptcli.data.vectors import FORMATS, read_vectors
from tests.embed_fakes import FakeEncoder, vector
from tests.embed_running import ROWS, TEXT, fake_encoder, names, refused  # noqa: F401


def test_embed_writes_beside_the_input(run, fake):
    Path("a.txt").write_text(TEXT)
    code, out, err = run("embed", "a.txt")
    assert (code, out) == (0, "")
    assert names() == ["a.txt", "a.txt.npy", "a.txt.npy.manifest.json"]
    assert np.array_equal(np.load("a.txt.npy"), np.stack([vector(row) for row in ROWS]))
    assert fake[0][1] == "auto"
    *notes, last = err.splitlines()
    assert notes == ["1 of 4 lines are blank; each keeps its row"]
    assert last.startswith("4 vectors of 8 numbers in a.txt.npy, ") and last.endswith(" sentences/s)")


def test_cut_sentences_are_said(run):
    Path("a.txt").write_text("one\n" * 1200 + "w " * 17 + "\n")
    _, _, err = run("embed", "a.txt")
    assert err.splitlines()[0] == "1 of 1,201 sentences were longer than 16 tokens and were cut"
    assert json.loads(Path("a.txt.npy.manifest.json").read_text())["report"]["truncated"] == 1


def test_quiet_says_nothing(run):
    Path("a.txt").write_text(TEXT)
    assert run("embed", "a.txt", "-q") == (0, "", "")


@pytest.mark.parametrize("kind", [".npy", ".parquet", ".jsonl"])
def test_every_output(run, kind):
    Path("a.csv").write_text("key,body\nk1,one\nk2,two\n")
    fields = ["--text-field", "body", *(["--id-field", "key"] if kind in (".parquet", ".jsonl") else [])]
    assert run("embed", "a.csv", "-o", f"v{kind}", *fields)[0] == 0
    found = read_vectors(Path(f"v{kind}"))
    assert np.array_equal(found.matrix, np.stack([vector("one"), vector("two")]))
    assert list(found.ids) == (["k1", "k2"] if kind in (".parquet", ".jsonl") else [0, 1])
    assert found.texts == (["one", "two"] if kind in (".parquet", ".jsonl") else None)


def test_json_lines_on_stdout(run):
    Path("a.txt").write_text(TEXT)
    code, out, err = run("embed", "a.txt", "-o", "-", "--normalize")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["id"], row["text"]) for row in rows] == list(enumerate(ROWS))
    assert np.allclose([np.linalg.norm(row["embedding"]) for row in rows], 1)
    assert "in standard output" in err
    assert names() == ["a.txt"]
    assert json.loads(run("embed", "a.txt", "-o", "-", "--no-text")[1].splitlines()[0]).keys() == {"id", "embedding"}


def test_ids_need_a_format_with_room(run, fake):
    Path("a.csv").write_text("id,text\n1,one\n")
    refused(run("embed", "a.csv", "--id-field", "id"), 2, "does not store ids", ".parquet")
    assert not fake


def test_an_output_is_replaced_only_by_force(run, fake):
    Path("a.txt").write_text(TEXT)
    Path("b.txt").write_text("another\n")
    assert run("embed", "a.txt", "-o", "v.npy")[0] == 0
    before = Path("v.npy").read_bytes()
    refused(run("embed", "b.txt", "-o", "v.npy"), 2, "v.npy: the file is there", "`force`")
    assert Path("v.npy").read_bytes() == before
    assert len(fake) == 1
    assert run("embed", "b.txt", "-o", "v.npy", "--force")[0] == 0
    assert read_vectors(Path("v.npy")).manifest.input.path == "b.txt"


def test_the_same_command_again_leaves_what_is_there(run, fake):
    Path("a.txt").write_text(TEXT)
    assert run("embed", "a.txt", "-o", "v.npy", "--precision", "int8")[0] == 0
    before = os.stat("v.npy").st_mtime_ns, Path("v.npy.manifest.json").read_bytes()
    code, out, err = run("embed", "a.txt", "-o", "v.npy", "--precision", "int8")
    assert (code, out) == (0, "") and "4 vectors of 8 numbers in v.npy, already there, unchanged\n" in err
    assert (os.stat("v.npy").st_mtime_ns, Path("v.npy.manifest.json").read_bytes()) == before
    assert json.loads(run("embed", "a.txt", "-o", "v.npy", "--precision", "int8", "--json")[1])["blank"] == 1


@pytest.mark.parametrize(
    "change", ["input", "settings", "encoder", "precision of the encoder", "output", "manifest", "no manifest"]
)
def test_what_another_command_would_make_takes_force(run, fake, monkeypatch, change):
    Path("a.txt").write_text(TEXT)
    assert run("embed", "a.txt", "-o", "v.npy")[0] == 0
    if change == "input":
        Path("a.txt").write_text(f"{TEXT}more\n")
    elif change.endswith("encoder"):
        made = FakeEncoder()
        made.fingerprint = "e" * 64 if change == "encoder" else made.fingerprint
        made.provenance = made.provenance if change == "encoder" else {"backbone": "fake", "dtype": "bfloat16"}
        monkeypatch.setattr("promptcli.models.loading.open_model", lambda *_, **__: made)
    elif change == "output":
        np.save("v.npy", np.zeros((4, 8), np.float32))
    elif change == "manifest":
        Path("v.npy.manifest.json").write_text("{")
    elif change == "no manifest":
        Path("v.npy.manifest.json").unlink()
    before = Path("v.npy").read_bytes()
    more = ["--normalize"] if change == "settings" else []
    refused(run("embed", "a.txt", "-o", "v.npy", *more), 2, "v.npy: the file is there", "`force`")
    assert Path("v.npy").read_bytes() == before
    assert run("embed", "a.txt", "-o", "v.npy", *more, "--force")[0] == 0


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        ("v.csv", [".npy, .parquet, .jsonl"]),
        ("folder.npy", ["a folder, not a file"]),
        ("a.jsonl", ["is the input itself"]),
        ("/dev/full", [".npy"]),
    ],
)
def test_outputs_that_cannot_be_written(run, fake, output, parts):
    Path("a.jsonl").write_text('{"text": "one"}\n')
    Path("folder.npy").mkdir()
    refused(run("embed", "a.jsonl", "-o", output, "--force"), 2, *parts)
    assert not fake
    assert Path("a.jsonl").read_text() == '{"text": "one"}\n'


def test_an_output_name_too_long_or_in_no_folder(run):
    Path("a.txt").write_text(TEXT)
    refused(run("embed", "a.txt", "-o", "none/v.npy"), 3, "no folder 'none'", "mkdir")
    refused(run("embed", "a.txt", "-o", "x" * 250 + ".npy"), 2, "more than 200 bytes")


@pytest.mark.parametrize(("flag", "said"), [(os.W_OK, "may not be written"), (os.R_OK, "may not be read")])
def test_permissions(run, fake, monkeypatch, flag, said):
    Path("a.txt").write_text(TEXT)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & flag)  # as root, nothing is truly closed
    refused(run("embed", "a.txt"), 2, said)
    assert not fake


def write_wrong(name):
    Path("folder").mkdir()
    Path("empty.txt").write_text("")
    Path("latin.txt").write_bytes(b"one\ncaf\xe9\n")
    Path("nul.txt").write_bytes(b"one\0\n")
    Path("a.csv").write_text("a,b\n1,2\n")
    Path("b.jsonl").write_text('{"text": "one"}\n{"text": 2}\n')
    return name


@pytest.mark.parametrize(
    ("name", "code", "parts"),
    [
        ("none.txt", 3, ["none.txt", "No such file"]),
        ("folder", 2, ["is a folder"]),
        ("empty.txt", 2, ["empty.txt is empty"]),
        ("latin.txt", 2, ["latin.txt: line 2", "iconv"]),
        ("nul.txt", 2, ["nul.txt: line 1", "NUL"]),
        ("a.csv", 2, ["columns: a, b"]),
        ("b.jsonl", 2, ["b.jsonl: line 2", "'text' is 2"]),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(run, name, code, parts):
    write_wrong(name)
    before = names()
    refused(run("embed", name, "-o", "v.npy"), code, *parts)
    assert names() == before


@pytest.mark.parametrize("name", ["none.txt", "folder", "empty.txt", "nul.txt", "a.csv"])
def test_wrong_input_is_found_before_the_model_is_loaded(run, fake, name):
    write_wrong(name)
    run("embed", name)
    assert not fake


def test_a_line_of_a_megabyte(run):
    Path("a.txt").write_text("one\n" + "word " * 200_000 + "\nthree\n")
    assert run("embed", "a.txt")[0] == 0
    assert np.load("a.txt.npy").shape == (3, 8)


@pytest.mark.parametrize("failing", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("kind", [".npy", ".parquet", ".jsonl"])
def test_a_disk_that_fails(run, monkeypatch, kind, failing):
    class Full:
        def __init__(self, file, width, with_text):
            self.file = file

        def write(self, records, vectors):
            self.file.write(b"half")
            raise OSError(failing, os.strerror(failing))

        def close(self):
            pass

    monkeypatch.setitem(FORMATS, kind, replace(FORMATS[kind], open=Full))
    Path("a.txt").write_text(TEXT)
    expected = "Input/output error" if failing == errno.EIO else "disk full"
    refused(run("embed", "a.txt", "-o", f"v{kind}"), 1, expected, "nothing half written")
    assert names() == ["a.txt"]


def test_ctrl_c_in_process(run, monkeypatch):
    def interrupted(self, sentences, *, most=None, progress=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeEncoder, "encode_report", interrupted)
    Path("a.txt").write_text(TEXT)
    code, out, err = run("embed", "a.txt")
    assert (code, out) == (130, "")
    assert err.count("\n") <= 1
    assert names() == ["a.txt"]


def test_gzip_on_the_command_line(run):
    Path("a.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert run("embed", "a.txt.gz", "-q")[0] == 0
    assert np.load("a.txt.gz.npy").shape == (4, 8)


def test_sentences_on_the_command_line(run):
    code, out, err = run("embed", "A cat sleeps.", "Dogs bark.", "--batch-size", "1")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["text"] for row in rows] == ["A cat sleeps.", "Dogs bark."]
    assert rows[1]["embedding"] == pytest.approx(vector("Dogs bark.", 8).tolist(), abs=1e-6)
    assert "no such file; read as 2 sentences" in err
    Path("A cat sleeps.").write_text("Dogs bark.\n")  # a file comes first
    assert run("embed", "A cat sleeps.", "-o", "v.jsonl")[0] == 0
    (row,) = map(json.loads, Path("v.jsonl").read_text().splitlines())
    assert row["embedding"] == rows[1]["embedding"]
    refused(run("embed", "sentencs.txt"), 3, "sentencs.txt")


def test_several_words_without_files_of_their_names_are_sentences(run):
    code, out, err = run("embed", "A cat sleeps.", "Hello")
    assert code == 0 and [json.loads(line)["text"] for line in out.splitlines()] == ["A cat sleeps.", "Hello"]
    assert "no such file; read as 2 sentences" in err


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (("a b.txt", "c d.txt"), 2, ["--shards N -o FOLDER"]),
        (("a b.txt", "e f.txt"), 3, ["'e f.txt'"]),
        (("A cat sleeps.", "a b.txt"), 3, ["'A cat sleeps.'"]),
        (("A cat sleeps.", "none.txt"), 3, ["'none.txt'"]),
        (("one\ntwo", "three"), 2, ["line break"]),
    ],
)
def test_no_file_of_several_is_dropped(run, fake, words, code, parts):
    for name in ("a b.txt", "c d.txt"):
        Path(name).write_text(TEXT)
    refused(run("embed", *words), code, *parts)
    assert not fake and names() == ["a b.txt", "c d.txt"]
