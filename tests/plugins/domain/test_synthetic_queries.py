"""Queries are made from headings, titles and first sentences, and not found by their copies."""

import csv
import json
import time

import pytest

from promptcli import NotFoundError
from promptcli.plugins.domain.synthetic_queries import synthetic_queries
from tests.comparing import refusal

THINGS = "boat bridge castle drum engine fence garden hammer island jacket kettle ladder".split()


def made(*files, **options):
    return synthetic_queries([str(file) for file in files], **{"min_queries": 1, **options})


def answers(queries, text):
    """Return the passages that answer the query of a text."""
    [query] = [query for query in queries.queries if query.text == text]
    return [queries.passages[row] for row in query.answers]


@pytest.fixture
def guide(tmp_path):
    path = tmp_path / "guide.md"
    path.write_text(
        "# The river boats\n\n## Hiring one\n\n"
        "Hiring one takes a deposit and a valid card of yours.\n\n"
        "## Rules\n\nKeep to the right bank and slow down near swimmers.\n\n"
        "# The mountain huts\n\nThe huts are open from June until the first snow falls.\n\n"
        "## Rules\n\nTake off your boots before you enter the sleeping room.\n"
    )
    return path


def test_a_heading_asks_for_what_stands_below_it(guide):
    queries = made(guide)
    texts = {query.text for query in queries.queries if query.kind == "heading"}
    # of one word, or of two sections, a heading asks for nothing
    assert texts == {"The river boats", "Hiring one", "The mountain huts"}
    assert "Rules\nKeep to the right bank and slow down near swimmers." in queries.passages
    assert {query.document for query in queries.queries} == {str(guide)}


def test_an_answer_lacks_its_heading_and_keeps_those_of_others(guide):
    assert answers(made(guide), "Hiring one") == ["takes a deposit and a valid card of yours."]
    # the section below answers, too
    assert answers(made(guide), "The mountain huts") == [
        "The huts are open from June until the first snow falls.",
        "Rules\nTake off your boots before you enter the sleeping room.",
    ]


def write_table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def test_a_title_asks_for_its_body(tmp_path):
    rows = [["subject", "text"]]
    for thing in THINGS:
        rows.append([f"My {thing} is broken", f"My {thing} is broken: it fell, what can I do now?"])
    rows += [["Refund please", f"Please refund what I paid for the {thing}"] for thing in THINGS]
    write_table(tmp_path / "letters.csv", rows)
    queries = made(tmp_path / "letters.csv")
    # twelve letters have one subject: none of them is *the* answer
    assert queries.kinds == {"title": len(THINGS)}
    assert answers(queries, "My drum is broken") == ["it fell, what can I do now?"]
    assert any(passage.startswith("Refund please\n") for passage in queries.passages)
    assert len({query.document for query in queries.queries}) == len(THINGS)


def test_a_corpus_of_beir_has_titles(tmp_path):
    lines = []
    for number, thing in enumerate(THINGS):
        text = f"Some say that {thing}s were first made by hand"
        lines.append(json.dumps({"_id": str(number), "title": f"About {thing}s", "text": text}))
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    queries = made(tmp_path / "corpus.jsonl")
    assert answers(queries, "About drums") == ["Some say that drums were first made by hand"]


def write_lines(path):
    lines = []
    for thing in THINGS:
        bought = f"We bought a {thing} in spring, e.g. a used one."
        lines.append(f"{bought} The seller had told us that every {thing} works.")
    path.write_text("\n".join(lines))
    return path


def test_a_first_sentence_asks_for_the_rest(tmp_path):
    queries = made(write_lines(tmp_path / "lines.txt"))
    assert queries.kinds == {"first sentence": len(THINGS)}
    assert answers(queries, "We bought a drum in spring, e.g. a used one.") == [
        "The seller had told us that every drum works."
    ]


def test_first_sentences_fill_up_what_headings_lack(tmp_path, guide):
    write_lines(tmp_path / "lines.txt")
    queries = made(guide, tmp_path / "lines.txt", max_queries=6)
    assert queries.kinds == {"heading": 3, "first sentence": 3}
    assert queries.all_queries == 3 + len(THINGS)


def test_queries_are_drawn_by_the_seed(tmp_path):
    path = write_lines(tmp_path / "lines.txt")
    queries = made(path, max_queries=5)
    assert queries == made(path, max_queries=5)
    assert queries.queries != made(path, max_queries=5, seed=1).queries


def test_answers_stay_when_passages_are_drawn(tmp_path):
    path = write_lines(tmp_path / "lines.txt")
    queries = made(path, max_queries=3, max_passages=7)
    assert (len(queries.queries), len(queries.passages), queries.all_passages) == (3, 7, 12)
    assert all(
        "We bought" not in passage
        for query in queries.queries
        for passage in [queries.passages[row] for row in query.answers]
    )
    task = queries.task("lexical")
    assert (task.ranking, len(task.queries), len(task.documents)) == ("lexical", 3, 7)


def test_too_few_queries_are_an_error(guide):
    with refusal(r"3 queries .* 50"):
        synthetic_queries([guide])
    with pytest.raises(NotFoundError):
        synthetic_queries([guide.parent / "none"])


def tickets(path):
    """Write a table whose texts all begin with one greeting."""
    hello = "Guten Tag, vielen Dank für Ihre Nachricht."
    rows = [["Nr", "Thema", "Betreff", "Text"]]
    for thing in THINGS:
        text = (
            f"{hello} Seit Montag fehlt {thing} im Keller. Wann kommt bitte jemand vorbei, der es"
        )
        rows.append([thing, f"Um {thing} geht es", f"Ein {thing} fehlt", f"{text} bringt?"])
    write_table(path, rows)
    return f"{path}:Text"


def test_a_title_is_told_by_its_name_or_named(tmp_path):
    table = tickets(tmp_path / "tickets.csv")
    assert answers(made(table), "Ein drum fehlt")
    assert answers(made(table, title="thema"), "Um drum geht es")
    with refusal("title: no table has a column 'topic'"):
        made(table, title="topic")


def test_where_texts_begin_alike_the_next_sentence_asks(tmp_path):
    queries = made(tickets(tmp_path / "tickets.csv"), title="Nr")  # one word is no query
    assert queries.kinds == {"first sentence": len(THINGS)}
    [answer] = answers(queries, "Seit Montag fehlt drum im Keller.")
    assert answer == "drum\nWann kommt bitte jemand vorbei, der es bringt?"


def test_the_time_and_memory_of_a_row_grow_with_its_length_alone(tmp_path):
    """Only the first words of a row can be a query."""
    rows = [
        {"title": f"The {thing} here", "text": f"A {thing} is some thing of ours. " * 5}
        for thing in THINGS
    ]
    rows[0]["title"] = "word " * 200_000
    long = {
        "abbreviations": "a. " * 200_000,
        "ends": "\u3002" * 200_000,
        "words": "x" * 1_000_000,
        "sentence": f"{'many words ' * 100_000}. The rest of it goes on for some more words now.",
    }
    rows += [{"title": "", "text": text} for text in long.values()]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    began = time.process_time()
    queries = made(tmp_path / "rows.jsonl")
    assert time.process_time() - began < 20
    assert queries.kinds == {"title": len(THINGS) - 1, "first sentence": 1}
