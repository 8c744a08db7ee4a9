import dataclasses
import itertools
import json
from contextlib import nullcontext

import numpy as np
import pytest
from scipy.stats import spearmanr

from promptcli.data.tasks import Pairs, RetrievalTask, STSTask
from promptcli.evaluation.evaluator import (
    compare,
    compare_encoders,
    distinct_sentences,
    mean_of_rounded,
    score_encoders,
    scores_of_average,
)
from promptcli.evaluation.scores import Label, SpearmanScore, recipe_name
from promptcli.models.loading import open_torch_encoder
from promptcli.notes import showing_stages
from promptcli.plugins.papers.transfer import AccuracyScore, TransferTask
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import refusal
from tests.letter_encoder import LETTERS, LetterEncoder, count_letters


@pytest.fixture
def calls(monkeypatch):
    return count_letters(monkeypatch)


def pairs(number, seed):
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(list(LETTERS), 6)) for _ in range(number)]
    return Pairs(words, words[::-1], generator.integers(0, 26, number) / 5)


def task(name="STS14", protocol="senteval", split="test", **subsets):
    return STSTask(name, split, protocol, "raw text", subsets)


def plain_spearman(encoder, part):
    """The definition, pair by pair."""
    cosines = []
    for first, second in zip(part.first, part.second, strict=True):
        u, v = encoder.vectors([first, second]).astype(float)
        cosines.append(u @ v / np.linalg.norm(u) / np.linalg.norm(v))
    return 100 * spearmanr(np.array(cosines).round(12), part.gold).statistic


def test_scores_equal_the_definition_over_all_pairs_and_by_subset(calls):
    one, two = pairs(40, 1), pairs(30, 2)
    encoder = LetterEncoder(0.7)
    (score,) = score_encoders([encoder], [task(one=one, two=two)])
    everything = Pairs(
        one.first + two.first, one.second + two.second, np.concatenate([one.gold, two.gold])
    )
    for found, part in (
        (score, everything),
        (score.subsets["one"], one),
        (score.subsets["two"], two),
    ):
        assert found.value == pytest.approx(
            plain_spearman(encoder, part), abs=0.5
        ) and found.pairs == len(part)
    assert score.ci95[0] < score.value < score.ci95[1]
    assert score.value != pytest.approx(
        np.mean([part.value for part in score.subsets.values()]), abs=1e-6
    )


def test_each_distinct_sentence_is_encoded_once_over_all_tasks(calls):
    shared = pairs(20, 1)
    tasks = [task("STS12", x=shared), task("STS13", x=shared, y=pairs(5, 3))]
    seen = []
    with showing_stages(
        lambda name, steps: nullcontext(seen.append if name == "encode" else lambda done: None)
    ):
        score_encoders([LetterEncoder(), LetterEncoder(2)], tasks)
    assert len(calls) == 1
    assert len(calls[0]) == len(set(calls[0])) == len({*shared.first, *tasks[1].pairs().first})
    assert calls[0] == distinct_sentences(tasks)
    assert sum(seen) == len(calls[0])


def test_scores_come_encoder_by_encoder_and_do_not_depend_on_company(calls):
    tasks = [task("STS12", x=pairs(30, 1)), task("STS-B", split="dev", dev=pairs(25, 2))]
    encoders = [LetterEncoder(), LetterEncoder(3, RECIPES["cls"])]
    labels = [Label("mini", "first-last-avg"), Label("mine", "cls")]
    together = score_encoders(encoders, tasks, labels=labels)
    assert [(score.label, score.column, score.fingerprint) for score in together] == [
        (labels[0], "STS12", "letters-1.0"),
        (labels[0], "STS-B:dev", "letters-1.0"),
        (labels[1], "STS12", "letters-3"),
        (labels[1], "STS-B:dev", "letters-3"),
    ]
    one_by_one = itertools.product(zip(encoders, labels, strict=True), tasks)
    alone = [
        score_encoders([encoder], [each], labels=[label])[0]
        for (encoder, label), each in one_by_one
    ]
    assert [score.to_dict() for score in together] == [score.to_dict() for score in alone]


