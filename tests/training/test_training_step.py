"""One step of training: gradients in any chunks, in any number of processes, within memory.

The masked-LM term.
"""

import functools
import itertools
import math
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.kernels import dropout
from promptcli.backbones.states import Batch
from promptcli.data.layouts import TRIPLETS
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts import soft_template
from promptcli.errors import OutOfMemoryError
from promptcli.recipe import Recipe
from promptcli.training.methods import METHODS
from promptcli.training.objectives import find_objective
from promptcli.training.objectives.contrastive import false_negative_mask
from promptcli.training.step import Processes, TrainingStep
from promptcli.training.trainable_encoder import mask_tokens
from tests import training_steps
from tests.comparing import gap, refusal
from tests.processes import Program, ranks_of_two
from tests.reference import losses
from tests.tiny import SENTENCES
from tests.training_steps import (
    CERTAIN,
    COLUMNS,
    PAIRS,
    assert_equal,
    family_for,
    gradients,
    learner_of,
    mini_vectors,
    step_of,
    views_of,
)

HARD = ["", SENTENCES[9], "", SENTENCES[8], SENTENCES[7], "", SENTENCES[2]]
#: A row's second and third hard negative; the first of ``FURTHER`` is the positive of another row.
FURTHER = [
    [SENTENCES[4], SENTENCES[10], "", "", SENTENCES[11], "", ""],
    ["", "", "", SENTENCES[1], "", "", ""],
]
ALONE = ("dcpcse", "promptbert", "cotbert", "consert", "isbert", "denosent")
#: Method -> what it reads; where two processes are compared with one.
READ = {**dict.fromkeys(ALONE, COLUMNS), "simcse": [*PAIRS, HARD, *FURTHER]}
#: Methods that read hard negatives.
WITH_NEGATIVES = [
    form.name
    for _, form in METHODS.values()
    if form and TRIPLETS in find_objective(form).layouts and form.objective != "soft-negative"
]
READ |= {
    name: training_steps.READ[name] for name in ("sbert", "sbert-regression", "defsent", "sncse")
}
READ["promcse"] = [*PAIRS, HARD]
#: What is changed where two processes are compared with one: the temperature learns, too.
STILL = {name: {"dropout": 0.0, **CERTAIN.get(name, {})} for name in READ}
for name in ("simcse", "consert", "sncse"):
    STILL[name]["temperature_rate"] = 1e-3


@pytest.mark.parametrize("name", ["promptbert", "dcpcse", "optiprompt", "simcse"])
def test_gradients_in_chunks_or_cached_equal_those_of_the_plain_step(name, bert_folder):
    still = {"dropout": 0.0, "chunk_tokens": 10**6}
    whole = gradients(learner_of(name, bert_folder, **still))
    assert_equal(whole, gradients(learner_of(name, bert_folder, **{**still, "chunk_tokens": 64})))
    plain = gradients(learner_of(name, bert_folder, chunk_tokens=64))
    cached = gradients(learner_of(name, bert_folder, chunk_tokens=64, gradient_caching=True))
    assert_equal(plain, cached)
    other = gradients(learner_of(name, bert_folder, chunk_tokens=64), number=1)
    assert other[0] != plain[0]  # each step has dropout of its own


def test_where_memory_runs_out_the_step_is_done_again_with_caching(bert_folder, monkeypatch, notes):
    expected = gradients(learner_of("dcpcse", bert_folder, chunk_tokens=128, gradient_caching=True))
    learner = learner_of("dcpcse", bert_folder, chunk_tokens=256)
    whole, most = learner.backbone.run, 128

    def run(batch, needs):
        if batch.ids.numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(batch, needs)

    monkeypatch.setattr(learner.backbone, "run", run)
    assert_equal(expected, gradients(learner))
    assert (learner.chunk_tokens, learner.caching) == (128, True)
    assert "out of memory at step 1" in notes.text
    most = 0
    with refusal("at step 4 even", OutOfMemoryError):
        gradients(learner, number=3)
    monkeypatch.setattr(learner.backbone, "run", Mock(side_effect=IndexError("another error")))
    with pytest.raises(IndexError):
        gradients(learner)
    step = step_of(learner)
    monkeypatch.setattr(
        step.optimizer, "step", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    )
    with refusal(r"parameters learn, .* use a smaller backbone", OutOfMemoryError):
        step.apply_gradients()


