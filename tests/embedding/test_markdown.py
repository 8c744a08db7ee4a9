"""The outline of Markdown: headings, lines that only look like headings, and front matter."""

import pytest

import promptcli as pc
from promptcli.embedding import passages
from promptcli.embedding.passages import Heading, outline, passages_of, read_front_matter


@pytest.fixture(scope="module")
def encoder():
    return pc.load("static-avg")


def headings(text):
    return [
        (each.line, each.level, each.title)
        for each in outline(text.split("\n"))
        if isinstance(each, Heading)
    ]


def read(text, encoder):
    found = passages_of(text.split("\n"), "a.md", encoder)
    return [(each.line, each.heading, each.body) for each in found]


@pytest.mark.parametrize(
    "between",
    [
        "```npm install```",
        "````markdown\n```sh\n# a comment\n```\n````",
        "```text\n~~~ waves ~~~\n# a comment\n```",
        "~~~\n```\n# a comment\n~~~",
        "```sh\nrun\n```sh\n# a comment\n```",
        "- item\n\n      ```sh\n      # a comment\n      ```",
        "<!--\n# a comment\n-->",
        "<pre>\n\n# a comment\n\n</pre>",
        "<div>\n# a comment\n</div>",
        "    # a comment",
        "\t# a comment",
        "> # a comment",
        "- # a comment",
        "\\# a comment",
        "#hashtag",
        "a | b\n--- | ---\n1 | 2",
        "####### seven",
    ],
)
def test_what_only_looks_like_a_heading_is_none(between):
    text = f"# Setup\n\n{between}\n\n## Usage\n\nRun it."
    last = between.count("\n") + 5
    assert headings(text) == [(1, 1, "Setup"), (last, 2, "Usage")]


@pytest.mark.parametrize(
    ("text", "level", "title"),
    [
        ("# C#", 1, "C#"),
        ("## Closed ##", 2, "Closed"),
        ("  ### A little in   ", 3, "A little in"),
        ("#\tAfter a tab", 1, "After a tab"),
        ("#", 1, ""),
        ("### ###", 3, ""),
        ("Under\n=", 1, "Under"),
        ("Of two\nlines\n---", 2, "Of two lines"),
    ],
)
def test_headings_are_those_of_commonmark(text, level, title):
    assert headings(f"Before.\n\n{text}\n\nAfter.") == [(3, level, title)]


def test_a_very_long_text_has_lines_that_are_read_when_they_are_needed(monkeypatch):
    text = "# One\n\ntext\n" * 9
    assert sum(isinstance(each, Heading) for each in outline(text.split("\n"))) == 9
    monkeypatch.setattr(passages, "_MAX_PARSED", 100)
    assert [each.number for each in outline(text.split("\n"))] == list(range(1, 29))
    lines = iter(["A paragraph.", ""] * 100)
    next(outline(lines))
    assert len(list(lines)) > 150


FRONT = {
    "one": ("---\ndraft: true\n---\n", "", 3),
    "blank": ("---\ntags: [a, b]\n\ndraft: true\n---\n", "", 5),
    "comment": ("---\n# for the editor\ntags: [a, b]\ndraft: true\n---\n", "", 5),
    "title": ("---\ntitle: 'Water: all of it'\ntags:\n- a\n- b\n...\n", "Water: all of it", 6),
    "empty": ("---\n---\n", "", 2),
    "toml": ('+++\ntitle = "Water"\ntags = ["a", "b"]\n[menu]\nweight = 1\n+++\n', "Water", 6),
    "endless": (f"---\nnumber: 0x{'f' * 8000}\n---\n", "", 3),
    "nearly": ("---\ntitle: Boats: a guide\nby: @anna\n---\n", "Boats: a guide", 4),
    "nothing": ("---\n# for the editor\n---\n", "", 3),
}


@pytest.mark.parametrize("kind", FRONT)
def test_front_matter_is_no_passage(kind, encoder):
    front, title, lines = FRONT[kind]
    found = [(lines + 2, title or "a", "The pump.")]
    assert read(f"{front}\nThe pump.", encoder) == found
    path = f"{title} > Pump" if title else "Pump"
    assert read(f"{front}# Pump\n\nIt runs.", encoder) == [(lines + 3, path, "It runs.")]


