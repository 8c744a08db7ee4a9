"""The analyses equal plain loops written from the papers' formulas, and refuse wrong inputs."""

import contextlib
import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.states import Needs
from promptcli.data.preparation import Preparation
from promptcli.data.tasks import Pairs, STSTask
from promptcli.encoder.batching import make_batch
from promptcli.encoder.encoder import build_encoder
from promptcli.grammar import PLACES
from promptcli.notes import showing_stages
from promptcli.plugins.analyze import geometry, token_bias
from promptcli.plugins.analyze import sentence as per_token
from promptcli.plugins.analyze.geometry import (
    MeanCosine,
    sentence_anisotropy,
    token_anisotropy,
)
from promptcli.plugins.analyze.mask_tokens import mask_tokens
from promptcli.plugins.analyze.sentence import (
    attention,
    compare_with_tfidf,
    impact,
    plain_encoder,
    tokenize,
)
from promptcli.recipe import Recipe
from tests.comparing import refusal
from tests.reference.plain import TEMPLATES, Plain, period, tfidf_weights
from tests.tiny import SENTENCES


def hearing(steps):
    """Collect the steps of what is done in the block."""
    return showing_stages(lambda *_: contextlib.nullcontext(steps.append))


def dot(one, other):
    return sum(float(a) * float(b) for a, b in zip(one, other, strict=True))


def mean_cosine(vectors):
    """PromptBERT eq. 1, pair by pair."""
    total = 0.0
    for i, j in itertools.permutations(range(len(vectors)), 2):
        lengths = math.sqrt(dot(vectors[i], vectors[i]) * dot(vectors[j], vectors[j]))
        total += dot(vectors[i], vectors[j]) / lengths if lengths else 0.0
    return abs(total / (len(vectors) ** 2 - len(vectors)))


# --- anisotropy


def test_mean_cosine_equals_the_loop_over_pairs():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(11, 5)).astype(np.float32) + 0.5
    vectors[3] = 0
    for chosen in (vectors, vectors[:2], -np.eye(3)[:2] + np.eye(3)[1:]):
        mean = MeanCosine()
        for start in range(0, len(chosen), 4):
            mean.add(chosen[start : start + 4])
        assert mean.value() == pytest.approx(mean_cosine(chosen), abs=1e-12)
    opposite = MeanCosine()
    opposite.add(np.array([[1.0, 0.0], [-2.0, 0.0]]))
    assert opposite.value() == 1.0  # eq. 1 takes the absolute value of the sum


def test_anisotropy_of_sentences_is_streamed(tiny_backbone, monkeypatch):
    recipes = [Recipe(pooling=pooling) for pooling in ("last/avg", "static/avg")]
    encoders = [build_encoder(recipe, backbone=tiny_backbone("bert")) for recipe in recipes]
    sentences = [*SENTENCES, SENTENCES[0], SENTENCES[3]]
    expected = [mean_cosine(encoder.encode(sentences)) for encoder in encoders]
    for window in (8192, 5):
        monkeypatch.setattr(geometry, "WINDOW", window)
        done = []
        with hearing(done):
            found = sentence_anisotropy(encoders, sentences)
        assert [one.value for one in found] == pytest.approx(expected, abs=1e-6)
        assert sum(done) == len(sentences) == found[0].vectors and found[0].truncated == 0
    assert sentence_anisotropy(encoders, ["the dog " * 60, "I"])[0].truncated == 1


def test_anisotropy_of_tokens_is_of_all_rows(tiny_backbone, monkeypatch):
    monkeypatch.setattr(geometry, "WINDOW", 30)
    backbone = tiny_backbone("bert")
    rows = backbone.word_embeddings.detach().numpy()
    found = token_anisotropy(backbone)
    assert found.vectors == len(rows) and found.value == pytest.approx(mean_cosine(rows), abs=1e-9)