def test_a_score_as_json_says_what_it_is_of(calls):
    (score,) = score_encoders([LetterEncoder()], [task(x=pairs(30, 1), y=pairs(9, 2))])
    document = json.loads(json.dumps(score.to_dict()))
    assert document.keys() >= {"value", "ci95", "text", "data_sha256", "fingerprint"}
    said = {
        "model": "mini-bert",
        "recipe": "first-last-avg",
        "task": "STS14",
        "split": "test",
        "protocol": "senteval",
    }
    assert document.items() >= {**said, "metric": "spearman", "pairs": 39}.items()
    assert document["subsets"]["y"] == {"value": round(score.subsets["y"].value, 4), "pairs": 9}
    assert Recipe.from_dict(document["recipe_fields"]) == RECIPES["first-last-avg"]


def test_average_rounds_each_figure_first(calls):
    scores = score_encoders(
        [LetterEncoder()], [task("STS12", x=pairs(30, 1)), task("STS13", x=pairs(30, 2))]
    )
    exact = [score.value for score in scores]
    assert mean_of_rounded(scores) == np.mean([round(value, 2) for value in exact])
    assert mean_of_rounded(scores) != np.mean(exact)


def test_compare_is_paired_and_antisymmetric(calls):
    data = pairs(200, 1)
    truth = LetterEncoder(1.0)
    u, v = (truth.vectors(side).astype(float) for side in (data.first, data.second))
    noise = np.random.default_rng(0).normal(size=200) * 0.05
    gold = (u * v).sum(1) / np.linalg.norm(u, axis=1) / np.linalg.norm(v, axis=1) + noise
    tasks = [task(x=Pairs(data.first, data.second, gold))]
    good, bad = score_encoders(
        [truth, LetterEncoder(4.0)], tasks, labels=[Label("a", "good"), Label("a", "bad")]
    )
    comparison = compare([good], [bad])
    assert comparison.difference == pytest.approx(good.value - bad.value)
    assert 0 < comparison.ci95[0] < comparison.difference < comparison.ci95[1]
    assert comparison.p_value < 0.05 and comparison.p_holm == comparison.p_value
    with refusal("two lists"):
        compare(good, bad)
    for lists in (([], []), ([good], [])):
        with refusal("the same length"):
            compare(*lists)
    reverse = compare([bad], [good])
    assert reverse.difference == pytest.approx(-comparison.difference)
    (other,) = score_encoders([truth], [task(x=pairs(30, 2))])
    with refusal("different data"):
        compare([good], [other])
    document = json.loads(json.dumps(comparison.to_dict()))
    assert (document["recipe"], document["against"]["recipe"], document["task"]) == (
        "good",
        "bad",
        "STS14",
    )


def accuracy(right, label, task="TREC", data="0" * 64):
    right = np.array(right, np.float64)
    about = {"recipe": {}, "fingerprint": label, "examples": {"test": len(right)}, "seconds": 0.0}
    about["data_sha256"] = data
    value = 100 * float(right.mean())
    return AccuracyScore(
        label=Label("m", label),
        task=task,
        value=value,
        dev=0,
        decays=[],
        ci95=(0, 100),
        by_example=right,
        setting={},
        caption="",
        **about,
    )


def test_accuracies_on_other_data_are_not_compared():
    with refusal("different data"):
        compare([accuracy([1, 0], "a")], [accuracy([1, 0], "b", data="1" * 64)])


def labelled(label, second=(None, None)):
    rows = list(zip(["a cat", "a dog"], second, [0, label], strict=True))
    return TransferTask("TREC", {"all": rows})


