"""A note where most letters of the texts are unknown to the model's vocabulary, and none where they
are known.
"""

from pathlib import Path

import pytest

from promptcli.backbones.locating import SHIPPED
from promptcli.backbones.tokenizer import PieceTokenizer, read_wordpiece
from tests import tiny

ENGLISH = ["I saw a cat.", "Prices rose by 3.5% in May; nobody was surprised.", "Is 4 x 5 = 20?"]
GERMAN = [
    "Der Zug nach Köln hat zwei Stunden Verspätung.",
    "Zwei Kinder laufen über eine grüne Wiese.",
]
CHINESE = ["猫在垫子上睡觉", "狗在垫子上"]
RUSSIAN = "Кошка спит на коврике"
NOTE = "has not learned the language of these texts"


@pytest.fixture(scope="module")
def english():
    return PieceTokenizer(read_wordpiece(SHIPPED["mini-bert"]), "mini-bert")


def share(tokenizer, texts):
    unknown, letters = tokenizer.unknown_letters(texts)
    return unknown / letters


@pytest.mark.parametrize("texts", [ENGLISH, GERMAN], ids=["English", "German"])
def test_latin_letters_are_known_in_words(english, texts):
    assert share(english, texts) < 0.2


@pytest.mark.parametrize(
    "text",
    [
        "Поезд в Кёльн опаздывает.",
        "Το τρένο έχει καθυστέρηση.",
        "القطار متأخر",
        "ट्रेन देर से है",
        "기차가 늦었습니다",
        "kцт",
    ],
)
def test_other_alphabets_are_known_by_letter_or_not_at_all(english, text):
    assert share(english, [text]) > 0.8


def test_letters_that_are_words_are_not_counted(english):
    assert english.unknown_letters(["I, X, a = b"]) == (0, 4)


def test_signs_that_are_words_may_be_tokens():
    signs = sorted(set("".join(CHINESE)))
    tokenizer = PieceTokenizer(tiny.wordpiece([*signs, "cat"], lowercase=False), "a Chinese model")
    assert tokenizer.unknown_letters(CHINESE) == (0, 12)
    assert tokenizer.unknown_letters(["狐"]) == (1, 1)


def test_bytes_of_a_letter_count_once():
    tokenizer = PieceTokenizer(tiny._byte_level(), "a byte-level model")
    assert tokenizer.unknown_letters(["кот"]) == (3, 3)
    assert tokenizer.unknown_letters(["猫"]) == (1, 1)


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
def test_commands_say_it_once(run, tmp_path, monkeypatch, words, known):
    monkeypatch.chdir(tmp_path)
    texts = ["A cat sleeps on the mat.", "Two dogs play."] if known else [RUSSIAN, "Собаки играют"]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    if known:
        words = ["A cat sleeps." if word in (RUSSIAN, "кот") else word for word in words]
    ran = run(*words, "-m", "mini-static")
    assert (ran.code, ran.err.count(NOTE)) == (0, 0 if known else 1), ran.err
    assert known or ran.err.count("mini-multi") == 1, ran.err


@pytest.mark.parametrize("text", ["hi", "LGTM/ASAP/FYI"])
def test_a_few_latin_letters_are_no_other_language(run, text):
    assert NOTE not in run("similarity", text, "A cat sleeps.").err


def test_the_note_names_the_model(run):
    assert f"'mini' {NOTE}" in run("similarity", RUSSIAN, "кот", "-m", "mini").err


def test_a_query_in_letters_that_the_index_does_not_know_is_noted(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("A cat sleeps.\nTwo dogs play.\n")
    assert run("index", "build", "texts.txt", "-o", "index", "-m", "mini").code == 0
    assert NOTE not in run("index", "search", "index", "cat").err
    assert run("index", "search", "index", RUSSIAN).err.count(NOTE) == 1
