"""Pre-training by bag-of-words prediction: the mask of a template predicts the words of its sentence."""

import itertools

import numpy as np
import pytest
import torch

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.vocabulary import MASK, SPECIALS, Vocabulary
from promptcli.encoder.prompts.named import named_templates
from promptcli.errors import UsageError
from promptcli.pretraining import corpus as corpus_file
from promptcli.pretraining.batches import DEFAULT_TEMPLATES, mask, predict_words, read_templates, steps
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.trainer import Trainer
from tests.pretraining.test_pretraining import tiny_model
from tests.pretraining.test_pretraining_steps import take_step
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
    rows = [rng.zipf(1.3, size).clip(max=count) + len(SPECIALS) - 1 for size in rng.integers(1, 20, lines)]
    pieces = (*SPECIALS, *("word" if letters and number % 7 else "7" for number in range(count)))
    ends = np.cumsum([len(row) for row in rows])
    return Corpus(np.concatenate(rows).astype(np.uint16), ends, lines - unrelated, pieces, TEMPLATES)


def plan(**changes):
    fields = {"tokens": 6000, "batch_tokens": 512, "objective": "bag-of-words", "templated": 1.0, "at_start": 1.0}
    return Plan(**{**SHAPE, **fields, **changes})


def test_the_loss_is_the_plain_loops():
    corpus, model = made_corpus(), tiny_model(vocab_size=SIZE, positions=64)
    step = next(steps(plan(), corpus))
    batch = predict_words(step, plan(), corpus)
    with torch.no_grad():
        masked, _, got = model.loss(*batch.tensors("cpu"), drop=Dropout())
        model._model.eval()
        ids, real = torch.from_numpy(batch.ids), torch.from_numpy(batch.real)
        logits = model._model(input_ids=ids, attention_mask=real.long()).logits.flatten(0, 1)
    lines = [row.tolist() for row in np.split(np.asarray(corpus.tokens), corpus.ends[:-1])]
    losses = []
    for start, end in step.spans.tolist():
        place = batch.bags.places[min(len(losses), len(batch.bags.places) - 1)]
        assert batch.ids.ravel()[place] == MASK
        sentence = corpus.tokens[start:end].tolist()
        loss = bag_of_words(lines, sentence, logits[place].tolist(), 20, lambda piece: (piece - len(SPECIALS)) % 7 != 0)
        losses += [] if loss is None else [loss]
    assert len(losses) == len(batch.bags.places) > 10
    assert float(got) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    places, gold = map(torch.from_numpy, (batch.places, batch.gold))
    assert float(masked) == pytest.approx(float(torch.nn.functional.cross_entropy(logits[places], gold)), rel=1e-5)


def test_sentences_stand_in_templates_and_are_hidden_in_part():
    corpus, wanted = made_corpus(lines=2000), plan(tokens=60_000, batch_tokens=2048, masking=0.25)
    templates, hidden, real = set(), 0, 0
    for step in itertools.islice(steps(wanted, corpus), 8):
        batch, again = (predict_words(step, wanted, corpus) for _ in range(2))
        assert np.array_equal(batch.ids, again.ids)
        restored = batch.ids.copy()
        restored.ravel()[batch.places] = batch.gold
        for row, there, (start, end) in zip(restored, batch.real, step.spans.tolist(), strict=True):
            inside, sentence = row[there][1:-1].tolist(), corpus.tokens[start:end].tolist()
            fits = [at for at, (before, after) in enumerate(TEMPLATES) if inside == [*before, *sentence, *after]]
            assert fits
            templates |= set(fits)
        hidden, real = hidden + len(batch.gold), real + int((step.spans[:, 1] - step.spans[:, 0]).sum())
        assert batch.ids.size <= wanted.batch_tokens
    assert templates == {0, 1, 2}
    assert hidden / real == pytest.approx(0.25, abs=0.02)