def test_lines_are_prepared_as_in_the_code():
    lines = ["The  Cat\tSAT", "", "  ", "a " * 40, "Third one", "Fourth"]
    assert Preparation().apply(lines) == ["the cat sat", " ".join("a" * 32), "third one", "fourth"]
    assert Preparation(first=2, lower=False, words=2).apply(lines) == ["The Cat", "a a"]
    assert Preparation(lower=False, words=0).apply(["  The  Cat "]) == ["The Cat"]


def test_a_sample_takes_any_line_as_likely_and_the_same_ones_again():
    lines = [f"line {number}" for number in range(9)]
    drawn = [Preparation(sample=3, seed=seed).apply([*lines, " "]) for seed in range(600)]
    assert all(len(set(one)) == 3 and set(one) <= set(lines) for one in drawn)
    counts = Counter(itertools.chain.from_iterable(drawn))
    # 200 on average, standard deviation 11.5
    assert all(150 < counts[line] < 250 for line in lines)
    assert Preparation(sample=3, seed=5).apply(lines) == drawn[5] != drawn[6]
    assert Preparation(sample=20).apply(lines) == lines


# --- alignment and uniformity


def test_alignment_and_uniformity_equal_the_loops(monkeypatch):
    generator = np.random.default_rng(1)
    first, second = (geometry.unit_float64(generator.normal(size=(9, 4)) + 0.3) for _ in range(2))
    apart = [
        sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
        for x, y in zip(first, second, strict=True)
    ]
    assert geometry.alignment(first, second) == pytest.approx(sum(apart) / 9)
    potentials = [math.exp(-2 * ((x - y) ** 2).sum()) for x, y in itertools.combinations(first, 2)]
    for block in (2048, 4, 1):
        monkeypatch.setattr(geometry, "_BLOCK_ROWS", block)
        assert geometry.uniformity(first) == pytest.approx(math.log(sum(potentials) / 36))


def task(gold):
    pairs = list(itertools.combinations(SENTENCES[:4], 2))[: len(gold)]
    first, second = (list(side) for side in zip(*pairs, strict=True))
    return STSTask(
        "demo", "dev", "senteval", "as made up", {"all": Pairs(first, second, np.array(gold))}
    )


def test_positive_pairs_are_graded_above_four_and_all_sentences_count(tiny_backbone):
    encoder = build_encoder(Recipe(), backbone=tiny_backbone("bert"))
    tasks = [task([4.0, 4.01, 0.0]), task([1.0, 5.0])]
    found = geometry.measure_uniformity([encoder], tasks)[0]
    first, second = (
        [text for each in tasks for text in getattr(each.pairs(), side)]
        for side in ("first", "second")
    )
    vectors = geometry.unit_float64(encoder.encode([*first, *second]))
    assert (found.positives, found.sentences) == (2, 10)
    expected = np.mean([((vectors[number] - vectors[number + 5]) ** 2).sum() for number in (1, 4)])
    assert found.alignment == pytest.approx(expected, abs=1e-6)
    potentials = [
        math.exp(-2 * ((x - y) ** 2).sum()) for x, y in itertools.combinations(vectors, 2)
    ]
    assert found.uniformity == pytest.approx(math.log(np.mean(potentials)), abs=1e-6)


# --- where tokens lie


def test_the_plane_is_that_of_the_singular_vectors():
    generator = np.random.default_rng(2)
    rows = (generator.normal(size=(50, 6)) * [5, 1, 3, 1, 1, 0.5] + 7).astype(np.float32)
    points, variance = token_bias.project(rows)
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    assert variance == pytest.approx((values[:2] ** 2 / (values**2).sum()).tolist())
    for place in (0, 1):
        axis = axes[place] * np.sign(axes[place][np.abs(axes[place]).argmax()])
        assert points[:, place] == pytest.approx(centred @ axis)