def ranked(grade, query="a cat"):
    return RetrievalTask.of("own", [(query, "the cat", grade), (query, "a dog", 0.0)])


@pytest.mark.parametrize(
    ("task", "others"),
    [
        (labelled(1), [labelled(0), labelled(1, ["a", "b"])]),
        (ranked(1.0), [ranked(2.0), ranked(1.0, "a dog")]),
    ],
)
def test_the_hash_of_a_task_is_of_its_sentences_and_gold(task, others):
    assert task.sha256() == dataclasses.replace(task, name="other").sha256()
    assert len({task.sha256(), *(other.sha256() for other in others)}) == 3


def test_a_score_of_retrieval_has_the_hash_of_its_data():
    (score,) = score_encoders([open_torch_encoder("mini-static")], [ranked(1.0)])
    assert score.to_dict()["data_sha256"] == ranked(1.0).sha256()


def test_accuracies_are_compared_example_by_example():
    generator = np.random.default_rng(0)
    right = generator.random(400) < 0.8
    worse = right & (generator.random(400) < 0.9)  # wrong wherever the better one is
    paired = compare([accuracy(right, "a")], [accuracy(worse, "b")])
    unpaired = compare([accuracy(right, "a")], [accuracy(generator.permutation(worse), "b")])
    assert (
        paired.difference
        == pytest.approx(unpaired.difference)
        == pytest.approx(100 * (right.mean() - worse.mean()))
    )
    widths = [high - low for low, high in (paired.ci95, unpaired.ci95)]
    assert widths[0] < widths[1] / 2 and paired.p_value < 0.01
    several = [(accuracy(right, "a", task), accuracy(worse, "b", task)) for task in ("MR", "TREC")]
    both = compare(*zip(*several, strict=True))
    assert both.pairs == 800 and both.difference == pytest.approx(paired.difference)
    assert both.ci95[1] - both.ci95[0] < widths[0]  # the tasks are drawn apart


def test_a_difference_is_over_the_tasks_of_the_average(calls):
    tasks = [
        task("STS12", x=pairs(30, 1)),
        task("STS-B", split="dev", dev=pairs(25, 2)),
        task("mine", x=pairs(20, 3)),
    ]
    labels = [Label("m", "a"), Label("m", "b")]
    scores = score_encoders([LetterEncoder(), LetterEncoder(3)], tasks, labels=labels)
    rows = {
        labels[0]: [*scores[:3], accuracy([1, 0], "x", "mine")],
        labels[1]: [*scores[3:], accuracy([1, 1], "y", "mine")],
    }
    assert [score.column for score in scores_of_average(rows[labels[0]], SpearmanScore)] == [
        "STS12"
    ]
    graded, accuracies = compare_encoders(rows, None)
    assert graded.tasks == ["STS12"]
    assert abs(graded.difference) == pytest.approx(abs(scores[0].value - scores[3].value))
    assert accuracies.metric == "accuracy" and abs(accuracies.difference) == 50
    own = {label: row[1:3] for label, row in rows.items()}  # none of the papers' tasks: then all
    assert compare_encoders(own, None)[0].tasks == ["STS-B:dev", "mine"]


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        *((recipe, name) for name, recipe in RECIPES.items()),
        (Recipe(), "first-last-avg"),
        (Recipe(backbone="bert-base-uncased", pooling="last/ditto"), "last-ditto"),
        (RECIPES["prompt"].replace(backbone="x"), "prompt"),
        (Recipe(pooling="last/ditto:1-8"), "pooling=last/ditto:1-8"),
        (Recipe(prompt="[X] [MASK]", period=False), "prompt=[X] [MASK] period=False"),
        (
            Recipe(max_length=32, transforms=("whitening:3", "a")),
            "transforms=whitening:3,a max_length=32",
        ),
    ],
)
def test_a_recipe_is_called_by_its_name_or_by_what_it_changes(recipe, name):
    assert recipe_name(recipe) == name
