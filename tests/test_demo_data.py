"""The demo sets: enough, varied, whole, and development and test apart."""

import collections
import re

import numpy as np
import pytest

from promptcli.data.demo import SENTENCES, TEXT
from promptcli.data.task_table import TASKS, TaskName
from promptcli.data.tasks import load_tasks

KINDS = {"antonym", "detail", "entail", "lexical", "negation", "number", "order", "paraphrase", "topic", "unrelated"}
#: Words shared over all words of two sentences, from which they are near-duplicates.
NEAR = 0.6


def load_demo(split):
    return load_tasks(None, [TaskName("demo", split)]).tasks[0]


def words(sentence):
    return frozenset(re.findall(r"[a-z0-9']+", sentence.lower()))


def near_duplicates(sentences):
    """Yield pairs of sentences with almost the same words."""
    rows, holding = [words(sentence) for sentence in sentences], collections.defaultdict(list)
    for number, row in enumerate(rows):
        shared = collections.Counter(other for word in row for other in holding[word])
        for other, count in shared.items():
            if count / len(row | rows[other]) >= NEAR:
                yield sentences[number], sentences[other]
        for word in row:
            holding[word].append(number)


def test_sentences_are_many_and_no_two_alike():
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    assert len(sentences) >= 5000
    assert all(sentence == sentence.strip() and 3 <= len(sentence.split()) <= 45 for sentence in sentences)
    assert not list(near_duplicates(sentences))
    assert len(set().union(*map(words, sentences))) > 8000  # varied: many words


@pytest.mark.parametrize("split", ["dev", "test"])
def test_pairs_are_graded_over_the_whole_scale(split):
    task = load_demo(split)
    pairs = task.pairs()
    assert len(pairs) == task.expected_pairs == TASKS[task.label].sizes["all"] >= 300
    assert set(task.subsets) == KINDS
    assert min(len(part) for part in task.subsets.values()) >= 30
    assert 0 <= pairs.gold.min() < pairs.gold.max() == 5
    assert np.histogram(pairs.gold, bins=[0, 1, 2, 3, 4, 5.1])[0].min() >= 60
    assert not {"", " "} & {*pairs.first, *pairs.second}
    assert task.text == TEXT


def test_development_and_test_share_no_sentence():
    dev, test = (load_demo(split).pairs() for split in ("dev", "test"))
    sides = [{words(sentence) for sentence in (*part.first, *part.second)} for part in (dev, test)]
    assert not sides[0] & sides[1]
    for one in sides[0]:
        assert all(len(one & other) / len(one | other) < NEAR for other in sides[1])


def test_figures_on_demo_say_what_they_are(run):
    ran = run("eval", "--recipe", "cls", "--task", "demo:dev", "--task", "demo", "--offline")
    assert ran.code == 0
    assert TEXT in ran.out
    assert "Avg" not in ran.out  # no average with the papers' tasks
