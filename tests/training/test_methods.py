"""The methods of the tables besides the papers' own: objectives against plain loops over lists, bad
input, `start`.
"""

import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from promptcli.backbones.states import Batch, Needs
from promptcli.data.layouts import GRADED_PAIRS
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.template import Template
from promptcli.recipe import Recipe
from promptcli.training.methods import all_forms, consert, find_method
from promptcli.training.methods.sbert import REGRESSION
from promptcli.training.objectives.consert import AUGMENTATIONS, nt_xent
from promptcli.training.objectives.contrastive import (
    Similarity,
    negative_view_loss,
    padded_bias_batch,
)
from promptcli.training.objectives.mutual_information import jensen_shannon
from promptcli.training.objectives.pairs import CLASSES, PairCosine
from tests import training_steps
from tests.comparing import gap, refusal
from tests.reference import losses
from tests.tiny import SENTENCES
from tests.training_steps import configured_method, gradients, views_of

LABELS = ["entailment", "contradiction", "neutral", "neutral"]
PAIRS = [SENTENCES[:4], SENTENCES[4:8], LABELS]


learner_of = functools.partial(training_steps.learner_of, max_length=60, dropout=0.0)


def plain_vectors(learner, texts, pooling, prompt="[X]"):
    recipe = Recipe(learner.backbone.name, prompt=prompt, pooling=pooling, period=False)
    return TorchEncoder(recipe, learner.backbone, {}).encode(texts)


def random_rows(count, width, seed):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_cotberts_loss_is_the_papers(temperature):
    parts = [random_rows(4, 6, seed) for seed in range(3)]
    expected = losses.extended_infonce(*(part.tolist() for part in parts), temperature)
    assert float(negative_view_loss(*parts, Similarity(temperature))) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_cotberts_views_are_its_templates_second_masks_less_their_blanks(family, tiny_folder):
    learner = learner_of("cotbert", tiny_folder(family), max_length=20).eval()
    backbone = learner.backbone
    templates = learner.configured.variant.templates
    views = views_of(learner, [SENTENCES[:3]])
    assert len(templates) == len(views) == 3
    assert len({template.count("[MASK]") for template in templates}) == 1
    for template, got in zip(templates, views, strict=True):
        made = Template(template, backbone.tokenizer)
        hidden = torch.from_numpy(plain_vectors(learner, SENTENCES[:3], "last/mask:2", template))
        biases = []
        for sentence in SENTENCES[:3]:
            length = len(backbone.tokenizer.encode(made.with_touching([sentence]))[0]) - len(
                made._after_ids
            )
            ids = [*made.left, *[backbone.tokenizer.pad] * length, *made.right]
            place = made.mask_positions(np.array([len(ids)]))[0, 1]
            batch = Batch(torch.tensor([ids]), torch.tensor([len(ids)]))
            layers = backbone.run(batch, Needs(layers=frozenset({backbone.n_layers}))).layers
            biases.append(layers[backbone.n_layers][0, place])
        assert gap(learner.head(hidden - torch.stack(biases)), got) < 1e-4
    learner.settings.replace(template=templates)  # three may be given
    together = padded_bias_batch(Template(templates[0], backbone.tokenizer), [2, 5], backbone)
    assert (together.lengths - together.lengths[0]).tolist() == [0, 3]


@pytest.mark.parametrize("same", [False, True])
def test_nt_xent_is_the_papers(same):
    first, second = random_rows(5, 6, 0), random_rows(5, 6, 1)
    equal = torch.zeros(5, 5, dtype=torch.bool)
    if same:
        equal[0, 3] = equal[3, 0] = True
    expected = losses.nt_xent(first.tolist(), second.tolist(), 0.1, equal.tolist())
    assert float(nt_xent(first, second, Similarity(0.1), excluded=equal)) == pytest.approx(
        expected, rel=1e-5
    )


def embedded(backbone, name, rate, output, lengths):
    """Return the positions and the embedding layer's output after an augmentation."""
    ids = torch.zeros(output.shape[:2], dtype=torch.int64)
    batch = AUGMENTATIONS[name](Batch(ids, torch.tensor(lengths)), rate)
    return batch.position_ids, output if batch.augment is None else batch.augment(output)