@pytest.mark.parametrize("family", ["bert", "roberta", "camembert", "albert"])
def test_groups_equal_the_loops(family, tiny_backbone):
    backbone = tiny_backbone(family)
    found = token_bias.token_bias(backbone, ["", *SENTENCES])
    tokens, encoder = backbone.tokenizer, plain_encoder(backbone)
    special = {tokens.start[0], tokens.end[0], tokens.pad, tokens.unk, tokens.mask}
    texts = {
        token: tokens.text(token)
        for token in range(len(backbone.word_embeddings))
        if token not in special
    }
    counts = Counter(itertools.chain.from_iterable(encoder.inputs(SENTENCES).ids))
    assert found.counts.tolist() == [counts[token] for token in texts]
    marks = {"bert": "##", "albert": "##", "roberta": "Ġ", "camembert": "▁"}
    inside = np.array(
        [(marks[family] in text) == (marks[family] == "##") for text in texts.values()]
    )
    assert found.subword.tolist() == inside.tolist() and 0 < inside.sum() < len(inside)
    assert found.capital.tolist() == [bool(re.search("[A-Z]", text)) for text in texts.values()]
    points, _ = token_bias.project(backbone.word_embeddings.detach().numpy()[list(texts)])
    cased = ["case"] if any(found.capital) else []
    biases = {group.bias for group in found.groups}
    assert biases == {"subword", "frequency", *cased}
    for bias in biases:
        assert sum(group.tokens for group in found.groups if group.bias == bias) == len(texts)
    continuing = next(group for group in found.groups if group.name == "continues a word")
    assert continuing.tokens == inside.sum()
    assert continuing.mean == pytest.approx(points[inside].mean(0))


def test_bands_go_by_rank():
    counts = np.array([5, 0, 9, 1, 0] + [3] * 200)
    by_frequency = np.argsort(-counts, kind="stable")
    named = token_bias._bands(counts, by_frequency).tolist()
    assert named[:5] == ["1 to 100", "never", "1 to 100", "101 to 1,000", "never"]
    assert Counter(named) == {"1 to 100": 100, "101 to 1,000": 103, "never": 2}


def test_output_embeddings_are_the_head_s(bert_folder):
    backbone = load_backbone(str(bert_folder))
    tied = token_bias.token_bias(backbone, SENTENCES, states="mlm-head")
    assert np.allclose(tied.points, token_bias.token_bias(backbone, SENTENCES).points)
    backbone.head.decoder = other = torch.nn.Linear(16, len(backbone.word_embeddings))
    untied = token_bias.token_bias(backbone, SENTENCES, states="mlm-head")
    tokens = backbone.tokenizer
    special = sorted({tokens.start[0], tokens.end[0], tokens.pad, tokens.unk, tokens.mask})
    rows = np.delete(other.weight.detach().numpy(), special, axis=0)
    assert untied.points == pytest.approx(token_bias.project(rows)[0])


# --- perturbed masking


def plain_impact(folder, ids, mask):
    """Ditto, section 2.3: one forward pass for each masked input, one distance for each pair."""
    plain = Plain(folder)

    def state(masked, place):
        row = [mask if position in masked else token for position, token in enumerate(ids)]
        return plain.states(row)[0][-1][place]

    places = range(1, len(ids) - 1)
    return [
        [float(torch.dist(state({i}, i), state({i, j}, i))) if i != j else 0.0 for j in places]
        for i in places
    ]


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_impact_equals_the_loop(family, tiny_backbone, tiny_folder, monkeypatch):
    backbone = tiny_backbone(family)
    sentence = "The dog said no."
    ids = tokenize(plain_encoder(backbone), sentence)
    expected = plain_impact(tiny_folder(family), ids, backbone.tokenizer.mask)
    count = len(ids) - 2
    for budget in (4096, 3 * len(ids)):  # one batch, and many
        monkeypatch.setattr(per_token.batching, "TOKEN_BUDGET", budget)
        found = impact(backbone, sentence)
        assert found.matrix == pytest.approx(np.array(expected), abs=1e-4)
    assert found.tokens == [backbone.tokenizer.text(token) for token in ids[1:-1]]
    means = [sum(row[j] for row in expected) / count for j in range(count)]
    assert found.means.tolist() == pytest.approx(means, abs=1e-4)
    assert found.matrix.max() > 0.1