def test_equal_sentences_of_a_batch_are_no_negatives():
    excluded = [[False, False, True], [False] * 3, [True, False, False]]
    assert false_negative_mask([["a", "b", "a"]]).tolist() == excluded


NOBODY = [""] * 7


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    "negatives",
    [[], [NOBODY], [HARD], [HARD, *FURTHER], [*FURTHER, NOBODY], [[SENTENCES[8]] * 7, HARD]],
)
def test_the_loss_with_several_hard_negatives_is_a_loops(negatives, masked, bert_folder):
    columns, temperature = [*PAIRS, *negatives], 0.5
    first, second = columns[:2]
    learner = learner_of(
        "simcse", bert_folder, True, temperature=temperature, mask_duplicates=masked
    )
    views = torch.randn(len(columns), 7, 16, generator=torch.Generator().manual_seed(1))
    views.requires_grad_()
    hard = [
        [view[row].tolist() for view, texts in zip(views[2:], negatives, strict=True) if texts[row]]
        for row in range(7)
    ]
    excluded = [
        [masked and (second[j] in (first[i], second[i]) or first[j] == first[i]) for j in range(7)]
        for i in range(7)
    ]
    there = [[texts[row] for texts in negatives if texts[row]] for row in range(7)]
    excluded_hard = [
        [[masked and text in (first[i], second[i]) for text in row] for row in there]
        for i in range(7)
    ]
    expected = losses.infonce(
        views[0].tolist(), views[1].tolist(), hard, temperature, excluded, excluded_hard
    )
    loss = learner.objective.loss(list(views), columns)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)
    assert torch.isfinite(views.grad).all()


@pytest.mark.parametrize("name", WITH_NEGATIVES)
def test_every_method_has_a_view_of_each_hard_negative(name, tiny_folder, tmp_path):
    columns = [*PAIRS, HARD, *FURTHER]
    family = family_for(name)
    options = {"dropout": 0.0, **CERTAIN.get(name, {})}
    if name == "prompteol":
        options["lora_dropout"] = 0.0
    if name == "distill":
        options |= {
            "models": {"teacher": mini_vectors(columns, tmp_path)},
            "contrastive_weight": 0.5,
        }

    def learner(**changes):
        return learner_of(name, tiny_folder(family), supervised=True, **options, **changes)

    several = views_of(learner(), columns)
    for number in range(2, 5):
        alone = views_of(learner(), [*PAIRS, columns[number]])[2]
        rows = [row for row, text in enumerate(columns[number]) if text]
        assert (several[number] - alone)[rows].abs().max() < 1e-5
    whole = gradients(learner(chunk_tokens=10**6), columns=columns)
    assert_equal(whole, gradients(learner(chunk_tokens=64, gradient_caching=True), columns=columns))
    fewer = gradients(learner(), columns=columns[:3])
    assert whole[0] != pytest.approx(fewer[0], abs=1e-4), "the further ones count"


def batch_of(rows, backbone):
    ids = torch.full((len(rows), max(map(len, rows))), backbone.tokenizer.pad)
    for line, row in zip(ids, rows, strict=True):
        line[: len(row)] = torch.tensor(row)
    return Batch(ids, torch.tensor([len(row) for row in rows]))


def test_fifteen_percent_are_chosen_and_masked_as_in_bert(bert_folder):
    backbone = load_backbone(str(bert_folder))
    tokens, vocabulary = backbone.tokenizer, len(backbone.word_embeddings)
    word = max(tokens.mask, tokens.end[0], tokens.start[0]) + 1
    rows = [[tokens.start[0], *[word] * 48, tokens.end[0]]] * 800 + [
        [tokens.start[0], word, tokens.end[0]]
    ]
    torch.manual_seed(0)
    batch = batch_of(rows, backbone)
    ids, chosen = mask_tokens(batch, tokens, vocabulary)
    words = batch.ids == word
    assert not chosen[~words].any()
    assert (ids == batch.ids)[~chosen].all()
    count = int(chosen.sum())
    assert count / int(words.sum()) == pytest.approx(0.15, abs=0.006)
    assert int((ids[chosen] == tokens.mask).sum()) / count == pytest.approx(
        0.8 + 0.1 / vocabulary, abs=0.02
    )
    assert int((ids[chosen] == word).sum()) / count == pytest.approx(
        0.1 + 0.1 / vocabulary, abs=0.02
    )


