"""Losses and methods of the years after the papers, against plain loops over lists.

Hard negatives; `dims`.
"""

import functools
import itertools
import json
import re

import numpy as np
import pytest
import torch
import transformers as hf

import promptcli as pc
from promptcli.backbones.states import Batch, Needs
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.encoder import TorchEncoder
from promptcli.training.objectives.contrastive import (
    Similarity,
    contrastive_loss,
    list_mle,
    list_net,
)
from promptcli.training.objectives.pairs import angle_similarity
from promptcli.training.teacher import SentenceVectors, mine_negatives
from tests import training_steps
from tests.comparing import gap, refusal
from tests.reference import losses
from tests.tiny import SENTENCES, save_tiny
from tests.training_steps import views_of

learner_of = functools.partial(training_steps.learner_of, max_length=60, dropout=0.0)
PAIRS = [SENTENCES[:5], SENTENCES[5:10], ["1.0", "0.0", "0.5", "1.0", "0.25"]]
SCORES = list(map(float, PAIRS[2]))
CONSECUTIVE = list(itertools.pairwise(SENTENCES))
GRADED = [(*pair, str(row % 3)) for row, pair in enumerate(CONSECUTIVE)]


def stored(vectors):
    """Return vectors (n, e) by the sentence, as a run's teacher has them."""
    made = SentenceVectors(list(vectors), "print", len(next(iter(vectors.values()))))
    made.parts = [np.array(list(vectors.values()), np.float32)]
    return made


def drawn(texts, width, seed):
    rows = np.random.default_rng(seed).standard_normal((len(texts), width)).astype(np.float32)
    return dict(zip(texts, rows, strict=True))


@pytest.mark.parametrize(
    ("name", "weight"),
    [("squared", 0.0), ("cosent", 0.0), ("angle", 0.0), ("angle", 30.0), ("pearson", 0.0)],
)
def test_losses_of_graded_pairs_are_the_papers(name, weight, bert_folder):
    learner = learner_of("sbert-regression", bert_folder, True, loss=name, in_batch_weight=weight)
    first, second = (view.detach().tolist() for view in views_of(learner, PAIRS))
    cosines = [losses.cosine(u, v) for u, v in zip(first, second, strict=True)]
    angles = [losses.angle(u, v) for u, v in zip(first, second, strict=True)]
    expected = {
        "squared": sum((c - s) ** 2 for c, s in zip(cosines, SCORES, strict=True)) / 5,
        "cosent": losses.cosent(cosines, SCORES, 20),
        "angle": losses.cosent(angles, SCORES, 20)
        + weight * losses.in_batch_negatives(first, second, [score == 1 for score in SCORES], 20),
        "pearson": losses.pearson_loss(cosines, SCORES),
    }
    loss, grads = training_steps.gradients(learner, columns=PAIRS)
    assert loss == pytest.approx(expected[name], rel=1e-4)
    assert all(torch.isfinite(grad).all() for grad in grads.values())
    assert max(grad.abs().max() for grad in grads.values()) > 0
    if name != "squared":  # a batch of equal scores teaches nothing
        _, grads = training_steps.gradients(learner, columns=[*PAIRS[:2], ["0.5"] * 5])
        assert weight or all((grad == 0).all() for grad in grads.values())


def test_equal_vectors_have_the_largest_angle_similarity():
    one, other = (
        torch.from_numpy(np.stack(list(drawn("ab", 6, seed).values()))) for seed in range(2)
    )
    assert angle_similarity(one, one).tolist() == pytest.approx([1, 1], rel=1e-5)
    expected = [losses.angle(u, v) for u, v in zip(one.tolist(), other.tolist(), strict=True)]
    assert angle_similarity(one, other).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("ranking", ["listnet", "listmle"])
def test_rankcses_loss_is_the_papers(ranking, bert_folder):
    columns, teacher = [SENTENCES[:5]], drawn(SENTENCES[:5], 7, 0)
    options = {
        "ranking": ranking,
        "consistency_weight": 0.7,
        "ranking_weight": 0.4,
        "temperature": 0.1,
    }
    learner = learner_of(
        "rankcse", bert_folder, models={"teacher": stored(teacher)}, **options, dropout=0.2
    )
    views = views_of(learner.train(), columns)
    first, second, theirs = (view.detach().tolist() for view in views)
    assert theirs == [row.tolist() for row in teacher.values()]
    expected = float(contrastive_loss(views[0], views[1], Similarity(0.1)).detach())
    expected += 0.7 * losses.jensen_shannon_of_views(first, second, 0.1)
    if ranking == "listnet":
        expected += 0.4 * losses.list_net(first, second, theirs, 0.1, 0.025)
    else:
        expected += 0.4 * losses.list_mle(first, second, theirs, 0.1)
    assert float(learner.objective.loss(views, columns).detach()) == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize("loss", [list_net, list_mle])
