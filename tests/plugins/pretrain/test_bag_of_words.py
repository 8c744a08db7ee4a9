"""Pre-training by bag-of-words prediction: the mask of a template predicts the words of its
sentence.
"""

import itertools
import math

import numpy as np
import pytest
import torch

from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.named_templates import named_templates
from promptcli.plugins.pretrain import corpus as corpus_file
from promptcli.plugins.pretrain.batches import (
    DEFAULT_TEMPLATES,
    batch_of_step,
    read_templates,
    steps,
)
from promptcli.plugins.pretrain.corpus import MASK, SPECIALS, Corpus, Vocabulary
from promptcli.plugins.pretrain.plan import Plan
from promptcli.plugins.pretrain.pretraining import Pretrainer
from promptcli.plugins.pretrain.start import new_model
from tests.comparing import refusal
from tests.plugins.pretrain.small_runs import tiny_model
from tests.reference.losses import bag_of_words

SIZE = 500
SHAPE = {"positions": 64, "vocab_size": SIZE, "width": 32, "heads": 2, "layers": 2}
TEMPLATES = (([7, 8], [9, MASK, 10]), ([MASK, 11], []), ([], [12, MASK]))


@pytest.fixture(autouse=True)
def few_function_pieces(monkeypatch):
    monkeypatch.setattr(corpus_file, "_FUNCTION_PIECES", 20)


def made_corpus(lines=300, unrelated=60, seed=0, letters=True):
    rng = np.random.default_rng(seed)
    count = SIZE - len(SPECIALS)
    rows = [
        rng.zipf(1.3, size).clip(max=count) + len(SPECIALS) - 1
        for size in rng.integers(1, 20, lines)
    ]
    pieces = (*SPECIALS, *("word" if letters and number % 7 else "7" for number in range(count)))
    ends = np.cumsum([len(row) for row in rows])
    vocabulary = Vocabulary(lambda lines: [], SIZE, pieces)
    return Corpus(
        np.concatenate(rows).astype(np.uint16), ends, lines - unrelated, vocabulary, TEMPLATES
    )


def plan(**changes):
    fields = {
        "tokens": 6000,
        "batch_tokens": 512,
        "objective": "bag-of-words",
        "templated": 1.0,
        "at_start": 1.0,
    }
    return Plan(**{**SHAPE, **fields, **changes})


def test_the_loss_is_the_plain_loops():
    corpus, model = made_corpus(), tiny_model(vocab_size=SIZE, positions=64)
    step = next(steps(plan(), corpus))
    batch = batch_of_step(step, plan(), corpus)
    with torch.no_grad():
        both, _ = model.loss(batch.on("cpu"), dropout=0.0)
        model._stored.eval()
        ids, real = torch.from_numpy(batch.ids), torch.from_numpy(batch.real)
        logits = model._stored(input_ids=ids, attention_mask=real.long()).logits.flatten(0, 1)
    lines = [row.tolist() for row in np.split(np.asarray(corpus.tokens), corpus.ends[:-1])]
    losses, masks = [], batch.places[len(batch.gold) :]
    for start, end in step.spans.tolist():
        place = masks[min(len(losses), len(masks) - 1)]
        assert batch.ids.ravel()[place] == MASK
        sentence = corpus.tokens[start:end].tolist()
        loss = bag_of_words(
            lines,
            sentence,
            logits[place].tolist(),
            20,
            lambda piece: (piece - len(SPECIALS)) % 7 != 0,
        )
        losses += [] if loss is None else [loss]
    assert len(losses) == len(masks) > 10
    places, gold = map(torch.from_numpy, (batch.places[: len(batch.gold)], batch.gold))
    masked = float(torch.nn.functional.cross_entropy(logits[places], gold))
    assert float(both) == pytest.approx(masked + sum(losses) / len(losses), rel=1e-5)


def test_sentences_stand_in_templates_and_are_hidden_in_part():
    corpus, wanted = made_corpus(lines=2000), plan(tokens=60_000, batch_tokens=2048, masking=0.25)
    templates, hidden, real = set(), 0, 0
    for step in itertools.islice(steps(wanted, corpus), 8):
        batch, again = (batch_of_step(step, wanted, corpus) for _ in range(2))
        assert np.array_equal(batch.ids, again.ids)
        restored = batch.ids.copy()
        restored.ravel()[batch.places[: len(batch.gold)]] = batch.gold
        for row, there, (start, end) in zip(restored, batch.real, step.spans.tolist(), strict=True):
            inside, sentence = row[there][1:-1].tolist(), corpus.tokens[start:end].tolist()
            fits = [
                at
                for at, (before, after) in enumerate(TEMPLATES)
                if inside == [*before, *sentence, *after]
            ]
            assert fits
            templates |= set(fits)
        hidden, real = (
            hidden + len(batch.gold),
            real + int((step.spans[:, 1] - step.spans[:, 0]).sum()),
        )
        assert batch.ids.size <= wanted.batch_tokens
    assert templates == {0, 1, 2}
    assert hidden / real == pytest.approx(0.25, abs=0.02)


def test_a_share_of_the_steps_is_plain_masking():
    corpus = made_corpus(lines=3000)
    wanted = plan(tokens=60_000, templated=0.6)
    taken = list(steps(wanted, corpus))
    assert np.mean([step.templated for step in taken]) == pytest.approx(0.6, abs=0.12)
    plain = next(step for step in taken if not step.templated)
    assert not len(batch_of_step(plain, wanted, corpus).words)
    assert [step.seen for step in taken] == [
        0,
        *itertools.accumulate(step.tokens for step in taken[:-1]),
    ]


def test_lines_without_content_have_the_plain_loss():
    corpus = made_corpus(letters=False)
    step = next(steps(plan(), corpus))
    batch = batch_of_step(step, plan(), corpus)
    assert not len(batch.words) and len(batch.places) == len(batch.gold)
    trainer = Pretrainer(plan(), "cpu", new_model(plan(), "cpu", torch.float32))
    assert math.isfinite(trainer.take_step(step, batch)[0])


@pytest.fixture
def vocabulary():
    return Vocabulary.load(SHIPPED_BACKBONES["mini-bert"] / "vocab.txt")


def test_the_papers_own_templates_are_held_out(vocabulary):
    taught = read_templates(DEFAULT_TEMPLATES, vocabulary)
    assert len(taught) > 40
    for template in named_templates().values():
        if "[MASK]" in template.text:
            assert tuple(vocabulary.encode(template.text.split("[X]"))) not in taught


@pytest.mark.parametrize(
    "line",
    [
        "no slot [MASK] .",
        "[X] no mask .",
        "[X] [MASK] [MASK]",
        "[X] and [X] [MASK]",
        "a " * 40 + "[X] [MASK]",
    ],
)
def test_a_line_that_is_no_template(tmp_path, vocabulary, line):
    (tmp_path / "templates.txt").write_text(f"[X] is [MASK] .\n{line}\n")
    with refusal(r"line 2: .*write one \[X\]"):
        read_templates(tmp_path / "templates.txt", vocabulary)
