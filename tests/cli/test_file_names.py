"""Files whose names are not UTF-8: what is made of them is kept, and says where it came from as
well as text can.
"""

import os
from pathlib import Path

import promptcli as pc
from promptcli.data.vectors.formats import read_vectors
from promptcli.models.entries import Registry
from tests.comparing import refusal
from tests.tiny import SENTENCES


def test_what_is_made_of_them_is_kept(run, home, here, bert_folder):
    text, out = (os.fsdecode(name) for name in (b"caf\xe9.txt", b"v\xe9.npy"))
    Path(text).write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    small = ["--backbone", bert_folder, "--offline", "-q"]
    assert run("embed", text, "-o", out, *small).code == 0
    assert read_vectors(Path(out)).manifest.input.path == "caf\\xe9.txt"
    assert run("index", "build", text, "-o", "index", *small).code == 0
    assert run("index", "search", "index", SENTENCES[0], "--offline", "-q").out.split()[0] == "1"
    assert run("fit", "--on", text, "-m", "first-last-tfidf", "--name", "made", *small).code == 0
    assert Registry(home).load("made").recipe
    assert "caf?.t" in (home / "models" / "made" / "promptcli.json").read_text(encoding="utf-8")


def test_sync_leaves_out_a_file_that_no_id_can_name(here, notes):
    Path("texts").mkdir()
    odd = f"texts/{os.fsdecode(bytes([255]))}.txt"
    Path("texts/a.txt").write_text("A cat sleeps.\n")
    Path(odd).write_text("A dog barks.\n")
    assert len(pc.SentenceIndex.sync("index", ["texts"], model="mini-static").index) == 1
    assert "skipped 1 file" in notes.text
    with refusal("its name is not UTF-8; rename it"):
        pc.SentenceIndex.sync("index", [odd], model="mini-static")