def test_impact_against_tfidf_equals_the_loops(tiny_backbone):
    backbone = tiny_backbone("bert")
    sentences, corpus = ["the dog barks", "", "I", "a man said no.", "the cat " * 80], SENTENCES
    found = compare_with_tfidf(backbone, sentences, corpus)
    assert (found.sentences, found.left_out) == (3, 2)
    documents = [set(row) for row in plain_encoder(backbone).inputs(corpus).ids]
    means, weights = [], []
    for sentence in (sentences[0], sentences[2], sentences[3]):
        row = tokenize(plain_encoder(backbone), sentence)
        weights.append(tfidf_weights(row, documents)[1:-1])
        means.append(impact(backbone, sentence).means.tolist())
    flat = [list(itertools.chain.from_iterable(rows)) for rows in (means, weights)]
    assert found.means.tolist() == pytest.approx(
        flat[0]
    ) and found.weights.tolist() == pytest.approx(flat[1], abs=1e-6)
    assert found.correlation.pearson == pytest.approx(stats.pearsonr(*flat).statistic, abs=1e-6)
    assert found.correlation.spearman == pytest.approx(stats.spearmanr(*flat).statistic, abs=1e-6)
    inside = [
        stats.pearsonr(*sides).statistic
        for sides in zip(means, weights, strict=True)
        if len(sides[0]) > 1
    ]
    assert len(inside) == 2 and found.by_sentence.pearson == pytest.approx(
        sum(inside) / 2, abs=1e-6
    )


# --- attention


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "albert", "distilbert", "modernbert", "electra"]
)
def test_attention_equals_the_eager_path(family, tiny_backbone, plain_backbone):
    backbone = tiny_backbone(family)
    sentence = (
        "The cat sat on the mat, and it did not move."  # longer than ModernBERT's local window
    )
    ids = tokenize(plain_encoder(backbone), sentence)
    _, matrices = plain_backbone(family).states(ids)
    batch = make_batch([ids], None, backbone.tokenizer.pad, backbone.device, len(ids))
    with torch.inference_mode():
        diagonals = backbone.run(batch, Needs(diagonals=frozenset({0, 1}))).diagonals
    for layer, head in itertools.product((0, 1), (0, 3)):
        found = attention(backbone, sentence, f"{layer + 1}-{head + 1}")
        assert found.matrix == pytest.approx(matrices[layer][head].numpy(), abs=1e-5)
        assert found.diagonal == pytest.approx(diagonals[layer][0, head].numpy(), abs=1e-5)
        assert found.matrix.sum(1) == pytest.approx(np.ones(len(ids)), abs=1e-5)
        assert (found.head, len(found.tokens)) == (f"{layer + 1}-{head + 1}", len(ids))


def test_matrices_of_a_padded_batch_ignore_the_padding(tiny_backbone):
    backbone = tiny_backbone("bert")
    rows = plain_encoder(backbone).inputs([SENTENCES[0], "I"]).ids
    batch = make_batch(rows, None, backbone.tokenizer.pad, backbone.device, backbone.max_tokens)
    with torch.inference_mode():
        found = backbone.run(batch, Needs(matrices=frozenset({1}))).matrices[1]
    short = len(rows[1])
    assert found[1, :, :, short:].abs().max() == 0
    alone = attention(backbone, "I", "2-1").matrix
    assert found[1, 0, :short, :short].numpy() == pytest.approx(alone, abs=1e-5)


