"""The model that reads texts if none is named: by their language, and told in one line."""

import io

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.demo import read_demo
from promptcli.data.vectors import read_vectors
from promptcli.models import language_choice
from promptcli.models.language_choice import language_of, main_language, model_for
from promptcli.recipe import Choice
from tests.encoder.foreign_texts import texts

GERMAN = ["Der Hund schläft im Garten.", "Die Rechnung ist noch nicht bezahlt."]
ENGLISH = ["A dog sleeps in the garden.", "The invoice has not been paid."]


@pytest.mark.parametrize(
    ("sentence", "language"),
    [
        ("Der Hund schläft im Garten.", "German"),
        ("Il cane non è nella casa.", "Italian"),
        ("Собака спит в саду.", "Russian"),
        ("犬が庭で寝ている。", "Japanese"),
        ("狗在花园里睡觉。", "Chinese"),
        ("leckeres gebratenes gemüse", "German"),
        *[(text, "") for text in ("A dog sleeps.", "printer jam", "", "nginx-7f9 404 !?")],
        ("x" * 5000, ""),
        ("Собака спить у садку, її", ""),
        ("קוד ירוק", ""),
    ],
)
def test_a_language_that_the_model_has_learned_is_told(sentence, language):
    assert language_of([sentence]) == language


@pytest.mark.parametrize(
    ("language", "least"), [("German", 47), ("French", 41), ("Spanish", 45), ("Turkish", 0)]
)
def test_foreign_texts_are_told_alone_and_together(language, least):
    alone = [language_of([text]) for text in texts(language)]
    learned = language if least else ""
    assert alone.count(learned) >= least
    assert language_of(texts(language)) == learned
    assert main_language(texts(language)) == language
    assert main_language([*texts(language)[:20], *texts("English")]) == "English"


def test_english_texts_are_told_without_the_library(monkeypatch):
    monkeypatch.setattr(language_choice, "_identifier", None)
    sentences = [pair[0] for pairs in read_demo("test").values() for pair in pairs]
    assert language_of(sentences) == "" and main_language(sentences) == "English"
    assert language_of(["The weather is fine.", "犬が庭で寝ている。"]) == "Japanese"


def test_few_english_texts_with_foreign_names_are_taken_for_others():
    assert language_of(texts("English")) == ""
    assert sum(bool(language_of([text])) for text in texts("English")) <= 10


def test_a_third_of_the_texts_is_enough():
    assert language_of([*ENGLISH, GERMAN[0]]) == "German"
    assert language_of([*ENGLISH * 10, GERMAN[0]]) == ""


def test_a_german_query_over_english_notes_is_a_german_query():
    assert model_for(None, ENGLISH, query="Wo ist die Rechnung?") == "mini-multi"
    assert model_for(None, GERMAN, query="invoice") == "mini-multi"
    assert model_for(None, ENGLISH, query="invoice") == "mini"
    assert model_for(Choice(device="cpu"), ENGLISH, query=GERMAN[0]).model == "mini-multi"
    named = Choice("mini-static")
    assert model_for(named, GERMAN) is named


def test_one_note_names_the_language_that_a_model_has_not_learned(run, tmp_path):
    (tmp_path / "de.txt").write_text("\n".join(texts("German")), encoding="utf-8")
    (tmp_path / "en.txt").write_text("\n".join(texts("English")), encoding="utf-8")
    ran = run("search", "Wo ist meine Lieferung", tmp_path / "de.txt", "-m", "mini-static")
    assert ran.err.count("German") == 1 and "mini-static (English)" in ran.err
    ran = run("search", "where is my parcel", tmp_path / "en.txt", "-m", "mini-static")
    assert "has not learned" not in ran.err
    ran = run("search", "Wo ist meine Lieferung", tmp_path / "de.txt", "-m", "mini-multi")
    assert "has not learned" not in ran.err


def test_similarity_says_what_it_chose(run):
    ran = run("similarity", *GERMAN)
    assert "mini-multi" in ran.err and "German" in ran.err
    assert ran.out == run("similarity", *GERMAN, "-m", "mini-multi").out
    assert ran.out != run("similarity", *GERMAN, "-m", "mini").out