def test_a_batch_of_one_sentence_ranks_nothing(loss):
    logits = torch.tensor([[0.3]], requires_grad=True)
    value = loss(logits, torch.tensor([[1.0]]))
    value.backward()
    assert float(value.detach()) == 0
    assert logits.grad.tolist() == [[0]]


@pytest.mark.parametrize("family", ["llama", "opt", "mistral"])
def test_cse_sfp_reads_both_ends_of_one_pass(family, tiny_folder):
    learner = learner_of("cse-sfp", tiny_folder(family), lora_dropout=0.0)
    backbone, text = learner.backbone, learner.as_encoder().recipe.prompt
    passes, run = [], backbone.run
    backbone.run = lambda batch, needs: passes.append(len(batch.ids)) or run(batch, needs)
    second, first = views_of(learner, [SENTENCES[:4]])
    backbone.run = run
    assert sum(passes) == 4  # each sentence once
    stage = text[: text.index(",")]
    for prompt, got in ((text, second), (stage, first)):
        recipe = pc.Recipe(
            backbone.name, prompt=prompt, pooling="last/last-token", period=False, text_rule=None
        )
        plain = TorchEncoder(recipe, backbone, {}).encode(SENTENCES[:4])
        assert gap(got.detach().numpy(), plain) < 1e-4
    assert learner.as_encoder().recipe.pooling == "last/last-token"
    loss, grads = training_steps.gradients(learner, columns=[SENTENCES[:4]])
    assert loss == pytest.approx(
        float(contrastive_loss(second, first, Similarity(0.05)).detach()), rel=1e-4
    )
    assert all("lora" in name for name in grads)
    with refusal("two stages separated by a comma"):
        learner_of(
            "cse-sfp", tiny_folder(family), template=('This sentence : "[X]" means something',)
        )


def test_denosents_decoder_restores_the_sentence_from_its_vector_alone(bert_folder):
    options = {
        "decoder_layers": 2,
        "decoder_noise": 0.0,
        "contrastive_weight": 2.0,
        "restoring_weight": 3.0,
    }
    learner = learner_of("denosent", bert_folder, **options).eval()
    backbone, columns = learner.backbone, [SENTENCES[:4]]
    views = views_of(learner, columns)
    rows = learner.tokenize(columns)[1].ids
    needs = Needs(layers=frozenset({0, backbone.n_layers}))
    hidden = [
        backbone.run(Batch(torch.tensor([ids]), torch.tensor([len(ids)])), needs) for ids in rows
    ]
    expected, head = 0.0, backbone.head
    for row, (ids, states) in enumerate(zip(rows, hidden, strict=True)):
        slot = ids.index(backbone.tokenizer.mask)
        vector = learner.head(states.layers[backbone.n_layers][:, slot])
        assert gap(vector[0], views[0][row]) < 1e-5
        decoded = learner.objective.decoder(states.layers[0], vector.unsqueeze(1))[0]
        logits = head.to_logits(head.to_hidden(decoded))
        surprises = (
            torch.logsumexp(row, 0) - row[token] for row, token in zip(logits, ids, strict=True)
        )
        expected += float(sum(surprises).detach())
    tokens = sum(map(len, rows))
    assert int(views[-1].sum()) == tokens
    assert float(views[-2].sum()) == pytest.approx(float(expected), rel=1e-4)
    loss = float(learner.objective.loss(views, columns))
    assert loss == pytest.approx(
        2 * float(contrastive_loss(*views[:2], Similarity(0.05))) + 3 * float(expected) / tokens,
        rel=1e-4,
    )
    _, grads = training_steps.gradients(learner.train(), columns=columns)
    assert {"objective.bias", "projection.0.weight"} <= grads.keys()
    again = learner_of("denosent", bert_folder, **options).trainable()
    assert all(torch.equal(again[name], start) for name, start in learner.trainable().items())
    # all of it is discarded
    assert not [name for name in learner.tensors() if not name.startswith("backbone.")]
    noisy = learner_of("denosent", bert_folder, **{**options, "decoder_noise": 0.825})
    assert float(views_of(noisy, columns)[-2].sum()) != pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("name", ["simcse", "promptbert", "dcpcse", "consert", "cotbert"])