def test_what_a_backbone_cannot_show_is_refused(tiny_backbone, monkeypatch):
    with refusal("family 'deberta-v2'"):
        attention(tiny_backbone("deberta-v2"), "the dog", "1-1")
    backbone = tiny_backbone("bert")
    monkeypatch.setattr(backbone.tokenizer, "mask", None)
    for call in (impact, lambda *given: compare_with_tfidf(*given, SENTENCES)):
        with refusal("has no mask token"):
            call(backbone, "the dog")


# --- tokens at the mask, against transformers' own masked LM

THREE = ["a man is here", "The cat sat on the mat, and it did not move.", "i"]


def predict(backbone, sentences, place="hidden", prompt=TEMPLATES["bert"], top=4):
    recipe = Recipe(prompt=prompt, pooling="last/mask", transforms=["topk-tokens:4"], denoise=place)
    return mask_tokens([build_encoder(recipe, backbone=backbone)], sentences, top=top)[0]


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("place", PLACES)
def test_tokens_are_the_masked_lm_s_own(family, place, tiny_backbone, plain_backbone):
    backbone, reference, template = (
        tiny_backbone(family),
        plain_backbone(family),
        TEMPLATES[family],
    )
    found = predict(backbone, [*THREE, "the " * 200], place, template)
    assert [row.truncated for row in found] == [False] * 3 + [True]
    for row, sentence in zip(found, map(period, THREE), strict=False):
        state = reference.mask_state(template, sentence)
        bias = reference.mask_bias(template, sentence, 2 if family == "roberta" else 0)
        for guesses, kind in [(row.plain, "none"), (row.denoised, place)]:
            values, tokens = reference.denoised_logits(state, bias, kind).softmax(-1).topk(4)
            assert [guess.token for guess in guesses] == [
                backbone.tokenizer.text(token) for token in tokens.tolist()
            ]
            assert [guess.probability for guess in guesses] == pytest.approx(
                values.tolist(), abs=1e-4
            )


# --- what cannot be analysed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda bert: sentence_anisotropy([plain_encoder(bert)], ["one"]), "at least 2"),
        (
            lambda bert: geometry.measure_uniformity([plain_encoder(bert)], [task([4.0, 1.0])]),
            "is graded above 4",
        ),
        (
            lambda bert: token_bias.token_bias(bert, SENTENCES, states="last"),
            "unknown states 'last'",
        ),
        (lambda bert: token_bias.token_bias(bert, [" "]), "no sentence to count tokens in"),
        (lambda bert: impact(bert, "the cat " * 80), "limit of backbone .*, 6. tokens"),
        (lambda bert: impact(bert, "  "), "has no tokens"),
        (lambda bert: compare_with_tfidf(bert, [" "], SENTENCES), "no usable sentence"),
        (lambda bert: compare_with_tfidf(bert, SENTENCES, [" "]), "no sentence to count idf on"),
        (lambda bert: attention(bert, "the dog", "3-1"), "head '3-1'"),
        (lambda bert: attention(bert, "the dog", "one"), "LAYER-HEAD"),
        (lambda bert: attention(bert, "the dog"), "no head is known"),
        (lambda bert: predict(bert, ["one"], "none"), "unknown denoise 'none'"),
        (lambda bert: predict(bert, ["one"], prompt="the [X] ."), r"has no \[MASK\]"),
        (lambda bert: predict(bert, ["one"], top=0), "the vocabulary gives 1 to"),
        (
            lambda _: pc.analyze("atention", "mini"),
            "unknown analysis 'atention'; .*; did you mean attention",
        ),
        (lambda _: pc.analyze("attention", "mini", ["a"]), "one sentence, not list"),
        (
            lambda _: pc.analyze("attention", "mini", "a", wrong=1),
            "unknown setting of attention 'wrong'",
        ),
    ],
)
def test_wrong_inputs_of_an_analysis_are_refused(call, message, tiny_backbone):
    with refusal(message):
        call(tiny_backbone("bert"))
