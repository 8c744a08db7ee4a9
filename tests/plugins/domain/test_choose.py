"""``promptcli choose``: its table, its advice, and the model that it keeps."""

import json

import numpy as np
import pytest

import promptcli as pc
from promptcli.models import loading
from promptcli.plugins.domain.choosing import ScoredRanking, with_differences
from promptcli.recipe import ModelChoice
from tests.comparing import refused
from tests.plugins.domain.texts import write_letters


@pytest.fixture
def letters(tmp_path):
    return write_letters(tmp_path / "letters.csv")


@pytest.fixture(autouse=True)
def static_models_alone(request, monkeypatch):
    """Compare one shipped model, unless a test is about those."""
    if "shipped" not in request.keywords:
        monkeypatch.setattr("promptcli.plugins.domain.choosing.SHIPPED", ("mini-static",))


def test_the_table_has_words_and_two_ways_of_each_model(run, letters):
    ran = run("choose", letters, "--json")
    assert ran.code == 0, ran.err
    rows = ran.json["ways"]
    assert {(row["model"], row["by"]) for row in rows} == {
        (None, "words"),
        ("mini-static", "meaning"),
        ("mini-static", "both"),
    }
    figures = [row["ndcg"] for row in rows]
    assert figures == sorted(figures, reverse=True)
    low, high = rows[0]["ci95"]
    assert low < figures[0] < high
    assert rows[0]["to_best"] is None and rows[-1]["to_best"] <= 0
    [speed] = {row["sentences_per_second"] for row in rows if row["model"]}
    assert speed > 0
    assert {row["megabytes"] and round(row["megabytes"], 1) for row in rows} == {None, 16.8}


def test_a_retrieval_folder_brings_its_own_queries(tmp_path, run):
    (tmp_path / "qrels").mkdir()
    texts = ["A man mends nets.", "A cat sleeps.", "Prices rose.", "Nets dry in the sun."]
    for name, rows in (("corpus", texts), ("queries", ["who repairs nets", "the animal sleeps"])):
        lines = [json.dumps({"_id": f"{n}", "text": text}) for n, text in enumerate(rows)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    judged = "query-id\tcorpus-id\tscore\n0\t0\t2\n0\t3\t1\n1\t1\t2\n1\t2\t0\n"
    (tmp_path / "qrels" / "test.tsv").write_text(judged)
    chosen = pc.choose(tmp_path)
    assert chosen.queries.kinds == {"judged question": 2} and len(chosen.queries.passages) == 4
    for ranking in chosen.rankings:
        [score] = pc.evaluate(
            ranking.model or "mini-static", [f"retrieval:{tmp_path}"], by=ranking.by
        )
        assert score.value == pytest.approx(ranking.ndcg, abs=1e-6)
    assert "made from the texts" not in run("choose", tmp_path).err


def test_the_figures_are_those_of_eval_on_the_same_queries(letters, tmp_path):
    chosen = pc.choose([letters])
    made = chosen.queries
    lines = []
    for query in made.queries:
        for number, passage in enumerate(made.passages):
            grade = int(number in query.answers)
            lines.append({"query": query.text, "document": passage, "grade": grade})
    task = tmp_path / "task.jsonl"
    task.write_text("\n".join(map(json.dumps, lines)))
    for ranking in chosen.rankings:
        [score] = pc.evaluate(ranking.model or "mini-static", [f"retrieval:{task}"], by=ranking.by)
        assert score.value == pytest.approx(ranking.ndcg, abs=1e-6)


def test_a_reader_is_told_what_to_type(run, letters):
    ran = run("choose", letters)
    best = ran.out.splitlines()[1].split()
    [line] = [line for line in ran.err.splitlines() if line.startswith("use ")]
    assert line.endswith(f"--by {best[1]}") and f'search "your question" {letters}' in line
    assert "72 queries made from 72 titles" in ran.err
    document = run("choose", letters, "--json", "--queries", "60").json
    assert document["queries"] | {"kinds": 0} == {
        "made": 60, "kinds": 0, "possible": 72, "passages": 72, "all_passages": 72, "files": 1,
    }  # fmt: skip
    assert any(line.startswith("use ") for line in document["advice"])


def test_sentences_name_rankings_as_the_table_does(run, letters):
    text = letters.read_text()
    letters.write_text(text + text.splitlines()[1] + "\n")
    ran = run("choose", letters)
    assert "mini-static by meaning" in ran.err and "vectors" not in ran.err
    assert "among 72 of 73 passages of 1 file" in ran.err


def ranking(model, gains):
    gains = np.array(gains)
    return ScoredRanking(model, "both", 100 * gains.mean(), (0, 100), gains, 1.0, None)


def test_a_difference_is_paired():
    draw = np.random.default_rng(0)
    easy = draw.uniform(0, 0.9, 200)  # how easy a query is differs more than the models do
    worse = easy - draw.uniform(0, 0.1, 200).clip(0, easy)
    equal = easy + draw.normal(0, 0.05, 200)
    rankings = {
        each.model: each
        for each in with_differences(
            [ranking("worse", worse), ranking("easy", easy + 0.01), ranking("equal", equal)]
        )
    }
    assert rankings["easy"].to_best is None
    assert not rankings["worse"].is_as_good and rankings["worse"].to_best_ci95[1] < 0
    assert with_differences(
        [ranking("a", easy), ranking("b", equal - equal.mean() + easy.mean() - 1e-4)]
    )[1].is_as_good


def test_models_are_computed_where_and_how_the_command_says(run, letters, monkeypatch):
    opened = []
    plain = loading.open_encoder

    def open_encoder(model, **options):
        opened.append(model)
        return plain(model, **options)

    monkeypatch.setattr(loading, "open_encoder", open_encoder)
    assert run("choose", letters, "-m", "mini-static", "--dtype", "float32").code == 0
    choices = [model for model in opened if isinstance(model, ModelChoice)]
    assert {(choice.model, choice.dtype) for choice in choices} == {("mini-static", "float32")}


def test_what_cannot_be_compared_is_refused_before_the_work(run, letters, tmp_path):
    refused(run("choose", letters, "-m", "no-such-model", "--offline"), 3, "no-such-model")
    few = tmp_path / "few.txt"
    few.write_text("One line.\nAnother line.\n")
    refused(run("choose", few), 2, "50 are needed")
    refused(run("choose", letters, "--queries", "10"), 2, "50")