def test_first_numbers_have_the_loss_too(name, bert_folder):
    still = {"augment_first": "none", "augment_second": "none"} if name == "consert" else {}
    learner, plain = (learner_of(name, bert_folder, dims=dims, **still) for dims in ("16,8,4", ""))
    count = 3 if name == "cotbert" else 2
    views = [
        torch.from_numpy(np.stack(list(drawn(SENTENCES[:5], 16, seed).values())))
        for seed in range(count)
    ]
    columns = [SENTENCES[:5]]
    expected = [
        float(plain.objective.loss([view[:, :k] for view in views], columns)) for k in (16, 8, 4)
    ]
    assert float(learner.objective.loss(views, columns)) == pytest.approx(sum(expected), rel=1e-5)
    # a head that is dropped would have an order of its own
    assert not list(learner.head.parameters())
    encoder = learner.as_encoder()
    assert encoder.recipe.dims == (16, 8, 4)
    shorter = TorchEncoder(encoder.recipe.truncate(8), encoder.backbone, encoder.tensors())
    np.testing.assert_array_equal(shorter.encode(SENTENCES), encoder.encode(SENTENCES)[:, :8])
    with refusal(r"dim: this model was trained for the widths 16, 8, 4"):
        encoder.recipe.truncate(5)
    with refusal("has 16 dimensions"):
        learner_of(name, bert_folder, dims="32")


def test_a_head_that_is_kept_has_the_first_numbers(bert_folder):
    learner = learner_of("simcse", bert_folder, True, dims="8", keep_head=True)
    assert list(learner.head.parameters())
    recipe = learner.as_encoder().recipe.truncate(8)
    assert recipe.transforms == ("projection:tanh", "truncate:8")
    assert pc.Recipe.from_text(learner.as_encoder().recipe.to_json()) == learner.as_encoder().recipe


@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("guided", [True, False])
def test_mined_negatives_are_those_a_loop_finds(margin, guided):
    first = [*SENTENCES[:6], SENTENCES[0], SENTENCES[1]]
    second = [*SENTENCES[4:10], SENTENCES[10], SENTENCES[4]]
    texts = list(dict.fromkeys([*first, *second]))
    ours, theirs = drawn(texts, 4, 1), drawn(texts, 3, 2)
    guide = theirs if guided else ours
    examples = TrainingExamples((first, second), "", layout=("sent0", "sent1"))
    vectors = stored(ours)
    got = mine_negatives(examples, vectors, stored(guide) if guided else vectors, margin)
    rows = [
        [model[text].tolist() for text in side]
        for model in (ours, guide)
        for side in (first, second)
    ]
    assert got.columns[2] == losses.hard_negatives(first, second, *rows, margin)
    assert any(got.columns[2]) and got.columns[:2] == (first, second)
    own = dict(zip(range(8), [*[""] * 7, "mine"], strict=True))
    given = TrainingExamples(
        (first, second, list(own.values())), "", layout=("sent0", "sent1", "hard_neg")
    )
    assert mine_negatives(given, vectors, vectors, margin).columns[2][7] == "mine"


def test_a_run_mines_by_the_model_that_is_named(bert_folder, notes):
    options = {"backbone": str(bert_folder), "on": "demo:dev", "batch_size": 4, "steps": 2}
    trained = pc.train("simcse", CONSECUTIVE, mine="mini", mine_margin=0.0, dims="8,4", **options)
    assert "hard negatives mined" in notes.text
    assert trained.facts["mine"] == "mini" and trained.facts["mine_fingerprint"]
    assert trained.facts["by_dim"].keys() == {"8", "4"}
    with refusal("mine: needs pairs"):
        pc.train("simcse", SENTENCES, mine="mini", **options)