def test_words_of_the_lines_beside_it_have_their_share():
    corpus, wanted = made_corpus(lines=400, unrelated=200), plan(neighbours=0.3)
    seen = set()
    for step in itertools.islice(steps(wanted, corpus), 12):
        bags = predict_words(step, wanted, corpus).bags
        alone = predict_words(step, plan(), corpus).bags
        assert np.array_equal(bags.places, alone.places)
        starts = [start for start, end in step.spans.tolist() if corpus.information[corpus.tokens[start:end]].any()]
        for owner, start in enumerate(starts):
            related = int(np.searchsorted(corpus.ends, start, side="right")) < corpus.unrelated_from
            mine, own = bags.owners == owner, alone.owners == owner
            assert bags.weights[mine].sum() == pytest.approx(1, abs=1e-5)
            share = 0.3 if mine.sum() > own.sum() else 0.0
            assert bags.weights[mine][: own.sum()] == pytest.approx(alone.weights[own] * (1 - share), abs=1e-6)
            seen.add((share > 0, related))
    assert {(True, True), (False, False)} <= seen and (True, False) not in seen


def test_a_share_of_the_steps_is_plain_masking():
    corpus = made_corpus(lines=3000)
    wanted = plan(tokens=60_000, templated=0.6)
    taken = list(steps(wanted, corpus))
    assert np.mean([step.templated for step in taken]) == pytest.approx(0.6, abs=0.12)
    plain = next(step for step in taken if not step.templated)
    one, other = predict_words(plain, wanted, corpus), mask(plain, wanted, corpus)
    assert np.array_equal(one.ids, other.ids)
    assert one.bags is None
    assert [step.seen for step in taken] == [0, *itertools.accumulate(step.tokens for step in taken[:-1])]


@pytest.mark.parametrize("count", [2, 3, 40])
def test_a_batch_in_parts_is_the_whole_batch(count):
    corpus = made_corpus(lines=600)
    batch = predict_words(next(steps(plan(), corpus)), plan(), corpus)
    trainer = Trainer(plan(), "cpu", dtype=torch.float32)
    masks, predicted = len(batch.bags.places), len(batch.gold)
    whole = trainer._gradients(batch, Dropout(), predicted, masks)
    parts = [trainer._gradients(part, Dropout(), predicted, masks) for part in batch.split(count)]
    assert sum(float(loss) for loss, _, _ in parts) == pytest.approx(float(whole[0]), rel=1e-5)
    assert sum(right for _, right, _ in parts) == whole[1]
    largest = max(float(gradient.abs().max()) for gradient in whole[2])
    for index, gradient in enumerate(whole[2]):
        assert torch.allclose(sum(grads[index] for _, _, grads in parts), gradient, atol=1e-5 * largest)


def test_a_step_minimises_the_sum_of_both_losses_or_without_content_the_plain_one():
    for letters in (True, False):
        corpus = made_corpus(letters=letters)
        step = next(steps(plan(), corpus))
        batch = predict_words(step, plan(), corpus)
        assert (batch.bags is not None) is letters
        trainer = Trainer(plan(), "cpu", dtype=torch.float32)
        with torch.no_grad():
            masked, _, bags = trainer.model.loss(*batch.tensors("cpu"), drop=Dropout())
        expected = float(masked + bags) if letters else float(masked)
        assert take_step(trainer, step, batch)[0] == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def vocabulary():
    return Vocabulary.load(next(iter(DEFAULT_TEMPLATES.parents[1].glob("**/shipped/mini*/vocab.txt"))))


def test_the_papers_own_templates_are_held_out(vocabulary):
    taught = read_templates(DEFAULT_TEMPLATES, vocabulary)
    assert len(taught) > 40
    for template in named_templates().values():
        if "[MASK]" in template.text:
            assert tuple(vocabulary.encode(template.text.split("[X]"))) not in taught


@pytest.mark.parametrize(
    "line", ["no slot [MASK] .", "[X] no mask .", "[X] [MASK] [MASK]", "[X] and [X] [MASK]", "a " * 40 + "[X] [MASK]"]
)
def test_a_line_that_is_no_template(tmp_path, vocabulary, line):
    (tmp_path / "templates.txt").write_text(f"[X] is [MASK] .\n{line}\n")
    with pytest.raises(UsageError, match=r"line 2: .*write one \[X\]"):
        read_templates(tmp_path / "templates.txt", vocabulary)
