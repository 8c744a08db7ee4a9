"""``promptcli judge``: what is shown, kept after each key, gone on with, compared and written."""

import contextlib
import csv
import json
import os
import pty
import re
import select
import signal
import termios
import time
from pathlib import Path

import numpy as np
import pytest

import promptcli as pc
from promptcli.errors import CheckFailedError
from promptcli.plugins.judge import command
from promptcli.plugins.judge.judgements import Judgements
from promptcli.plugins.judge.judging import Judging, Standing, open_judging
from promptcli.retrieval.found_files import find_files
from promptcli.retrieval.sentence_index import SentenceIndex
from tests.comparing import refusal
from tests.processes import Program

TEXTS = [
    "A fisherman mends his nets.",
    "The market opens at nine.",
    "Die Katze schläft.",
    "A cat sleeps on the sofa.",
    "Prices rose in May.",
    "A cat sleeps on the sofa.",
    "The nets dry in the sun.",
]
QUESTIONS = [
    "Who repairs nets?",
    "Where is the cat?",
    "Who repairs nets?",
    "",
    "Was macht die Katze?",
]
WAYS = ("--way", "words", "--way", "meaning")


@pytest.fixture
def folder(here):
    SentenceIndex.build(TEXTS, "mini-static", output="index")
    (here / "questions.txt").write_text("\n".join(QUESTIONS))
    return here


def judging(ways=("words", "meaning"), models=(), **options):
    index = SentenceIndex.open("index")
    named = {model: model for model in models}
    return open_judging("questions.txt", index, Path("judged"), named, ways, **options)