def test_english_is_as_before(run):
    ran = run("similarity", *ENGLISH)
    assert "mini (English)" in ran.err and "multi" not in ran.err
    assert ran.out == run("similarity", *ENGLISH, "-m", "mini").out


def test_a_named_model_stays(run):
    assert "using" not in run("similarity", *GERMAN, "-m", "mini-static").err
    assert "using mini-multi" not in run("similarity", *GERMAN, "--pooling", "last/avg").err


def test_search_reads_the_files_to_choose(run, tmp_path):
    (tmp_path / "notes.md").write_text("\n\n".join(GERMAN), encoding="utf-8")
    ran = run("search", "Rechnung", tmp_path / "notes.md")
    assert "using mini-multi" in ran.err and "Rechnung" in ran.out.splitlines()[0]
    (tmp_path / "notes.md").write_text("\n\n".join(ENGLISH), encoding="utf-8")
    assert "with mini-static (English)" in run("search", "invoice", tmp_path / "notes.md").err


def test_search_of_the_library_chooses_too(tmp_path):
    (tmp_path / "notes.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    found = pc.search("Rechnung", [tmp_path / "notes.txt"])
    named = pc.search("Rechnung", [tmp_path / "notes.txt"], model="mini-multi")
    assert [hit.score for hit in found] == [hit.score for hit in named]


def test_embed_chooses_by_the_first_rows(run, tmp_path):
    lines = "\n".join(GERMAN)
    (tmp_path / "lines.txt").write_text(lines, encoding="utf-8")
    ran = run("embed", tmp_path / "lines.txt", "-o", tmp_path / "a.npy")
    assert "using mini-multi" in ran.err
    pc.embed(io.BytesIO(lines.encode()), tmp_path / "b.npy", Choice())
    first, second = (np.load(tmp_path / name) for name in ("a.npy", "b.npy"))
    assert first.shape == (2, 256) and np.array_equal(first, second)


@pytest.mark.parametrize("way", ["build", "sync"])
def test_an_index_keeps_its_model(way, run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(GERMAN), encoding="utf-8")
    folder = tmp_path / "index"
    made = ["build", file, "-o", folder] if way == "build" else ["sync", folder, file]
    assert "using mini-multi" in run("index", *made).err
    ran = run("index", "search", folder, "dog")
    assert ran.code == 0 and "mini (English)" not in ran.err
    assert "mini-multi" in run("index", "info", folder).out


def test_sync_says_that_new_texts_are_in_another_language(run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(ENGLISH), encoding="utf-8")
    run("index", "sync", tmp_path / "index", file)
    file.write_text("\n".join([*ENGLISH, *GERMAN]), encoding="utf-8")
    ran = run("index", "sync", tmp_path / "index", file)
    assert "German" in ran.err and "mini-multi" in ran.err and "using" not in ran.err


def test_a_device_alone_names_no_model(tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    made = pc.embed(tmp_path / "lines.txt", tmp_path / "a.npy", Choice(device="cpu"))
    assert made.encoder.name == "mini-multi"


def test_parts_are_of_the_language_too(run, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(GERMAN), encoding="utf-8")
    ran = run("embed", tmp_path / "lines.txt", "-o", tmp_path / "parts", "--shards", "1")
    assert "using mini-multi" in ran.err
    run("embed", tmp_path / "lines.txt", "-o", tmp_path / "a.npy", "-m", "mini-multi")
    (part,) = (tmp_path / "parts").glob("*.parquet")
    assert np.allclose(read_vectors(part).matrix, np.load(tmp_path / "a.npy"), atol=1e-5)


def test_similarity_in_python_chooses_by_the_texts():
    assert pc.similarity(*GERMAN) == pc.similarity(*GERMAN, "mini-multi")
    assert pc.similarity(*ENGLISH) == pc.similarity(*ENGLISH, "mini")


@pytest.mark.parametrize("model", ["mini", "mini-static", "mini-multi"])
@pytest.mark.parametrize("letter", "\u00ad\u200b\u200d\u2060\ufeff")
def test_invisible_letters_are_left_out(model, letter):
    assert pc.similarity(f"Boden{letter}see Dampfer", "Bodensee Dampfer", model) > 0.99999