def test_distillation_takes_mined_negatives_and_pairs_that_have_none(bert_folder, notes):
    options = {"backbone": str(bert_folder), "on": "demo:dev", "batch_size": 4, "steps": 2}
    options |= {"teacher": "mini", "mine": "mini", "mine_margin": 0.1}
    trained = pc.train("distill", CONSECUTIVE, contrastive_weight=1.0, **options)
    mined, none = re.search(r"(\d+) hard negatives mined; (\d+) of", notes.text).groups()
    assert int(mined) > 0 and int(none) > 0
    assert trained.facts["mine_fingerprint"] == trained.facts["teacher_fingerprint"]


def test_a_checkpoint_is_chosen_by_the_rank_of_queries_documents(bert_folder, tmp_path):
    rows = [json.dumps({"query": one, "document": other, "grade": 1}) for one, other in CONSECUTIVE]
    (tmp_path / "queries.jsonl").write_text("\n".join(rows))
    task = f"retrieval:{tmp_path / 'queries.jsonl'}"
    trained = pc.train(
        "simcse",
        SENTENCES,
        backbone=str(bert_folder),
        on=task,
        batch_size=4,
        steps=3,
        eval_steps=1,
        learning_rate=1e-2,
    )
    [score] = pc.evaluate(trained.encoder, [task])
    assert trained.scores == {task: pytest.approx(score.value, abs=1e-4)}
    assert trained.development_score == pytest.approx(
        max(each.value for each in trained.curve), abs=1e-4
    )
    assert len({each.value for each in trained.curve}) > 1


def test_a_view_of_a_start_without_a_mask_stands_beside_one_with_a_mask(bert_folder):
    options = {"backbone": str(bert_folder), "on": "demo:dev", "batch_size": 4, "steps": 1}
    pc.train("distill", SENTENCES, teacher="mini-static", name="start", **options)
    del options["backbone"]
    trained = pc.train("promptbert", SENTENCES, start="start", denoising=False, **options)
    assert trained.entry.recipe.prompt == "[X]"
    assert trained.curve[-1].loss > 0


@pytest.fixture(scope="session")
def folder_with_pooler(tmp_path_factory):
    """The folder of a BERT whose pooler no method reads, as that of bert-base-uncased."""
    return save_tiny("bert", tmp_path_factory.mktemp("pooler"), model_class=hf.BertModel)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("simcse", {"backbone": "with a pooler", "mine": "mini-static", "dims": "8"}),
        ("denosent", {"decoder_layers": 1}),
        ("pcc-tuning", {"lora_rank": 2}),
    ],
)
def test_a_killed_run_ends_at_the_same_numbers(
    name, settings, tiny_folder, folder_with_pooler, monkeypatch
):
    data = {"pcc-tuning": GRADED, "simcse": CONSECUTIVE}.get(name, SENTENCES)
    options = {
        "backbone": str(tiny_folder(training_steps.family_for(name))),
        "on": "demo:dev",
        "batch_size": 4,
        "steps": 5,
    }
    options |= {"eval_steps": 2, "learning_rate": 1e-2, **settings}
    if "backbone" in settings:
        options["backbone"] = str(folder_with_pooler)
    expected = pc.train(name, data, **options)
    with training_steps.stopped_at(monkeypatch, 3), pytest.raises(KeyboardInterrupt):
        pc.train(name, data, name="killed", **options)
    resumed = pc.train(name, data, name="killed", resume=True, **options)
    assert resumed.scores == expected.scores
    assert resumed.entry.tensors.keys() == expected.entry.tensors.keys()
    assert all(
        torch.equal(resumed.entry.tensors[key], tensor)
        for key, tensor in expected.entry.tensors.items()
    )


def test_an_adapter_goes_on_learning_on_graded_pairs(tiny_folder):
    options = {
        "backbone": str(tiny_folder("llama")),
        "on": "demo:dev",
        "batch_size": 4,
        "lora_rank": 2,
        "steps": 2,
    }
    first = pc.train("prompteol", SENTENCES, learning_rate=0.01, name="first", **options)
    second = pc.train("pcc-tuning", GRADED, start="first", learning_rate=0.0, **options)
    assert (
        second.untrained_scores == second.scores
    )  # measured against the encoder that it starts from
    tensors = first.entry.tensors
    assert tensors.keys() == second.entry.tensors.keys() and any(
        "lora_B" in name for name in tensors
    )
    assert all(torch.equal(second.entry.tensors[name], tensor) for name, tensor in tensors.items())
    with refusal("nothing for pcc-tuning to train"):
        pc.train("pcc-tuning", GRADED, start="mini", **options | {"backbone": "mini-bert"})