def test_augmentations_take_their_share_of_every_sentence(tiny_backbone):
    backbone, lengths = tiny_backbone("bert"), [9, 4]
    output = torch.rand(2, 9, 8) + 1
    positions, same = embedded(backbone, "shuffle", 0.3, output, lengths)
    assert torch.equal(same, output)
    for row, length in zip(positions.tolist(), lengths, strict=True):
        assert sorted(row[:length]) == list(range(length))
    assert positions[0].tolist() != list(range(9))
    cut = {name: embedded(backbone, name, 0.3, output, lengths)[1] for name in AUGMENTATIONS}
    assert torch.equal(cut["none"], output)
    for row, length in enumerate(lengths):
        real = {name: made[row, :length] for name, made in cut.items()}
        assert int((real["token-cutoff"] == 0).all(1).sum()) == math.floor(0.3 * length)
        assert int((real["token-cutoff"] == 0).sum()) == math.floor(0.3 * length) * 8
        assert int((real["feature-cutoff"] == 0).all(0).sum()) == math.floor(0.3 * 8)
        assert int((real["feature-cutoff"] == 0).sum()) == math.floor(0.3 * 8) * length
        assert int((real["dropout"] == 0).sum()) == math.floor(0.3 * 8 * length)
        kept = real["dropout"] != 0
        assert torch.equal(real["dropout"][kept], output[row, :length][kept])  # not scaled
    assert tuple(AUGMENTATIONS) == consert.AUGMENTATIONS


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "albert", "distilbert", "modernbert", "mpnet", "deberta-v2"]
)
def test_augmentations_reach_every_familys_embedding_layer(family, tiny_folder):
    learner = learner_of(
        "consert", tiny_folder(family), augment_first="none", augment_second="token-cutoff"
    ).eval()
    first, second = views_of(learner, [SENTENCES[:4]])
    assert gap(first.detach().numpy(), plain_vectors(learner, SENTENCES[:4], "last/avg")) < 1e-5
    assert gap(first, second) > 1e-3
    zero = learner_of(
        "consert", tiny_folder(family), augment_second="token-cutoff", cutoff_rate=0.0
    ).eval()
    assert gap(views_of(zero, [SENTENCES[:4]])[1].detach().numpy(), first.detach().numpy()) < 1e-5
    assert zero.as_encoder().recipe.pooling == "last-two/avg"
    states = zero.as_encoder().encode(SENTENCES[:4])
    last = zero.backbone.n_layers
    layers = [
        plain_vectors(zero, SENTENCES[:4], f"layer-{layer}/avg") for layer in (last - 1, last)
    ]
    assert gap(states, (layers[0] + layers[1]) / 2) < 1e-5


def test_conserts_joint_loss_is_the_papers(bert_folder):
    learner = learner_of("consert", bert_folder, True, augment_second="none")
    premises, hypotheses = (plain_vectors(learner, texts, "last/avg") for texts in PAIRS[:2])
    classifier = learner.objective.classifier
    sides = zip(premises, hypotheses, strict=True)
    rows = [[*u, *v, *abs(u - v), *np.maximum(u, v) ** 2] for u, v in sides]
    classes = [CLASSES[label] for label in LABELS]
    expected = losses.softmax_loss(
        rows, classifier.weight.tolist(), classifier.bias.tolist(), classes
    )
    expected += 0.15 * sum(
        losses.nt_xent(part, part, 0.1) for part in (premises.tolist(), hypotheses.tolist())
    )
    loss, grads = gradients(learner, columns=PAIRS)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert grads["objective.classifier.weight"].abs().max() > 0
    assert not [name for name in learner.tensors() if not name.startswith("backbone.")]


def test_the_adversary_moves_embeddings_where_the_loss_grows(bert_folder):
    learner = learner_of(
        "consert", bert_folder, True, augment_second="adversarial", perturbation=0.01
    ).eval()
    logits, plain, _, moved, _ = views_of(learner, PAIRS)
    other = learner_of(
        "consert", bert_folder, True, augment_second="adversarial", perturbation=0.0
    ).eval()
    assert gap(views_of(other, PAIRS)[3], plain) < 1e-6
    assert 1e-5 < gap(moved, plain) < 1
    classify, objective = (
        learner.objective.classify,
        super(type(learner.objective), learner.objective),
    )
    after = classify(torch.cat([views_of(learner, PAIRS)[3], views_of(learner, PAIRS)[4]]))
    assert objective.loss([after], PAIRS) > objective.loss([logits], PAIRS)
    whole = gradients(learner.train(), columns=PAIRS)
    caching = {
        "augment_second": "adversarial",
        "perturbation": 0.01,
        "gradient_caching": True,
        "chunk_tokens": 64,
    }
    cached = gradients(learner_of("consert", bert_folder, True, **caching), columns=PAIRS)
    assert cached[0] == pytest.approx(whole[0], rel=1e-5)
    assert all(gap(cached[1][name], grad) < 1e-5 for name, grad in whole[1].items())


