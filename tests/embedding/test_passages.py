"""Passages of Markdown, reST and plain text: where they begin and end, what they hold, and which
texts have none.
"""

import textwrap

import pytest

import promptcli as pc
from promptcli.data import demo
from promptcli.embedding import passages
from promptcli.embedding.passages import AUTO, has_passages, passages_of

PROSE = (
    "The ferry leaves the harbour at six in the morning, before the market opens. Fishermen mend"
    " their nets on the quay while gulls wait for scraps. By noon the square is full of people who"
    " have come from the villages. In the evening everyone goes home, and only the lamps of the"
    " harbour are left. Nobody has counted the boats since May."
)


@pytest.fixture(scope="module")
def encoder():
    return pc.load("static-avg")


def read(text, name, encoder):
    return list(passages_of(text.split("\n"), name, encoder))


def wrapped(text, width=60):
    return "\n".join(textwrap.wrap(text, width))


def test_markdown_has_its_headings_lists_and_code_in_passages(encoder):
    code = "```sh\n# not a heading\n\nrun\n```"
    text = (
        f"# Guide\n\nShort.\n\n## Install\n\n- one\n- two\n\n{code}\n\nUse\n===\n\n### Empty\n##"
        " Next\n\nAlso short."
    )
    found = [
        (each.line, each.end_line, each.heading, each.body) for each in read(text, "a.md", encoder)
    ]
    assert found == [
        (3, 3, "Guide", "Short."),
        (7, 14, "Guide > Install", "- one\n- two\n\n```sh\n# not a heading\n\nrun\n```"),
        (19, 19, "Use", "Empty"),
        (22, 22, "Use > Next", "Also short."),
    ]


def test_underlined_headings_of_rest_have_levels_by_their_order(encoder):
    text = (
        "====\nBook\n====\n\nIntro.\n\nPart\n----\n\nOne.\n\n"
        "Detail\n~~~~~~\n\nTwo.\n\nOther\n-----\n\nThree.\n"
    )
    found = [(each.line, each.heading, each.body) for each in read(text, "a.rst", encoder)]
    assert found == [
        (5, "Book", "Intro."),
        (10, "Book > Part", "One."),
        (15, "Book > Part > Detail", "Two."),
        (20, "Book > Other", "Three."),
    ]


def test_stars_of_org_are_headings(encoder):
    text = "Begin.\n* Garden\n** Roses\nCut them.\n*Bold* is text.\n* Kitchen\n- Bake.\n"
    found = [(each.line, each.heading, each.body) for each in read(text, "a.org", encoder)]
    assert found == [
        (1, "", "Begin."),
        (4, "Garden > Roses", "Cut them. *Bold* is text."),
        (7, "Kitchen", "- Bake."),
    ]


@pytest.mark.parametrize("name", ["a.md", "a.txt", "a.rst", "a.md.gz"])
def test_long_paragraphs_are_split_at_sentences_and_no_line_is_lost(name, encoder):
    paragraphs = [wrapped(PROSE), "A short one.", "Another short one.", wrapped(PROSE, 70)]
    found = read("\n\n".join(paragraphs), name, encoder)
    assert all(
        each.body.endswith(".") and "\n" not in each.body.replace("\n\n", "") for each in found
    )
    assert any("A short one.\n\nAnother short one." in each.body for each in found), (
        "neighbours are joined"
    )
    lines = "\n\n".join(paragraphs).split("\n")
    shown = {number for each in found for number in range(each.line, each.end_line + 1)}
    assert shown >= {number for number, line in enumerate(lines, 1) if line}
    assert " ".join(each.body for each in found).split() == " ".join(paragraphs).split()


def test_words_that_are_broken_at_the_ends_of_lines_are_whole(encoder):
    text = (
        "The lamps of pre-\nand post-war times need infor-\nmation-rich, long-"
        "\nlasting oil.\n\nMay."
    )
    [found] = read(text, "a.txt", encoder)
    assert (found.line, found.end_line) == (1, 6)
    words = "The lamps of pre- and post-war times need information-rich, longlasting oil. May."
    assert found.body.split() == words.split()
    assert "infor-" in read(text, "a.md", encoder)[0].body
    [found] = read("The inter-\nna-\ntional law.\nIt holds.\n", "a.txt", encoder)
    assert found.body.split() == "The international law. It holds.".split()


def test_passages_fit_a_small_window_with_their_heading(encoder):
    small = pc.load("mini", max_length=40)
    found = read(f"# {'Very long heading ' * 9}\n\n{PROSE}\n\n{'word' * 200}\n", "a.md", small)
    assert not small.encode_report([each.text for each in found]).truncated.any()
    assert "".join(each.body for each in found).replace(
        " ", ""
    ) == f"{PROSE}{'word' * 200}".replace(" ", "")


def test_a_long_text_is_read_in_blocks(encoder, monkeypatch):
    monkeypatch.setattr(passages, "_CHARACTERS_AT_ONCE", 200)
    texts = ["\n\n".join([wrapped(PROSE)] * 5), PROSE * 5, wrapped(PROSE * 5)]
    for text in texts:
        found = read(text, "a.md", encoder)
        assert " ".join(each.body for each in found).split() == text.split()
        assert [each.line for each in found] == sorted(each.line for each in found)


@pytest.mark.parametrize(
    ("lines", "name", "way", "expected"),
    [
        (["One sentence.", "And another, longer one."], "a.md", AUTO, True),
        (["One sentence."], "a.rst.gz", AUTO, True),
        (["One sentence.", "And another, longer one."], "a.txt", AUTO, False),
        (["One sentence.", "And another, longer one."], "a.txt", passages.PASSAGES, True),
        (wrapped(PROSE).split("\n"), "a.md", passages.LINES, False),
        (["The first paragraph", "goes on.", "", "The second."], "-", AUTO, True),
        ([*["A sentence."] * 30, "", *["A sentence."] * 30, ""], "-", AUTO, False),
        (demo.SENTENCES_FILE.read_text().split("\n")[:2000], "a.txt", AUTO, False),
        ([], "a.txt", AUTO, False),
    ],
)
def test_markdown_and_paragraphs_have_passages(lines, name, way, expected):
    assert has_passages(lines, name, way) is expected
