"""The demo sets: enough, varied, whole, and development and test apart."""

import re

import numpy as np
import pytest

from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.data.demo import DEFINITIONS_FILE, SENTENCES_FILE, TEXT
from promptcli.data.task_table import TASKS, TaskName
from promptcli.data.tasks import load_graded_tasks
from promptcli.data.training_data import read_examples

#: Few words differ and the meaning does, or the other way round: a share of the pairs, as most are
#: plain ones.
HARD = {"antonym", "lexical", "negation", "number", "order"}
KINDS = HARD | {"detail", "entail", "paraphrase", "related", "topic", "unrelated"}


def load_demo(split):
    return load_graded_tasks(None, [TaskName("demo", split)]).tasks[0]


def test_sentences_are_many_and_varied():
    sentences = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    assert len(sentences) >= 5000
    assert all(
        sentence == sentence.strip() and 3 <= len(sentence.split()) <= 45 for sentence in sentences
    )
    assert len({sentence.lower() for sentence in sentences}) == len(sentences)
    assert len(set(re.findall(r"[a-z0-9']+", " ".join(sentences).lower()))) > 8000


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.usefixtures("all_demo_pairs")
def test_pairs_are_graded_over_the_whole_scale(split):
    task = load_demo(split)
    pairs = task.pairs()
    assert len(pairs) == task.expected_pairs == TASKS[task.label].pairs >= 1000
    assert set(task.subsets) == KINDS
    assert min(len(part) for part in task.subsets.values()) >= 30
    assert 0 <= pairs.gold.min() < pairs.gold.max() == 5
    assert 0.1 < sum(len(task.subsets[kind]) for kind in HARD) / len(pairs) < 0.2
    shares = np.histogram(pairs.gold, bins=[0, 1, 2, 3, 4, 5.1])[0] / len(pairs)
    assert 0.13 < shares.min() and shares.max() < 0.3  # no end of the scale rules
    assert len({*zip(pairs.first, pairs.second, strict=True)}) == len(pairs)
    assert not {"", " "} & {*pairs.first, *pairs.second}
    assert task.text == TEXT


@pytest.mark.usefixtures("all_demo_pairs")
def test_development_and_test_share_no_sentence():
    dev, test = (load_demo(split).pairs() for split in ("dev", "test"))
    assert not {*dev.first, *dev.second} & {*test.first, *test.second}


def test_definitions_are_of_words_that_mini_knows():
    examples = read_examples(DEFINITIONS_FILE, [("definition", "word")])
    definitions, known = examples.columns
    assert len(set(known)) == len(known) >= 200 and len(set(definitions)) == len(known)
    assert not [word for word, text in zip(known, definitions, strict=True) if word in text.split()]
    vocabulary = (
        (SHIPPED_BACKBONES["mini-bert"] / "vocab.txt").read_text(encoding="utf-8").splitlines()
    )
    assert len(set(known) & set(vocabulary)) >= 0.9 * len(known)
