"""Scores are kept between evaluations, and reused only for the same data, model and protocol."""

from dataclasses import replace

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.tasks import CustomMetricTask, Pairs, RetrievalTask, STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation import evaluator, kept_scores
from promptcli.evaluation.evaluator import EvalSettings, embed_tasks, score_vectors
from promptcli.evaluation.kept_scores import KeptScores
from promptcli.evaluation.scores import Label
from promptcli.plugins.papers import classifier
from promptcli.plugins.papers.transfer import TransferTask as Transfer
from promptcli.recipe import RECIPES, LeadingTexts

LABEL = Label("tiny", "cls")
WORDS = ["a dog", "a cat", "the sun", "a tree", "the sea", "two men", "a car", "red hat"]
STS = STSTask("STS14", "test", "senteval", "raw", {"a": Pairs(WORDS, WORDS[::-1], np.arange(8.0))})
RETRIEVAL = RetrievalTask("retrieval:notes", WORDS[:2], WORDS[2:], [{0: 1.0}, {3: 2.0, 1: 1.0}])
LABELLED = [(word, None, number // 3 % 2) for number, word in enumerate(WORDS * 12)]
TRANSFER = Transfer("CR", {"all": LABELLED})


@pytest.fixture
def encoder(tiny_backbone, monkeypatch):
    small = replace(classifier.FAST, folds=3, epoch_size=1, tenacity=1)
    monkeypatch.setattr(classifier, "FAST", small)
    return TorchEncoder(RECIPES["cls"], tiny_backbone("bert"), {})


def measured(encoder, task, settings):
    [score] = score_vectors(
        embed_tasks([encoder], [task], [LABEL], lambda done: None), [task], settings
    )
    return score


@pytest.mark.parametrize("task", [STS, RETRIEVAL, TRANSFER], ids=lambda task: task.name)
def test_a_kept_score_is_the_measured_one(task, encoder):
    settings = EvalSettings(fast=True)
    score = measured(encoder, task, settings)
    KeptScores(settings).put(encoder, task, score)
    found = KeptScores(settings).get(encoder, LABEL, task)
    assert type(found) is type(score) and found == score
    assert found.to_dict() == score.to_dict()
    for name, value in vars(score).items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(found, name), value)
    assert KeptScores(settings, fresh=True).get(encoder, LABEL, task) is None


def test_a_score_stands_under_the_name_that_is_asked_for(encoder):
    KeptScores(EvalSettings()).put(encoder, STS, measured(encoder, STS, EvalSettings()))
    other = Label("other name", "cls")
    assert KeptScores(EvalSettings()).get(encoder, other, STS).label == other


def test_what_decides_a_score_is_in_its_key(encoder, tiny_backbone, monkeypatch):
    small = EvalSettings(fast=True)
    scores = KeptScores(small)
    scores.put(encoder, STS, measured(encoder, STS, small))
    scores.put(encoder, TRANSFER, measured(encoder, TRANSFER, small))
    scores.put(encoder, RETRIEVAL, measured(encoder, RETRIEVAL, small))

    def known(task, encoder=encoder, settings=small):
        return KeptScores(settings).get(encoder, LABEL, task) is not None

    assert known(STS) and known(TRANSFER) and known(RETRIEVAL)
    assert not known(replace(STS, protocol="mteb"))
    assert not known(replace(STS, subsets={"a": Pairs(WORDS, WORDS, np.arange(8.0))}))
    assert not known(replace(RETRIEVAL, ranking="hybrid"))
    assert not known(STS, TorchEncoder(RECIPES["last-avg"], tiny_backbone("bert"), {}))
    assert not known(STS, TorchEncoder(RECIPES["cls"], tiny_backbone("roberta"), {}))
    leading = LeadingTexts({"query": "query: "})
    with_prompts = TorchEncoder(encoder.recipe, encoder.backbone, {}, leading=leading)
    assert not known(RETRIEVAL, with_prompts)
    monkeypatch.setattr(kept_scores, "PROTOCOL_VERSION", kept_scores.PROTOCOL_VERSION + 1)
    assert not known(STS)


def test_a_task_with_a_metric_of_its_own_is_measured_each_time(encoder):
    task = CustomMetricTask("own", lambda parts: 1.0, {"all": [("a dog", None, 1.0)]})
    scores = KeptScores(EvalSettings())
    scores.put(encoder, task, measured(encoder, task, EvalSettings()))
    assert scores.get(encoder, LABEL, task) is None


def test_an_encoder_in_memory_is_measured_each_time(encoder, bert_folder, tmp_path, monkeypatch):
    pairs = tmp_path / "pairs.csv"
    rows = [
        f"{first},{second},{n}"
        for n, (first, second) in enumerate(zip(WORDS, WORDS[::-1], strict=True))
    ]
    pairs.write_text("\n".join(["sentence1,sentence2,score", *rows]))
    passes = []
    real = evaluator.encode_together

    def encode_together(encoders, sentences, **options):
        passes.append(len(sentences))
        return real(encoders, sentences, **options)

    monkeypatch.setattr(evaluator, "encode_together", encode_together)
    named = str(bert_folder)
    for model, count in ((named, 1), (named, 1), (encoder, 2), (encoder, 3)):
        pc.evaluate(model, [pairs])
        assert len(passes) == count
    pc.evaluate(named, [pairs], force=True)
    assert len(passes) == 4