def test_the_title_of_a_file_is_its_heading_once(encoder):
    front = "---\ntitle: Water\n---\n"
    said = read(f"{front}\n# Water\n\nThe pump.\n\n## Pipes\n\nOld.", encoder)
    assert said == [(7, "Water", "The pump."), (11, "Water > Pipes", "Old.")]
    assert read(front, encoder) == [(1, "", "Water")]
    assert read(f"{front}\n# Water\n", encoder) == [(1, "", "Water")]
    assert read("---\ntags: [a]\n---\n", encoder) == []


def test_the_name_of_a_file_heads_a_text_without_a_title(encoder):
    lines = ["", "Milk.", "", "## Fruits", "", "Pears."]
    named = [each.heading for each in passages_of(lines, "my/To buy 1.5.MD.gz", encoder)]
    assert named == ["To buy 1.5", "To buy 1.5 > Fruits"]
    assert read("\n# Shop\n\nMilk.", encoder) == [(4, "Shop", "Milk.")]
    assert read("", encoder) == []


def test_aliases_are_words_of_the_title(encoder):
    front = "---\naliases: [EAfE, 'Some words']\n---\n"
    assert read(f"{front}Milk.", encoder) == [(4, "a, EAfE, Some words", "Milk.")]
    assert read(f"{front}# Shop\n\nMilk.", encoder) == [(6, "EAfE, Some words > Shop", "Milk.")]


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nA rule above.\n\n---\n\nText.",
        "---\nkey: no end\n\nText.",
        "--- \nText",
        "---\ntitle: [\n---\n",
        f"---\nlist: {'[' * 8000}\n---\n",
        f"---\nlong: {'a' * 9000}\n---\n",
        "+++\ntitle = no quotes\n+++\n",
    ],
)
def test_what_is_no_front_matter_is_text(text):
    fields, length, rest = read_front_matter(text.split("\n"))
    assert (fields, length, "\n".join(rest)) == ({}, 0, text)


def test_fields_of_front_matter_are_values_and_lists_of_them():
    yaml = (
        "---\ntitle: Keys\ndate: 2024-05-01\ntags: [house, key]\ndraft: true\nweight: 3\n"
        "at: 12:30\nnone:\nauthor: {name: Ann}\nrows: [[1]]\n---\nText."
    )
    toml = (
        '+++\ntitle = "Keys"\ndate = 2024-05-01\ntags = ["house", "key"]\ndraft = true\n'
        'weight = 3\nat = "12:30"\nnone = ""\nrows = [[1]]\n[author]\nname = "Ann"\n+++\nText.'
    )
    for text in (yaml, toml):
        fields, length, rest = read_front_matter(text.split("\n"))
        assert fields == {
            "title": "Keys",
            "date": "2024-05-01",
            "tags": "house, key",
            "draft": "true",
            "weight": "3",
            "at": "12:30",
        }
        assert (length, list(rest)) == (text.count("\n"), ["Text."])


def test_fields_of_front_matter_are_columns_and_hide_none_of_ours(tmp_path, encoder):
    file = tmp_path / "a.md"
    file.write_text("---\ntags: [house]\nline: 99\n---\n\nThe key hangs behind the door.\n")
    hits = pc.search("key", [file], model=encoder, where='tags = "house" and line = 6')
    assert [hit.columns["line"] for hit in hits] == [6]


def test_a_heading_without_text_has_its_own_line(encoder):
    text = "# Harbour\n\n## Boats\n\n\n\n## Nets\n\nHe mends nets.\n\nQuays\n-----\n"
    assert read(text, encoder) == [
        (3, "Harbour", "Boats"),
        (9, "Harbour > Nets", "He mends nets."),
        (11, "Harbour", "Quays"),
    ]


@pytest.mark.parametrize("under", ["# {}", "{}\n==="])
def test_a_long_heading_is_a_text(under, encoder):
    title = "many words " * 300
    text = f"{under.format(title)}\n\n" + "## b\n\npara.\n\n" * 9
    found = read(text, encoder)
    assert {heading for _, heading, _ in found} == {"a", "a > b"}
    assert sum(body == "para." for _, _, body in found) == 9
    written = [word for _, _, body in found[:-9] for word in body.split()]
    assert written == under.format(title).split()


def test_code_keeps_its_lines_wherever_it_is(encoder):
    text = "1. Run\n\n     ```sh\n     first\n     second\n     ```\n\n<pre>\none\ntwo\n</pre>\n"
    body = "\n".join(body for _, _, body in read(text, encoder))
    assert "first\n" in body and "one\ntwo" in body
