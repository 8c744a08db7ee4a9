"""What can be reached: by grades of two levels, and by a recall of many documents."""

import unittest.mock

import numpy as np
import pytest

import promptcli as pc
from promptcli.evaluation import statistics
from promptcli.retrieval.bm25 import Bm25
from tests.comparing import refusal


def test_the_highest_correlation_is_that_of_a_perfect_order():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 2, 50).astype(float)
    perfect = gold + 1e-3 * generator.random(50)
    assert statistics.highest_spearman(gold) == pytest.approx(statistics.spearman(perfect, gold))
    halves = np.repeat([0.0, 1.0], 500)
    assert statistics.highest_spearman(halves) == pytest.approx(np.sqrt(3) / 2, abs=1e-3)
    assert statistics.highest_spearman(np.arange(9.0)) == pytest.approx(1)


def test_the_area_is_the_share_of_ordered_pairs():
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 2, 60).astype(float)
    scores = np.round(gold + generator.normal(size=60), 1)  # with ties
    high, low = scores[gold == 1], scores[gold == 0]
    differences = high[:, None] - low
    share = (differences > 0).mean() + (differences == 0).mean() / 2
    assert statistics.area_under_curve(scores, gold) == pytest.approx(share)
    assert statistics.area_under_curve(gold, gold) == 1
    assert statistics.area_under_curve(-gold, 5 * gold) == 0


def test_eval_says_what_yes_or_no_can_reach(run, tmp_path):
    pairs = ["A cat sleeps.\tA kitten is asleep.\t1", "A dog barks.\tPrices fell.\t0"]
    pairs += ["It rains.\tRain falls.\t1", "He sings.\tThe door is blue.\t0"]
    file = tmp_path / "p.tsv"
    file.write_text("\n".join(["sentence1\tsentence2\tscore", *pairs]))
    ran = run("eval", "mini-static", "--task", file)
    assert "two levels" in ran.out and "89.44" in ran.out
    (score,) = run("eval", "mini-static", "--task", file, "--json").json["results"]
    assert score["highest"] == pytest.approx(89.4427) and 0 <= score["auc"] <= 100
    file.write_text("\n".join(["sentence1\tsentence2\tscore", *pairs, "A\tB\t0.5"]))
    assert "two levels" not in run("eval", "mini-static", "--task", file).out


def test_recall_says_what_it_can_reach(run, tmp_path):
    file = tmp_path / "r.tsv"
    rows = [f"cats\tA cat sleeps {number} times.\t1" for number in range(90)]
    file.write_text("\n".join(["query\tdocument\tgrade", *rows, "dogs\tA dog barks.\t1"]))
    ran = run("eval", "mini-static", "--task", f"retrieval:{file}")
    assert "recall@10 (at most 55.56)" in ran.out and "recall@100 (" not in ran.out
    for function in (pc.task_sentences, lambda tasks: pc.evaluate("mini-static", tasks)):
        with refusal("no task is named"):
            function([])
    with unittest.mock.patch.object(Bm25, "of_texts", side_effect=Bm25.of_texts) as of_texts:
        pc.evaluate(["mini-static", "mini-multi"], f"retrieval:{file}", by="both")
    assert of_texts.call_count == 1
    [score] = pc.evaluate("mini-static", f"retrieval:{file}")
    assert score.highest_recall_at_10 == pytest.approx(50 * (1 + 10 / 90))