@contextlib.contextmanager
def at_a_terminal(*words):
    """Yield a program at a terminal, what it writes there until a text, and what types keys."""
    ours, theirs = pty.openpty()
    program = Program(
        *("judge", "questions.txt", "index", *WAYS, *words),
        environment={"TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = bytearray()
    typed = []

    def until(text, times=1):
        limit = time.monotonic() + 300
        while shown.count(text.encode()) < times and time.monotonic() < limit:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                shown.extend(os.read(ours, 4096))
            except OSError:  # the program has ended
                break
        assert shown.count(text.encode()) >= times, shown.decode()
        return shown.decode()

    def type_keys(keys):
        for key in keys:
            typed.append(key)
            until("s stop: ", len(typed))
            while termios.tcgetattr(ours)[3] & termios.ICANON:
                time.sleep(0.01)  # until then a terminal's line is waited for
            os.write(ours, key.encode())

    try:
        yield program, until, type_keys
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGKILL)
        program.wait()
        os.close(ours)


def test_keys_are_kept_taken_back_and_gone_on_with(folder):
    log = folder / "judged" / "judgements.jsonl"
    with at_a_terminal() as (program, until, type_keys):
        type_keys("rwRups")
        program.wait()
        shown = until("")
        assert program.returncode == 0
    assert "mini-static" not in shown and "meaning" not in shown
    grades = [json.loads(line)[2] for line in log.read_text().splitlines()]
    assert grades == [2, 0, 2, None, 1]
    kept = judging()
    first = [text for _, text in kept.pairs if (kept.pairs[0][0], text) in kept.judgements.grades]
    assert len(kept.judgements.grades) == 3 and first
    with at_a_terminal() as (program, until, type_keys):
        shown = until("s stop: ")
        assert f"hit 4 of {len(kept.pools[kept.pairs[0][0]])}" in shown
        type_keys("w" * len(kept.open_pairs))
        shown = until("questions judged, 0 hits left")
        program.wait()
        assert program.returncode == 0
    assert shown.count("question: ") == 1 and "2 questions: " in shown
    asked = [tuple(json.loads(line)[:2]) for line in log.read_text().splitlines()]
    assert len(asked) == len(kept.pairs) + 2  # the one that was taken back


def test_a_kill_loses_at_most_the_last_key(folder):
    log = folder / "judged" / "judgements.jsonl"
    with at_a_terminal() as (program, until, type_keys):
        type_keys("rw")
        until("s stop: ", 3)
        program.send_signal(signal.SIGKILL)
    assert [json.loads(line)[2] for line in log.read_text().splitlines()] == [2, 0]
    whole = log.read_bytes()
    for length in range(len(whole)):
        log.write_bytes(whole[:length])
        assert len(Judgements(log).grades) == whole[:length].count(b"\n")
    log.write_bytes(whole[:-3])
    cut = Judgements(log)
    cut.add(("q", "d"), 1)
    assert list(Judgements(log).grades.values()) == [2, 1]


def grade_all(kept, good):
    for query, text in kept.open_pairs:
        kept.judgements.add((query, text), good(query, text))
    kept.write()


def in_common(query, text):
    return min(2, len(set(query.lower().strip("?").split()) & set(text.lower().strip(".").split())))


def test_figures_are_those_of_eval_on_the_folder(folder):
    kept = judging(k=10)
    grade_all(kept, in_common)
    standings = {standing.way: standing for standing in kept.standings()}
    for way, standing in standings.items():
        by = {"words": "words"}.get(way, "meaning")
        [score] = pc.evaluate("mini-static", ["retrieval:judged"], by=by)
        assert score.queries == 3 and standing.ndcg == pytest.approx(score.value, abs=1e-3)
    lines = (folder / "judged" / "qrels" / "test.tsv").read_text().splitlines()
    assert lines[0] == "query-id\tcorpus-id\tscore" and len(lines) == 1 + len(kept.pairs)


def test_equal_texts_and_equal_questions_are_asked_once(folder):
    kept = judging()
    assert list(kept.queries) == [text for text in dict.fromkeys(QUESTIONS) if text]
    assert len(kept.documents) == len(set(TEXTS)) and len(set(kept.pairs)) == len(kept.pairs)
    corpus = (folder / "judged" / "corpus.jsonl").read_text().splitlines()
    assert {json.loads(line)["text"] for line in corpus} == set(TEXTS)
    (folder / "note.txt").write_text("A note.")
    assert set(find_files(["."]).files) == {"note.txt", "questions.txt"}


def test_another_model_ranks_as_its_own_index_and_only_new_hits_are_asked(folder):
    kept = judging(k=3)
    grade_all(kept, in_common)
    more = judging(("words", "meaning"), ["mini-multi", "mini-static"], k=3)
    assert set(kept.judgements.grades) == set(more.judgements.grades)
    assert not set(more.open_pairs) & set(kept.pairs)
    grade_all(more, in_common)
    assert judging(k=1).standings()[0].ndcg <= 100  # and what was judged before counts
    lines = (folder / "judged" / "qrels" / "test.tsv").read_text().splitlines()
    assert len(lines) == 1 + len(more.judgements.grades) > 1 + len(judging(k=1).pairs)
    judging(("words", "meaning"), ["mini-multi", "mini-static"], k=3)
    own = SentenceIndex.build(TEXTS, "mini-multi")
    for query, found in more.ranked["mini-multi"].items():
        hits = own.search(query, 3, by="meaning")
        assert found == list(dict.fromkeys(hit.text for hit in hits))
    assert more.ranked["mini-static"] == more.ranked["meaning"]


def test_hits_are_shuffled_by_the_seed(folder):
    pools = [judging(seed=seed).pools for seed in (0, 0, 1)]
    assert pools[0] == pools[1] != pools[2]
    assert all(sorted(one) == sorted(pools[2][query]) for query, one in pools[0].items())


def test_parts_of_split_rows_are_documents(here):
    text = " ".join(f"Sentence {number} is about boats." for number in range(300))
    SentenceIndex.build([text, "A cat."], "mini", output="index", split=True)
    (here / "questions.txt").write_text("boats\ncat")
    kept = judging(k=2)
    assert "0#1" in kept.documents.values() and "1" in kept.documents.values()
    assert kept.open_pairs


def test_how_many_more_questions_would_decide(folder, monkeypatch):
    kept = judging()
    grade_all(kept, in_common)
    values = {"words": np.array([40.0, 60, 50, 70, 30, 50]), "meaning": np.full(6, 45.0)}
    monkeypatch.setattr(Judging, "_ndcg", lambda self, way, done: values[way] / 100)
    monkeypatch.setattr(
        Judging, "judged_queries", property(lambda self: ["q"] * len(values["words"]))
    )
    [best, other] = kept.standings()
    low, high = other.to_best_ci95
    assert (best.way, best.more, other.to_best) == ("words", None, pytest.approx(-5))
    assert low < 0 < high and other.more == np.ceil(6 * ((high - low) / 2 / 5) ** 2) - 6 > 0
    values |= {"words": np.full(3, 60.0), "meaning": np.full(3, 45.0)}  # alike, but few
    assert kept.standings()[1].more == 3
    values |= {"words": np.array([60.0, 61] * 4), "meaning": np.full(8, 45.0)}
    assert command._verdict(kept.standings()[1]) == "worse"
    values["words"] = values["meaning"]
    assert command._verdict(kept.standings()[1]) == "no difference so far"
    far = Standing("words", 1, (0, 2), -0.1, (-9, 9), 50_000)
    assert command._verdict(far) == "open: over 1,000 more questions"


def test_a_table_is_filled_instead_of_keys(folder, run):
    words = ("judge", "questions.txt", "index", *WAYS)
    refused = run(*words)
    assert refused.code == 2 and "keys need a terminal; `--template out.tsv`" in refused.err
    assert "into the first column of fill.tsv" in run(*words, "--template", "fill.tsv").err
    head, *rows = (folder / "fill.tsv").read_text().splitlines()
    assert head == "grade\tquery\tdocument" and all(row.startswith("\t") for row in rows)
    filled = [head, f"Right{rows[0]}", *(f"wrong{row}" for row in rows[1:-1]), rows[-1]]
    (folder / "fill.tsv").write_text("\ufeff" + "\n".join([*filled, "wrong\tno\tsuch row"]))
    ran = run(*words, "--template", "fill.tsv", "--json")
    assert ran.code == 0 and (ran.json["queries"], ran.json["left"]) == (2, 1)
    assert "left out 1 row whose document no ranking found" in ran.err
    assert {way["way"] for way in ran.json["ways"]} == {"words", "meaning"}
    shown = run(*words, "--template", "fill.tsv")
    assert re.search(r"way +nDCG@5 +to the best +verdict\n", shown.out) and "best\n" in shown.out
    assert len(judging().judgements.grades) == len(rows) - 1
    for text, said in (
        (f"{head}\ngood{rows[0]}\n", "row 2: unknown grade 'good'; valid: right, partly, wrong"),
        (f"{head}\nright\tqu\xe9\t\n", "fill.tsv cannot be read: 'utf-8' codec"),
        ("a\tb\n", "must have the columns grade, query, document"),
    ):
        (folder / "fill.tsv").write_text(text, encoding="cp1252" if "\xe9" in text else "utf-8")
        ran = run(*words, "--template", "fill.tsv")
        assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1
    (folder / "rest.tsv").unlink(missing_ok=True)
    run(*words, "--template", "rest.tsv")
    assert (folder / "rest.tsv").read_text().splitlines()[1:] == [rows[-1]]


def test_texts_that_read_the_same_in_a_table_are_judged_by_one_row(folder, run):
    texts = ['The "nets" dry.', "The 'nets'  dry.", "Prices rose in May."]
    SentenceIndex.build(texts, "mini-static", output="index", force=True)
    (folder / "questions.txt").write_text("Are \"nets\" dry?\nAre 'nets' dry?\n")
    words = ("judge", "questions.txt", "index", *WAYS, "--template", "fill.tsv")
    run(*words)
    head, *rows = (folder / "fill.tsv").read_text().splitlines()
    assert len(rows) == len(set(rows)) == 2
    (folder / "fill.tsv").write_text("\n".join([head, *(f"right{row}" for row in rows)]))
    ran = run(*words, "--json")
    assert (ran.json["queries"], ran.json["left"]) == (2, 0)
    assert set(judging().judgements.grades.values()) == {2}


def test_hits_that_a_filled_table_lacks_are_added_to_it(folder, run):
    words = ("judge", "questions.txt", "index", *WAYS, "--template", "fill.tsv")
    run(*words, "-k", 1)
    _, *rows = (folder / "fill.tsv").read_text().splitlines()
    mine = ["note\tquery\tgrade\tdocument"]  # as a spreadsheet may save it
    for row in rows:
        _, query, document = row.split("\t")
        mine.append(f'"mine"\t{query}\tright\t"{document}"')
    filled = "\ufeff" + "\r\n".join(mine)
    (folder / "fill.tsv").write_bytes(filled.encode())
    more = run(*words, "-k", 3)
    kept = judging(k=3)
    said = f"into the first column of fill.tsv ({len(kept.open_pairs)} new rows)"
    assert more.code == 0 and said in more.err and not more.out
    content = (folder / "fill.tsv").read_bytes().decode()
    added = content.removeprefix(filled + "\n").splitlines()
    assert added == [f"\t{query}\t\t{document}" for query, document in kept.open_pairs] != []
    assert set(kept.judgements.grades.values()) == {2}
    assert "new row" not in run(*words, "-k", 3).err  # they are there, and open
    assert (folder / "fill.tsv").read_bytes().decode() == content
    (folder / "fill.tsv").write_text(content.replace("\t\t", "\twrong\t"))
    assert run(*words, "-k", 3, "--json").json["left"] == 0


def test_a_table_of_long_texts_is_read_back(folder, run):
    csv.field_size_limit(131_072)  # Python's own
    SentenceIndex.build(["nets " * 44_000, *TEXTS], "mini-static", output="index", force=True)
    words = ("judge", "questions.txt", "index", *WAYS, "--template", "fill.tsv", "--json")
    run(*words)
    content = (folder / "fill.tsv").read_text()
    assert len(content) > 200_000
    (folder / "fill.tsv").write_text(content.replace("\n\t", "\nright\t"))
    ran = run(*words)
    assert ran.code == 0 and ran.json["left"] == 0, ran.err


def test_what_cannot_be_judged_is_refused(folder, run):
    words = ("judge", "questions.txt", "index")
    for more, said in (
        (("--way", "words"), "at least two different models or ways"),
        ((*WAYS, "--template", "no/z.tsv"), "--template: no/z.tsv: no folder 'no'; make it first"),
        ((*WAYS, "--template", "."), "--template: . is a folder or a device; give"),
        (("--way", "words", "--way", "words"), "at least two different models or ways"),
        (("--way", "word", "--way", "words"), "unknown way 'word'; valid: both, meaning, words"),
        (("-m", "mini-static", "-m", "no-such-model"), "no-such-model"),
    ):
        ran = run(*words, *more)
        assert ran.code in (2, 3) and said in ran.err and ran.err.count("\n") == 1, ran.err
    (folder / "blank.txt").write_text("\n \n")
    assert "blank.txt has no query" in run("judge", "blank.txt", "index", *WAYS).err
    (folder / "twice.csv").write_text("id,text\n1,one\n1,two\n")
    assert "twice.csv gives several texts one id" in run("judge", "twice.csv", "index", *WAYS).err
    SentenceIndex.build(TEXTS, "mini-static", output="wordless", lexical=False)
    assert "has no words" in run("judge", "questions.txt", "wordless", *WAYS).err
    np.save("v.npy", np.eye(3, 256, dtype=np.float32))
    SentenceIndex.build("v.npy", "mini-static", output="bare")
    with refusal("no texts to judge"):
        open_judging(
            "questions.txt", SentenceIndex.open("bare"), Path("judged"), {}, ("meaning", "both")
        )
    (folder / "judged").mkdir(exist_ok=True)
    (folder / "judged" / "judgements.jsonl").write_text("[]\n")
    with refusal("line 1 is damaged", CheckFailedError):
        judging()


def test_ids_of_questions_and_odd_ones_are_kept(folder):
    (folder / "q.csv").write_text('id,text\n"a\tb",Who repairs nets?\nz,"zebra, quagga"\n')
    kept = open_judging(
        "q.csv", SentenceIndex.open("index"), Path("judged"), {}, ("words", "meaning")
    )
    grade_all(kept, lambda query, text: 2)
    rows = (folder / "judged" / "qrels" / "test.tsv").read_text().splitlines()[1:]
    assert {row.split("\t")[0] for row in rows} == {"a b", "z"}
    assert all(len(row.split("\t")) == 3 for row in rows)
    assert kept.ranked["words"]["zebra, quagga"] == []
    assert pc.evaluate("mini-static", ["retrieval:judged"])[0].queries == 2


def test_ids_that_differ_in_quotes_and_spaces_stay_apart(folder):
    ids = ['q"', "q'", "a b", "a  b", " a b"]
    rows = [{"id": name, "text": f"Net {name}"} for name in ids]
    for name in ("texts.jsonl", "q.jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = SentenceIndex.build("texts.jsonl", "mini-static", output="index", force=True)
    kept = open_judging("q.jsonl", index, Path("judged"), {}, ("words", "meaning"))
    assert [*kept.documents.values()] == [*kept.queries.values()] == ids
    grade_all(kept, in_common)
    lines = (folder / "judged" / "qrels" / "test.tsv").read_text().splitlines()[1:]
    pairs = [tuple(line.split("\t")[:2]) for line in lines]
    assert len(pairs) == len(set(pairs)) == len(kept.pairs) == 25
    assert pc.evaluate("mini-static", ["retrieval:judged"])[0].queries == 5
    rows = [{"id": name, "text": name} for name in ("a\tb", "a b")]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    index = SentenceIndex.build("texts.jsonl", "mini-static", output="index", force=True)
    with refusal("the index gives several texts one id"):
        open_judging("q.jsonl", index, Path("judged"), {}, ("words", "meaning"))
