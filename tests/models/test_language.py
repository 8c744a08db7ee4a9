"""The language of texts, the note on a model that has not learned it, and the one default."""

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.demo import read_demo
from promptcli.models import language
from promptcli.models.language import main_language
from promptcli.models.loading import or_search_model
from promptcli.recipe import ModelChoice
from tests.encoder.foreign_texts import texts

GERMAN = ["Der Hund schläft im Garten.", "Die Rechnung ist noch nicht bezahlt."]
ENGLISH = ["A dog sleeps in the garden.", "The invoice has not been paid."]


@pytest.mark.parametrize(
    ("sentence", "name"),
    [
        ("Der Hund schläft im Garten.", "German"),
        ("Il cane non è nella casa.", "Italian"),
        ("Собака спит в саду.", "Russian"),
        ("犬が庭で寝ている。", "Japanese"),
        ("狗在花园里睡觉。", "Chinese"),
        ("leckeres gebratenes gemüse", "German"),
        *[(text, "English") for text in ("A dog sleeps.", "printer jam", "", "nginx-7f9 404 !?")],
        ("x" * 5000, "English"),
        ("Собака спить у садку, її", "English"),
        ("קוד ירוק", "English"),
    ],
)
def test_a_language_is_told(sentence, name):
    assert main_language([sentence]) == name


@pytest.mark.parametrize("name", ["German", "French", "Spanish", "Turkish"])
def test_most_texts_decide(name):
    assert main_language(texts(name)) == name
    assert main_language([*texts(name)[:20], *texts("English")]) == "English"


def test_texts_are_sampled_over_a_whole_list():
    assert main_language(150 * ENGLISH[:1] + 249 * GERMAN[:1]) == "German"


def test_english_texts_are_told_without_the_library(monkeypatch):
    monkeypatch.setattr(language, "_identifier", None)
    sentences = [pair[0] for pairs in read_demo("test").values() for pair in pairs]
    assert main_language(sentences) == "English"


def test_one_note_names_the_language_that_a_model_has_not_learned(run, tmp_path):
    (tmp_path / "de.txt").write_text("\n".join(texts("German")), encoding="utf-8")
    (tmp_path / "en.txt").write_text("\n".join(texts("English")), encoding="utf-8")
    ran = run("search", "Wo ist meine Lieferung", tmp_path / "de.txt", "-m", "mini-static")
    assert ran.err.count("German") == 1 and "mini-static (English)" in ran.err
    ran = run("search", "where is my parcel", tmp_path / "en.txt", "-m", "mini-static")
    assert "has not learned" not in ran.err
    ran = run("search", "Wo ist meine Lieferung", tmp_path / "de.txt")
    assert "has not learned" not in ran.err
    ran = run("embed", tmp_path / "de.txt", "-o", tmp_path / "de.npy")
    assert "has not learned German" in ran.err and "mini-multi" in ran.err


@pytest.mark.parametrize("sentences", [GERMAN, ENGLISH])
def test_one_model_compares_searches_and_indexes_all_languages(run, tmp_path, sentences):
    file = tmp_path / "notes.txt"
    file.write_text("\n".join(sentences), encoding="utf-8")
    assert pc.similarity(*sentences) == pc.similarity(*sentences, "mini-multi")
    assert (
        run("similarity", *sentences).out == run("similarity", *sentences, "-m", "mini-multi").out
    )
    found, named = (pc.search("Hund", [file], model=model) for model in (None, "mini-multi"))
    assert [hit.score for hit in found] == [hit.score for hit in named]
    assert "mini-multi" in run("search", "invoice", file).err
    for folder, made in (
        (tmp_path / "built", ["build", file, "-o", tmp_path / "built"]),
        (tmp_path / "synced", ["sync", tmp_path / "synced", file]),
    ):
        assert run("index", *made).code == 0
        assert "mini-multi" in run("index", "info", folder).out


def test_a_choice_without_a_model_is_filled():
    assert or_search_model(None) == "mini-multi"
    for computed in ({"device": "cpu"}, {"backend": "onnx"}):
        assert or_search_model(ModelChoice(**computed)) == ModelChoice("mini-multi", **computed)
    for chosen in (
        ModelChoice("mini"),
        ModelChoice(changes={"pooling": "last/avg"}),
        ModelChoice(backbone="bert"),
    ):
        assert or_search_model(chosen) is chosen


@pytest.mark.parametrize("name", ["mini", "mini-static", "mini-multi"])
@pytest.mark.parametrize("letter", "\u00ad\u200b\u200d\u2060\ufeff")
def test_invisible_letters_are_left_out(name, letter):
    assert np.isclose(pc.similarity(f"Boden{letter}see Dampfer", "Bodensee Dampfer", name), 1)
