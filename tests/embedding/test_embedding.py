import hashlib
import json
import re
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from promptcli.data.rows import open_rows
from promptcli.data.vectors.formats import (
    VECTOR_FORMATS,
    EmbedSettings,
    closing_sink,
    manifest_path,
    read_vectors,
)
from promptcli.data.vectors.precision import unit
from promptcli.embedding import writing
from promptcli.embedding.writing import VectorWriter
from promptcli.errors import PromptcliError
from tests.comparing import refusal
from tests.fake_encoder import FakeEncoder, vector
from tests.killing import killed_at_every_step
from tests.processes import Program
from tests.source_files import batch


class Window(dict):
    """A batch that can be weakly referenced."""


class Kept:
    """A sink that keeps its rows."""

    def __init__(self):
        self.texts, self.parts = [], []

    def write(self, batch, vectors):
        self.texts += batch["text"]
        self.parts.append(vectors)

    def close(self):
        pass


SENTENCES = [f"sentence {i % 7} of {i}" for i in range(25)]


@pytest.mark.parametrize("window", [1, 4, 25, 100])
def test_rows_are_in_order_whatever_the_window(window, monkeypatch):
    monkeypatch.setattr(writing, "WINDOW", window)
    sink, done, encoder = Kept(), [], FakeEncoder()
    report = VectorWriter(encoder).write([batch(SENTENCES)], sink, progress=done.append)
    assert np.array_equal(np.concatenate(sink.parts), np.stack([vector(s) for s in SENTENCES]))
    assert sink.texts == SENTENCES
    assert report.rows == sum(done) == 25
    assert max(encoder.calls) == min(window, 25)


def test_written_windows_are_let_go(monkeypatch):
    read = []

    def windows(batches, *limits):
        for number in range(40):
            assert sum(window() is not None for window in read) < 5
            window = Window(batch([f"sentence {number}"]))
            read.append(weakref.ref(window))
            yield window
            del window

    monkeypatch.setattr(writing, "windows", windows)
    assert VectorWriter(FakeEncoder()).write([], Kept()).rows == 40


def test_blank_and_cut_sentences_are_counted(monkeypatch):
    monkeypatch.setattr(writing, "WINDOW", 2)
    report = VectorWriter(FakeEncoder()).write(
        [batch(["a", "", " \t", "w " * 17, "w " * 16, "x " * 30])], Kept()
    )
    assert (report.rows, report.blank, report.truncated) == (6, 2, 2)


def test_normalised_vectors_have_length_1():
    sink = Kept()
    writer = VectorWriter(FakeEncoder(), EmbedSettings(normalize=True))
    writer.write([batch(SENTENCES)], sink)
    assert np.allclose(np.linalg.norm(sink.parts[0], axis=1), 1, atol=1e-6)
    zeros = unit(np.zeros((2, 3), np.float32))
    assert zeros.dtype == np.float32 and not zeros.any()


def test_a_vector_that_is_not_finite_is_refused_by_row(monkeypatch):
    monkeypatch.setattr(writing, "WINDOW", 2)
    monkeypatch.setattr(
        "tests.fake_encoder.vector",
        lambda s, w: np.full(w, np.nan if s == "bad" else 1, np.float32),
    )
    with refusal("the vector of row 2 is not finite", PromptcliError):
        VectorWriter(FakeEncoder()).write([batch(["a", "b", "bad"])], Kept())


def embed(folder, kind=".npy", text="one\n\nthree\n", name="a.txt", **options):
    path = folder / name
    path.write_text(text)
    target = folder / f"v{kind}"
    with open_rows(path) as source:
        report = VectorWriter(FakeEncoder()).write_file(source, target, **options)
    return target, report


@pytest.mark.parametrize("kind", [".npy", ".parquet"])
def test_a_file_and_its_manifest(tmp_path, kind):
    target, _ = embed(tmp_path, kind)
    found = read_vectors(target)
    assert np.array_equal(found.matrix, np.stack([vector(s) for s in ("one", "", "three")]))
    manifest = json.loads(manifest_path(target).read_text())
    assert {"promptcli", "torch", "transformers"} <= manifest["versions"].keys()
    assert (manifest["recipe"], manifest["fingerprint"]) == (
        FakeEncoder().recipe.to_dict(),
        "f" * 64,
    )
    counts = {
        "rows": 3,
        "blank": 1,
        "zero": 0,
        "truncated": 0,
        "loss": None,
        "ranges": None,
        "blank_rows": [[1, 2]],
    }
    assert manifest["report"] == counts
    assert manifest["input"]["sha256"] == hashlib.sha256(b"one\n\nthree\n").hexdigest()
    assert manifest["output"] == {
        "path": target.name,
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
    }
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.txt",
        target.name,
        manifest_path(target).name,
    }


@pytest.mark.parametrize("kind", list(VECTOR_FORMATS))
def test_a_failure_leaves_the_old_file_and_manifest_alone(tmp_path, kind, monkeypatch):
    target, _ = embed(tmp_path, kind)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\nbroken\n')
    monkeypatch.setattr(writing, "WINDOW", 1)
    with refusal("line 3", PromptcliError), open_rows(tmp_path / "b.jsonl") as source:
        VectorWriter(FakeEncoder()).write_file(source, target)
    (tmp_path / "b.jsonl").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_that_appears_in_the_meantime_keeps_its_own_manifest(tmp_path):
    def meanwhile(done):
        if not list(tmp_path.glob("*.npy")):
            embed(tmp_path, text="another\nfile\n")

    with refusal(r"v\.npy appeared in the meantime; choose"):
        embed(tmp_path, force=False, progress=meanwhile)
    [target] = tmp_path.glob("*.npy")
    assert read_vectors(target).manifest.report.rows == 2


def test_a_kill_at_any_file_event_leaves_a_file_with_its_own_manifest(tmp_path):
    def look(folder):
        [target] = folder.glob("*.npy")
        found = read_vectors(target)  # its checksum is the manifest's, if it has one
        return len(found.matrix)

    def finish(folder):
        target, _ = embed(folder)
        assert read_vectors(target).manifest.report.rows == 3

    def another(folder):
        embed(folder, text="quite\nanother\nfile\n!\n")

    counts = killed_at_every_step(tmp_path, embed, another, look, finish)
    assert len(set(counts)) == 2 and counts[-1] == 4


# VmHWM and not ru_maxrss: Linux hands the latter down from the process that forked, here the much
# larger pytest.
def _embed_and_print_peak(path, target):
    writing.WINDOW = 4096
    with (
        open_rows(path) as source,
        target.open("wb") as file,
        closing_sink(VECTOR_FORMATS[target.suffix].open(file, 256)) as sink,
    ):
        report = VectorWriter(FakeEncoder(256)).write(source, sink)
    print(report.rows, re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", list(VECTOR_FORMATS))
def test_memory_does_not_grow_with_the_lines(tmp_path, kind):
    peaks = []
    for rows in (5_000, 50_000):
        path = tmp_path / f"{rows}.txt"
        path.write_text(
            "".join(f"a generated sentence, number {i:07d} of its file\n" for i in range(rows))
        )
        running = Program(main=partial(_embed_and_print_peak, path, tmp_path / f"v{kind}"))
        out, err = running.communicate()
        assert running.returncode == 0, err.decode()
        counted, peak = map(int, out.split())
        assert counted == rows
        peaks.append(peak)
    assert peaks[1] <= 1.1 * peaks[0]