def test_the_jensen_shannon_estimate_is_the_papers():
    lengths = [3, 1, 4]
    local = random_rows(3 * 5, 6, 2).view(3, 5, 6)
    for row, length in enumerate(lengths):
        local[row, length:] = 0
    expected = losses.jensen_shannon(
        [part[:length] for part, length in zip(local.tolist(), lengths, strict=True)]
    )
    assert float(jensen_shannon(local, torch.tensor(lengths))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_isberts_features_are_convolutions_over_the_tokens(activation, bert_folder):
    learner = learner_of("isbert", bert_folder, activation=activation)
    local, lengths = views_of(learner, [SENTENCES[:3]])
    numbers = {name.removeprefix("cnn."): one.detach() for name, one in learner.learned.items()}
    view, last = learner.template_encoders[0], learner.backbone.n_layers
    for row, ids in enumerate(view.inputs(SENTENCES[:3]).ids):
        assert int(lengths[row]) == len(ids)
        batch = Batch(torch.tensor([ids]), torch.tensor([len(ids)]))
        states = learner.backbone.run(batch, Needs(layers=frozenset({last})))
        expected = losses.convolutions(
            states.layers[last][0].tolist(), numbers, activation, channels=2
        )
        got = local[row, : len(ids)].view(len(ids), 3, -1)[:, :, :2].flatten(1)
        assert gap(got.detach().numpy(), np.array(expected)) < 1e-4
        assert local[row, len(ids) :].abs().max() == 0
    encoder = learner.as_encoder()
    vectors = encoder.encode(SENTENCES)
    assert vectors.shape == (len(SENTENCES), 768)
    assert gap(vectors[:3], (local.sum(1) / lengths.unsqueeze(1)).detach().numpy()) < 1e-4
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert gap(alone, vectors) < 1e-4
    grads = gradients(learner, columns=[SENTENCES[:4]])[1]
    assert all(grads[f"cnn.{size}.weight"].abs().max() > 0 for size in (1, 3, 5))


def test_defsents_loss_is_the_papers_and_head_and_embeddings_stay(bert_folder):
    columns = [SENTENCES[:3], ["woman", "dog", "door"]]
    learner = learner_of("defsent", bert_folder)
    head, tokens = learner.backbone.head, learner.backbone.tokenizer
    vectors = plain_vectors(learner, columns[0], "last/avg")
    logits = head.to_logits(head.to_hidden(torch.from_numpy(vectors))).tolist()
    ids = [tokens.id(word) for word in columns[1]]
    expected = (
        sum(
            math.log(sum(map(math.exp, row))) - row[token]
            for row, token in zip(logits, ids, strict=True)
        )
        / 3
    )
    loss, grads = gradients(learner, columns=columns)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert not [
        name
        for name in learner.trainable()
        if "embeddings" in name or name.startswith("objective.")
    ]
    assert any(name.startswith("backbone.encoder") for name in grads)
    assert learner_of("defsent", bert_folder, pool="max").as_encoder().recipe.pooling == "last/max"


def test_published_settings_do_as_the_published_programs():
    for method in all_forms():
        if method.paper:
            published = method.published(method.fallback_backbone)
            assert getattr(published, "mask_duplicates", False) is False
            assert getattr(published, "bias_positions", "code") == "code"
            assert getattr(published, "slots", "lookup") == "lookup"


def test_the_code_selects_promptbert_denoised_and_without_the_period_rule():
    method = find_method("promptbert", supervised=False)
    recipe = configured_method(method).recipe
    assert (recipe.denoise, recipe.period) == ("none", True)
    assert configured_method(method).development_recipe == recipe
    code = configured_method(method, selection="code").development_recipe
    assert (code.denoise, code.period) == ("hidden", False)
    other = find_method("promptbert", supervised=True)
    coded = configured_method(other, "roberta", bias_positions="code")
    assert coded.recipe.denoise == "hidden:code"
    assert configured_method(other, denoising=False).recipe.denoise == "none"
    one = configured_method(method, two_templates=False).prompts()
    assert one[0] == one[1] != configured_method(method).prompts()[1]


def test_given_templates_are_the_views_the_recipe_and_the_baseline():
    one, two = "[X] : [MASK]", "[MASK] is {p} [X]"
    method = find_method("promptbert", supervised=False)
    for given, views in (((one,), (one, one)), ((one, two), (one, two))):
        configured = configured_method(method, template=given)
        assert configured.prompts() == views
        assert configured.recipe.prompt == one == configured.untrained_recipe.prompt
    both = configured_method(method, template=(one, two), two_templates=False)
    assert both.prompts() == (one, one)
    optiprompt = find_method("optiprompt", supervised=False)
    soft = configured_method(optiprompt, template=(two,), slots="lookup")
    assert soft.recipe.prompt == f"soft-template-lookup:{two}"
    assert soft.untrained_recipe.prompt == two


ITS = 'It says "[X]" or [MASK] .'


@pytest.mark.parametrize(
    "form", [form for form in all_forms() if "backbone" in form.learns], ids=lambda form: form.name
)
def test_a_run_reads_as_the_model_that_it_starts_from(form):
    read = Recipe("x", prompt=ITS, pooling="last/mask", period=False)
    own = configured_method(form)
    started = own.like(read)
    plain = started.untrained_recipe
    if form.name == "isbert":  # whose convolutions read every token
        assert started is own
        return
    assert plain == read.replace(period=False)
    if not form.mini_bert_settings.keep_head:
        assert started.recipe == read.resolve()
    assert started.method.training_pooling in (None, form.training_pooling)
    first, *others = own.variant.templates
    kept = [view for view in others if view != first]
    assert started.variant.templates == (
        ITS,
        *(view if view in kept else ITS for view in others),
    )


def test_a_start_that_is_the_second_view_takes_the_firsts_place():
    method = find_method("promptbert", supervised=False)
    first, second = configured_method(method).variant.templates
    read = Recipe("x", prompt=second, pooling="last/mask")
    assert configured_method(method).like(read).variant.templates == (second, first)


def test_a_template_that_is_given_wins_over_the_starts():
    read = Recipe("x", prompt=ITS, pooling="last/mask")
    given = configured_method(
        find_method("promptbert", supervised=False), template=("[X] : [MASK]",)
    )
    assert given.like(read) is given
    adapter = configured_method(find_method("pcc-tuning", supervised=True), "llama")
    assert adapter.like(read) is adapter
    consert = configured_method(find_method("consert", supervised=False))
    goes_on = consert.like(Recipe("x", pooling="last-two/avg"))
    assert goes_on.method.training_pooling == consert.method.training_pooling
    assert consert.like(read).method.training_pooling is None
    denosent = configured_method(find_method("denosent", supervised=False))
    assert denosent.like(Recipe("x", pooling="last/cls")) is denosent


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_sberts_loss_is_the_papers(family, tiny_folder):
    learner = learner_of("sbert", tiny_folder(family), True)
    vectors, classifier = (
        [learner.as_encoder().encode(texts) for texts in PAIRS[:2]],
        learner.objective.classifier,
    )
    rows = [[*first, *second, *abs(first - second)] for first, second in zip(*vectors, strict=True)]
    classes = [CLASSES[label] for label in LABELS]
    expected = losses.softmax_loss(
        rows, classifier.weight.tolist(), classifier.bias.tolist(), classes
    )
    loss, grads = gradients(learner, columns=PAIRS)
    assert loss == pytest.approx(expected, rel=1e-4)
    assert learner.as_encoder().recipe.pooling == "last/avg"
    assert grads["objective.classifier.weight"].abs().max() > 0
    assert any(name.startswith("backbone.") for name in grads)
    # the classifier is discarded
    assert not [name for name in learner.tensors() if not name.startswith("backbone.")]


@pytest.mark.parametrize(
    ("scores", "top", "expected"),
    [
        (["0.0", "0.5", "1.0"], 0.0, [0, 0.5, 1]),
        (["80", "20", "0"], 0.0, [1, 0.25, 0]),
        (["4.0", "2.0", "0.0"], 5.0, [0.8, 0.4, 0]),
        (["-1.0", "0.0", "1.0"], 0.0, [-1, 0, 1]),
        (["-2.0", "0.0", "1.0"], 0.0, [-1, 0, 0.5]),
    ],
)
def test_graded_pairs_are_scaled_by_their_own_range(scores, top, expected):
    examples = TrainingExamples((["a"] * 3, ["b"] * 3, scores), "", layout=GRADED_PAIRS)
    chosen = PairCosine.choose(
        examples, replace(REGRESSION.mini_bert_settings, top_score=top), None
    )
    assert [float(score) for score in chosen.columns[2]] == expected
    with refusal(r"top_score: a score of .* is beyond 0\.5"):
        PairCosine.choose(examples, replace(REGRESSION.mini_bert_settings, top_score=0.5), None)
