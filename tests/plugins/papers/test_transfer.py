"""Transfer tasks: the readers, the folds, the classifier next to a plain one, and the command."""

import dataclasses
import itertools
import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

import promptcli as pc
from promptcli.data.task_table import TaskName
from promptcli.data.tasks import load_tasks
from promptcli.encoder.encoder import Embeddings
from promptcli.errors import UsageError
from promptcli.evaluation import evaluator, statistics
from promptcli.models.entries import Entry, Registry
from promptcli.notes import showing_stages
from promptcli.plugins.papers import classifier
from promptcli.plugins.papers.classifier import (
    DECAYS,
    FAST,
    FULL,
    Classifiers,
    classify,
)
from promptcli.plugins.papers.transfer import NAMES, pair_features, treebank, visible_bytes
from promptcli.recipe import RECIPES
from tests.comparing import refusal
from tests.reference import senteval_classifier as plain
from tests.senteval import BAD, sentences, write_transfer

SMALL = classifier.ClassifierTraining(
    folds=3, optimizer="adam", learning_rate=1e-2, batch=8, epoch_size=2, tenacity=2
)


def points(count, classes=2, width=5, seed=0):
    """Noisy clusters: enough overlap that the weight decays differ."""
    generator = np.random.default_rng(seed)
    labels = np.sort(generator.integers(0, classes, count))
    centres = generator.standard_normal((classes, width))
    features = centres[labels] + 1.5 * generator.standard_normal((count, width))
    return features.astype(np.float32), labels


# --- text


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("it's a film , we'll say", "it 's a film , we 'll say"),
        ('he called it "odd" and left.', "he called it `` odd '' and left ."),
        ('"odd," he said ("very")', "`` odd , '' he said ( `` very '' )"),
        ("don't you -- I CAN'T", "do n't you -- I CA N'T"),
        ("my dogs' toys, at 5 p.m. today...", "my dogs ' toys , at 5 p.m. today ..."),
        ("a 'children's' tale", "a 'children 's ' tale"),
        (
            "I cannot, I wanna; Gimme more'n 'tis?!",
            "I can not , I wan na ; Gim me more 'n 't is ? !",
        ),
        (
            "costs 5$ & 10% [ok] {a} <b> e@f #1: x",
            "costs 5 $ & 10 % [ ok ] { a } < b > e @ f # 1 : x",
        ),
        ("ends (so it is.)", "ends ( so it is . )"),
        ("", ""),
    ],
)
def test_treebank_words_and_that_they_stay_what_they_are(raw, words):
    assert treebank(raw) == words
    assert treebank(words) == words


def test_bytes_are_made_visible_as_cat_does():
    assert (
        visible_bytes("caf\xe9 \x85 \x01\x7f\xff\x89 a\tb\n") == "cafM-i M-^E ^A^?M-^?M-^I a\tb\n"
    )


# --- files


@pytest.fixture
def data(tmp_path):
    write_transfer(tmp_path / "SentEval" / "data" / "downstream")
    return tmp_path / "SentEval"


def load(data, name):
    (task,) = load_tasks(data, [TaskName(name)]).tasks
    return task


def test_every_task_is_read_in_the_order_of_the_papers(data):
    loaded = load_tasks(data, [TaskName(name) for name in NAMES])
    assert [task.name for task in loaded.tasks] == list(NAMES) and loaded.missing == {}
    sizes = {split: len(part) for split, part in load(data, "SST-2").splits.items()}
    assert sizes == {"train": 40, "dev": 10, "test": 10}
    for name in ("MR", "SUBJ", "MPQA"):  # the first class is positive or objective
        rows = load(data, name).splits["all"]
        assert {label for text, _, label in rows if "fine" in text} == {1}


def test_examples_stand_in_the_order_of_words_then_label_then_file(data):
    rows = load(data, "MR").splits["all"]
    keys = [(len(sentence.split()), label) for sentence, _, label in rows]
    assert keys == sorted(keys)
    same = [row[0] for row, key in zip(rows, keys, strict=True) if key == keys[0]]
    assert same == [line for line in sentences(BAD, 20) if len(line.split()) == keys[0][0]]
    pairs = load(data, "MRPC").splits["train"]
    keys = [(len(first.split()), len(second.split())) for first, second, _ in pairs]
    assert keys == sorted(keys)


