"""A note where a model has the words of the texts in small pieces only, and none where it has
learned them.
"""

from pathlib import Path

import pytest

import promptcli as pc
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.models import language
from tests import tiny

CHINESE = ["猫在垫子上睡觉", "狗在垫子上"]
RUSSIAN = "Кошка спит на коврике"
NOTE = "has not learned"


@pytest.fixture
def notes(monkeypatch):
    said = []
    monkeypatch.setattr(language, "note", said.append)
    return said


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Поезд в Кёльн опаздывает.", "Russian"),
        ("Собака спить у садку, її", "the language of these texts"),
        ("Το τρένο έχει καθυστέρηση.", "the language of these texts"),
        ("القطار متأخر", "the language of these texts"),
        ("ट्रेन देर से है", "the language of these texts"),
        ("பூனை பாயில் தூங்குகிறது", "the language of these texts"),
        ("แมวนอนบนเสื่อ", "the language of these texts"),
        ("기차가 늦었습니다", "the language of these texts"),
        ("猫在垫子上睡觉", "Chinese"),
        ("猫がマットの上で寝ている", "Japanese"),
        ("kцт", "Russian"),
    ],
)
def test_other_alphabets_are_not_those_of_an_english_model(text, named, notes):
    language.note_unread(pc.load("mini"), [text])
    assert len(notes) == 1 and f"'mini' {NOTE} {named}:" in notes[0]
    notes.clear()
    language.note_unread(pc.load("mini-multi"), [text])
    assert not notes


@pytest.mark.parametrize(
    "text", ["I saw a cat.", "I, X, a = b", "Is 4 x 5 = 20?", "hi", "LGTM/ASAP/FYI", "404", ""]
)
def test_a_few_latin_letters_are_no_other_language(text, notes):
    language.note_unread(pc.load("mini"), [text])
    assert not notes


def test_signs_that_are_words_may_be_tokens(notes, monkeypatch):
    signs = sorted(set("".join(CHINESE)))
    encoder = pc.load("mini")
    tokenizer = PieceTokenizer(tiny.wordpiece([*signs, "cat"], lowercase=False), "a Chinese model")
    monkeypatch.setattr(encoder, "piece_tokenizer", tokenizer)
    language.note_unread(encoder, CHINESE)
    assert not notes


@pytest.mark.parametrize(
    "words",
    [
        ("embed", "texts.txt"),
        ("embed", "texts.txt", "--shards", "2", "-o", "parts"),
        ("similarity", RUSSIAN, "кот"),
        ("similarity", "texts.txt", "texts.txt"),
        ("search", "cat", "texts.txt"),
        ("index", "build", "texts.txt", "-o", "index"),
        ("index", "sync", "index", "texts.txt"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
@pytest.mark.parametrize("known", [False, True])
def test_commands_say_it_once(run, here, words, known):
    texts = ["A cat sleeps on the mat.", "Two dogs play."] if known else [RUSSIAN, "Собаки играют"]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    if known:
        words = ["A cat sleeps." if word in (RUSSIAN, "кот") else word for word in words]
    ran = run(*words, "-m", "mini-static")
    assert (ran.code, ran.err.count(NOTE)) == (0, 0 if known else 1), ran.err
    assert known or ran.err.count("mini-multi") == 1, ran.err


def test_the_note_names_the_model(run):
    assert f"'mini' {NOTE} Russian" in run("similarity", RUSSIAN, "кот", "-m", "mini").err


def test_a_query_in_letters_that_the_index_does_not_know_is_noted(run, here):
    Path("texts.txt").write_text("A cat sleeps.\nTwo dogs play.\n")
    assert run("index", "build", "texts.txt", "-o", "index", "-m", "mini").code == 0
    assert NOTE not in run("index", "search", "index", "cat").err
    assert run("index", "search", "index", RUSSIAN).err.count(NOTE) == 1