def test_the_masked_lm_loss_is_the_pretrained_models(bert_folder):
    from transformers import AutoModelForMaskedLM

    learner = learner_of("simcse", bert_folder, mlm_weight=0.1, dropout=0.0).eval()
    backbone = learner.backbone
    rows = (
        TorchEncoder(Recipe(backbone.name, pooling="last/cls"), backbone, {})
        .inputs(SENTENCES[:6])
        .ids
    )
    batch = batch_of(rows, backbone)
    torch.manual_seed(5)
    total, count = learner.mlm_losses(batch).tolist()
    torch.manual_seed(5)
    ids, chosen = mask_tokens(batch, backbone.tokenizer, len(backbone.word_embeddings))
    model = AutoModelForMaskedLM.from_pretrained(bert_folder, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=batch.real().long()).logits.tolist()
    expected = 0.0
    for row, place in chosen.nonzero().tolist():
        scores = logits[row][place]
        expected += math.log(sum(map(math.exp, scores))) - scores[int(batch.ids[row, place])]
    assert count == int(chosen.sum()) > 0
    assert total == pytest.approx(expected, rel=1e-4)


def test_lambda_decays_by_a_twentieth_every_hundred_steps(bert_folder):
    base = gradients(learner_of("dcpcse", bert_folder, dropout=0.0))[0]
    learner = learner_of("dcpcse", bert_folder, dropout=0.0, mlm_weight=0.1)
    for number, share in ((0, 0.1), (200, 0.1 * 0.95**2)):
        step_loss, grads = gradients(learner, number)
        set_seed(1 * 1_000_003 + number)
        learner.start_batch()
        views_of(learner.train(), COLUMNS)
        total, count = learner.mlm_sums.tolist()
        assert (step_loss - base) / (total / count) == pytest.approx(share, rel=1e-3)
        assert any(name.startswith("mlm.") for name in grads)
    frozen = learner_of("dcpcse", bert_folder, mlm_weight=0.1, mlm_head="frozen")
    assert not [
        name for name in (*frozen.trainable(), *learner.tensors()) if name.startswith("mlm.")
    ]


def _one_of_two(folder, out):
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    made = {"processes": accelerator.num_processes}
    for name, columns in READ.items():
        learner = learner_of(name, folder, len(columns) > 2, **STILL[name])
        step = TrainingStep(learner, Processes(accelerator))
        loss = float(step.gradients(0, step.tokenize(columns)))
        made[name] = (
            loss,
            {name: one.grad for name, one in learner.trainable().items() if one.grad is not None},
        )
    made["added"] = _added(Processes(accelerator))
    torch.save(made, f"{out}.{accelerator.process_index}")


def _added(processes):
    """Add up gradients that both processes have, that one has, and that none has."""
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[0].grad = torch.ones(2)
    if processes.is_main:
        parameters[1].grad = torch.full((2,), 3.0)
    processes.add_gradients(parameters)
    return [one.grad for one in parameters]


def test_two_processes_have_the_loss_and_gradients_of_one(bert_folder, tmp_path):
    folder = bert_folder
    work = functools.partial(_one_of_two, folder, tmp_path / "out")
    for running in [Program(main=work, environment=rank) for rank in ranks_of_two()]:
        _, err = running.communicate()
        assert running.returncode == 0, err.decode()
    found = [torch.load(tmp_path / f"out.{rank}", weights_only=True) for rank in range(2)]
    assert [got["processes"] for got in found] == [2, 2]
    for got in found:
        both, one, none = got["added"]
        assert (both.tolist(), one.tolist(), none) == ([2.0, 2.0], [3.0, 3.0], None)
    for name, columns in READ.items():
        learner = learner_of(name, folder, len(columns) > 2, **STILL[name])
        expected = gradients(learner, columns=columns)
        for got in found:
            assert_equal(expected, got[name])


def test_dropout_is_on_in_the_first_step_and_in_that_after_a_score(bert_folder):
    learner = learner_of("simcse", bert_folder, dropout=0.1)
    step = step_of(learner)
    for _ in range(2):
        step.gradients(0, step.tokenize(COLUMNS))
        assert all(module.training for module in learner.modules())
        learner.eval()  # as a score does
        assert not any(module.training for module in learner.model.modules())


