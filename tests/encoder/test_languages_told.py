"""Texts in other languages with Latin letters: which language, and one note on it."""

import pytest

import promptcli as pc
from promptcli.encoder.languages import _COMMON, _WORDS, common_words, foreign_language
from promptcli.encoder.unknown_letters import note_unknown_letters
from tests.encoder.foreign_texts import texts


@pytest.mark.parametrize(
    ("language", "least"), [("German", 48), ("French", 47), ("Spanish", 43), ("Turkish", 45)]
)
def test_foreign_texts_are_told_alone_and_together(language, least):
    alone = [foreign_language([text]) for text in texts(language)]
    assert sum(map(bool, alone)) >= least
    assert foreign_language(texts(language)) == language
    for start in range(0, 50, 10):
        assert foreign_language(texts(language)[start : start + 10]) == language
    assert foreign_language([*texts(language)[:20], *texts("English")]) == language


def test_english_texts_with_foreign_names_are_english():
    assert [text for text in texts("English") if foreign_language([text])] == []
    assert foreign_language([*texts("English"), *texts("German")[:3]]) == ""
    assert foreign_language([]) == "" == foreign_language(["", "123 !?", "x"])


def test_an_english_vocabulary_has_common_words_in_pieces_and_others_have_them_whole():
    pieces = pc.load("mini-static").pieces
    for language in _COMMON:
        assert pieces.pieces_per_word(common_words(language)) > 2.2, language
    assert pieces.pieces_per_word("week always answer write sleep buy question".split()) < 1.3
    assert _COMMON.keys() == _WORDS.keys()


def test_one_note_names_the_language_and_the_default_is_english(run, tmp_path, monkeypatch):
    (tmp_path / "de.txt").write_text("\n".join(texts("German")), encoding="utf-8")
    (tmp_path / "en.txt").write_text("\n".join(texts("English")), encoding="utf-8")
    ran = run("search", "Wo ist meine Lieferung", tmp_path / "de.txt", "-m", "mini-static")
    assert ran.err.count("German") == 1 and "mini-static (English)" in ran.err
    ran = run("search", "where is my parcel", tmp_path / "en.txt")
    assert "not learned" not in ran.err and "mini-static (English)" in ran.err


def test_a_vocabulary_of_the_language_gets_no_note(caplog, monkeypatch):
    caplog.set_level("INFO", logger="promptcli")
    encoder = pc.load("mini-static")
    monkeypatch.setattr(type(encoder.pieces), "pieces_per_word", lambda self, texts: 1.2)
    note_unknown_letters(encoder, texts("German"))
    assert caplog.text == ""