def test_questions_lose_their_quotes_and_fine_classes_and_pairs_keep_unbalanced_quotes(data):
    questions, _, labels = zip(*load(data, "TREC").splits["test"], strict=True)
    assert questions[0].startswith("What s ")
    assert not any(quote in " ".join(questions) for quote in "'`")
    assert sorted(labels) == sorted([0, 1, 2, 3, 4, 5] * 2)
    assert questions[labels.index(3)] == "What s hum 3 ?"
    pairs = load(data, "MRPC").splits["test"]
    assert len(pairs) == 10 and all(second.startswith('"') for _, second, _ in pairs)


def test_latin_1_blank_lines_and_text_that_went_through_the_script(data):
    path = data / "data/downstream/CR/custrev.pos"
    path.write_bytes(b"the caf\xe9 isn't bad\x85 at all\n\n")
    rows = load(data, "CR").splits["all"]
    assert (len(rows), rows[0]) == (22, ("", None, 1))
    assert "the cafM-i is n't badM-^E at all" in [row[0] for row in rows]
    before = "it 's `` so-so '' , I ca n't say M-i more ... \n"
    path.write_text(before)
    assert (before.strip(), None, 1) in load(data, "CR").splits["all"]


@pytest.mark.parametrize(
    ("name", "files", "content", "message"),
    [
        (
            "TREC",
            ["TREC/TREC_10.label"],
            b"HUM:ind Who ?\nWhy not ?\n",
            "TREC_10.label:2: .*`CLASS:kind question`",
        ),
        ("TREC", ["TREC/TREC_10.label"], b"ANIMAL:ind Who ?\n", "CLASS one of ABBR, DESC"),
        (
            "SST-2",
            ["SST/binary/sentiment-dev"],
            b"no label\n",
            "sentiment-dev:1: expected 2 columns, found 1",
        ),
        ("SST-2", ["SST/binary/sentiment-dev"], b"fine\t3\n", "label '3'"),
        (
            "SST-2",
            ["SST/binary/sentiment-dev"],
            b"fine\t1\ncaf\xe9\t1\n",
            "sentiment-dev: line 2: is not UTF-8",
        ),
        (
            "MRPC",
            ["MRPC/msr_paraphrase_test.txt"],
            b"head\n1\ta\tb\tc\n",
            "_test.txt:2: expected 5 columns",
        ),
        ("MR", ["MR/rt-polarity.pos", "MR/rt-polarity.neg"], b"", "holds no sentences"),
        ("MR", ["MR/rt-polarity.pos"], None, "rt-polarity.pos' is a folder"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(data, name, files, content, message):
    for path in (data / "data/downstream" / file for file in files):
        path.unlink()
        path.mkdir() if content is None else path.write_bytes(content)
    with refusal(message):
        load_tasks(data, [TaskName(name)])


# --- the classifier


@pytest.mark.parametrize("training", [SMALL, FULL, FAST], ids=["small", "full", "fast"])
def test_fits_side_by_side_are_the_plain_fits(training):
    """The fits have unequal lengths: some have a step less in a pass, and some end sooner."""
    features, labels = points(90, classes=3)
    cuts = [
        (np.r_[:63], np.r_[63:90]),
        (np.r_[20:90], np.r_[:20]),
        (np.r_[:30, 40:90], np.r_[30:40]),
    ]
    fits = [
        classifier.ClassifierFit(left, out, DECAYS, np.random.RandomState(7)) for left, out in cuts
    ]
    classifiers = Classifiers([(features, labels)], dataclasses.replace(training, seed=7))
    weights, accuracy = classifiers.train(fits)
    for number, (left, out) in enumerate(cuts):
        for place, decay in enumerate(DECAYS):
            held_out = features[out], labels[out]
            layer, best = plain.plain_fit(
                features[left], labels[left], held_out, decay, training, 3, 7
            )
            mine = weights[number, place]
            assert float(accuracy[number, place]) == pytest.approx(best, abs=1e-9)
            assert torch.allclose(mine[:, :-1], layer.weight, atol=2e-4)
            assert torch.allclose(mine[:, -1], layer.bias, atol=2e-4)


OFFICIAL = Path(__file__).parents[2] / "reference/official/senteval.json"
_WAYS = ("nested-folds", "folds-and-test", "pairs", "splits")


CASES = [f"{way}/{size}" for way in _WAYS for size in ("fast", "full")]


@pytest.mark.parametrize("case", [*CASES, "nested-folds/fast/seed-1", "nested-folds/fast/seed-2"])
def test_accuracies_are_the_official_ones(case):
    """What SentEval's own classifiers reached on given features, at 1111 and at other seeds."""
    expected, values = (
        json.loads(OFFICIAL.read_text())["cases"][case],
        np.load(OFFICIAL.with_suffix(".npz")),
    )
    way, size, *_ = case.split("/")
    if way == "pairs":
        features = pair_features(values["pairs/first"], values["pairs/second"])
        labels = values["pairs/labels"]
    else:
        name = "six/" if way == "folds-and-test" else ""
        features, labels = values[f"{name}features"], values[f"{name}labels"]
    cuts = {"nested-folds": {"all": 300}, "splits": {"train": 200, "dev": 250, "test": 300}}
    splits, start = {}, 0
    for split, stop in cuts.get(way, {"train": 220, "test": 300}).items():
        splits[split], start = (features[start:stop], labels[start:stop]), stop
    seed = expected.get("seed", 1111)
    training = dataclasses.replace({"fast": FAST, "full": FULL}[size], seed=seed)
    done = []
    with showing_stages(lambda name, steps: nullcontext(lambda share: done.append(share / steps))):
        found = classify(splits, training)
    assert (found.test, found.dev) == (expected["accuracy"], expected["dev"])
    assert sum(done) == pytest.approx(1) and len(done) >= 3
    tested = splits.get("test", splits.get("all"))[1]
    assert len(found.right) == len(tested)
    assert 100 * found.right.mean() == pytest.approx(found.test, abs=1)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_correlations_are_the_official_ones(precision):
    """Spearman of each set and of all pairs; pairs without a gold score are left out."""
    expected = json.loads(OFFICIAL.read_text())["cases"][f"sts/{precision}"]
    values, parts = np.load(OFFICIAL.with_suffix(".npz")), []
    for name in ("FNWN", "headlines", "OnWN"):
        gold = values[f"sts/{name}/gold"]
        first, second = (
            values[f"sts/{name}/{side}"].astype(precision) for side in ("first", "second")
        )
        graded = ~np.isnan(gold)
        parts.append((statistics.cosine(first, second)[graded], gold[graded]))
        assert statistics.spearman(*parts[-1]) == pytest.approx(
            expected[name]["spearman"], abs=1e-9
        )
    together = [np.concatenate(side) for side in zip(*parts, strict=True)]
    assert statistics.spearman(*together) == pytest.approx(
        expected["all"]["spearman"]["all"], abs=1e-9
    )


@pytest.mark.parametrize(
    ("splits", "training", "message"),
    [
        ({"all": [1] * 40}, FULL, "T: all 40 training labels are 1"),
        ({"train": [0] * 9, "dev": [0, 1], "test": [1]}, FULL, "T: all 9 training labels are 0"),
        (
            {"train": [0] * 40 + [1] * 9, "test": [1]},
            FULL,
            "T: 9 examples of class 1 are too few for 10 folds; .* 10",
        ),
        (
            {"all": [0] * 40 + [1] * 11},
            FULL,
            "T: 11 examples of class 1 are too few for 10 folds; .* 12",
        ),
        ({"all": [0, 1] * 8}, FAST, "T: of 12 training examples 5% cannot be held out; .* 20"),
        ({"train": [0, 1] * 8, "test": [0, 1] * 8}, FAST, "T: of 16 training examples 5%"),
        ({"all": [0] * 12 + [1] * 12}, FULL, None),  # just enough
        ({"train": [0] * 10 + [1] * 10, "test": [1]}, FULL, None),
        ({"train": [0, 1], "dev": [1], "test": [1]}, FULL, None),
    ],
)
def test_labels_that_nothing_can_be_learned_from_are_refused(splits, training, message):
    with pytest.raises(UsageError, match=message) if message else nullcontext():
        classifier.check_labels(
            "T", {split: np.array(labels) for split, labels in splits.items()}, training
        )


# --- the command


@pytest.fixture
def document(run, data):
    """Run ``eval`` on the tasks with ``--fast``; return its JSON document and its notes."""

    def call(*given):
        ran = run("eval", "--data-dir", data, "--fast", "--offline", "--json", *given)
        return ran.json, ran.err

    return call


@pytest.fixture
def backbone(bert_folder):
    return ("--backbone", bert_folder)


def test_all_seven_in_one_json_document(document, backbone):
    found, said = document("cls", "last-avg", "--task", "transfer", *backbone)
    assert found["setting"] == {"folds": 5, "optimizer": "rmsprop", "seed": 1111}
    rows = [(row["recipe"], row["task"]) for row in found["results"]]
    assert rows == [*itertools.product(("cls", "last-avg"), NAMES)]
    row = next(row for row in found["results"] if row["task"] == "MR")
    assert row["examples"] == {"all": 40} and len(row["weight_decays"]) == 5
    assert all(0 <= row["value"] <= 100 and row["metric"] == "accuracy" for row in found["results"])
    # as soon as the task ended
    assert f"MR: {Path(backbone[1]).name} cls {row['value']:.2f} ±" in said
    for row in found["results"]:
        low, high = row["ci95"]
        assert low <= row["value"] <= high and "by_example" not in row
    [comparison] = found["comparisons"]
    assert (comparison["task"], comparison["metric"]) == (
        ", ".join(NAMES),
        "accuracy difference",
    )
    means = [
        np.mean([row["value"] for row in rows])
        for rows in (found["results"][:7], found["results"][7:])
    ]
    assert abs(comparison["value"]) == pytest.approx(abs(means[0] - means[1]), abs=1e-3)
    assert comparison["ci95"][0] <= comparison["value"] <= comparison["ci95"][1]


def test_two_encoders_are_compared_on_the_same_test_examples(run, data, backbone):
    words = [
        "eval",
        "cls",
        "--compare",
        "last-avg",
        "--task",
        "TREC",
        "--data-dir",
        data,
        "--fast",
        "--offline",
    ]
    found = run(*words, *backbone, "--json").json
    cls, average = found["results"]
    [comparison] = found["comparisons"]
    assert comparison["value"] == pytest.approx(cls["value"] - average["value"], abs=1e-4)
    assert comparison["pairs"] == cls["examples"]["test"]


def test_a_model_may_hold_another_recipe_for_transfer_tasks(document, backbone, data, home):
    cls, average = (
        RECIPES[name].replace(backbone=str(backbone[1])) for name in ("cls", "last-avg")
    )
    Registry(home).save(Entry("mine", average, transfer=cls))
    assert Registry(home).load("mine").transfer == cls
    found, said = document("--task", "TREC", "-m", "mine")
    assert "mine: transfer tasks use its recipe for them, cls" in said
    (mine,) = found["results"]
    (other,) = document("--task", "TREC", "--model", "cls", *backbone)[0]["results"]
    assert mine["recipe"] == other["recipe"] == "cls"
    assert mine["data_sha256"] == other["data_sha256"] and len(mine["data_sha256"]) == 64
    (same,) = pc.evaluate("mine", ["TREC"], data_dir=data, fast=True)
    for row in (other, same.to_dict()):
        assert (row["value"], row["dev"], row["fingerprint"]) == (
            mine["value"],
            mine["dev"],
            mine["fingerprint"],
        )
    (shorter,) = document("--task", "TREC", "-m", "mine", "--set", "max-length=4")[0]["results"]
    assert (shorter["recipe_fields"]["pooling"], shorter["recipe_fields"]["max_length"]) == (
        "last/cls",
        4,
    )


def test_an_encoder_that_gives_no_number_is_refused(run, backbone, data, monkeypatch):
    def encode_together(encoders, sentences, *, progress):
        return [
            Embeddings(
                np.full((len(sentences), 2), np.nan, np.float32),
                *np.zeros((2, len(sentences)), int),
            )
        ]

    monkeypatch.setattr(evaluator, "encode_together", encode_together)
    ran = run(
        "eval",
        "--data-dir",
        data,
        "--fast",
        "--offline",
        *backbone,
        "--task",
        "MR",
        "--model",
        "cls",
        "-q",
    )
    assert (ran.code, ran.out) == (1, "") and "is not finite" in ran.err