def test_batches_smaller_than_the_processes_are_refused():
    processes = Processes()
    processes.world_size = 4
    with refusal("10 examples leave a last batch of 2 for 4 processes"):
        processes.check(10, 8)
    processes.check(12, 8)
    processes.check(16, 8)
    shares = []
    for processes.rank in range(4):
        shares.append(processes.share(["abcdefg"])[0])
    assert shares == ["a", "bc", "de", "fg"]


def test_looked_up_slots_are_those_of_the_published_code(bert_folder):
    backbone = load_backbone(str(bert_folder))
    text = 'This sentence : "[X]" means [MASK] .'
    hard = TorchEncoder(
        Recipe(backbone.name, prompt=text, pooling="last/mask", period=False), backbone, {}
    )
    words = list(soft_template.word_ids(hard.template, backbone).values())
    numbers = torch.randn(len(words), backbone.width, generator=torch.Generator().manual_seed(0))
    recipe = Recipe(
        backbone.name, prompt=f"soft-template-lookup:{text}", pooling="last/mask", period=False
    )
    soft = TorchEncoder(recipe, backbone, {soft_template.TENSOR: numbers})
    sentences = [*SENTENCES[:3], "this sentence means this"]
    for row in hard.inputs(sentences).ids:
        vectors = backbone.word_embeddings[torch.tensor(row)].clone()
        for number, word in enumerate(words):
            vectors[max(place for place, token in enumerate(row) if token == word)] = numbers[
                number
            ]
        attached = soft.prompt.attach(batch_of([row], backbone))
        assert torch.equal(backbone.embeddings(attached)[0], vectors)
    alone = np.concatenate([soft.encode([one]) for one in sentences])
    assert gap(soft.encode(sentences), alone) < 1e-5


def test_quick_dropout_drops_a_tenth_and_scales_the_rest():
    torch.manual_seed(0)
    numbers = torch.ones(1000, 999, requires_grad=True)
    dropped = dropout(numbers, 0.1)
    dropped.sum().backward()
    kept = dropped != 0
    assert float(kept.float().mean()) == pytest.approx(0.9, abs=0.002)
    assert torch.equal(dropped[kept], torch.full_like(dropped[kept], 1 / 0.9))
    assert torch.equal(numbers.grad, dropped)  # the gradient passes where the number did
    torch.manual_seed(0)
    assert torch.equal(dropout(numbers, 0.1), dropped)
    assert not torch.equal(dropout(numbers, 0.1), dropped)
    for half in (0, 1):  # no lane of the random words is another's copy
        lanes = kept.flatten()[:999_996].view(-1, 4).float()
        assert float(((lanes[:, half] - 0.9) * (lanes[:, 3 - half] - 0.9)).mean()) == pytest.approx(
            0, abs=0.001
        )


def test_word_embeddings_learn_from_the_words_of_each_pass(bert_folder):
    """As with a gradient of the whole vocabulary for each pass; what leaves the step is dense."""
    learner = learner_of("promptbert", bert_folder, chunk_tokens=64)
    found = gradients(learner)
    words = learner.backbone.word_embeddings
    assert words.grad.layout == torch.strided
    assert 0 < int(words.grad.any(dim=1).sum()) < len(words)
    dense = learner_of("promptbert", bert_folder, chunk_tokens=64)
    dense.backbone.model.get_input_embeddings().sparse = False
    assert_equal(found, gradients(dense))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("dcpcse", family) for family in ("bert", "roberta", "electra", "distilbert")),
        *itertools.product(["dcpcse", "simcse"], ["albert", "modernbert"]),
    ],
)
def test_two_views_of_a_sentence_differ_on_every_family(name, family, tiny_folder):
    """Whatever dropout the family's own configuration says; ALBERT's and ModernBERT's say none."""
    learner = learner_of(name, tiny_folder(family)).train()
    torch.manual_seed(0)
    first, second = views_of(learner, COLUMNS)
    assert gap(first, second) > 1e-4
    loss, grads = gradients(learner)
    assert math.isfinite(loss)
    assert any(grad.abs().max() > 0 for grad in grads.values())
    still = learner_of(name, tiny_folder(family), dropout=0.0).train()
    first, second = views_of(still, COLUMNS)
    assert gap(first, second) < 1e-5
