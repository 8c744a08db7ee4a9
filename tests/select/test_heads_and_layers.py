"""``ditto-search`` and ``search-layers``: one pass equals the recipes one by one.

What is printed, saved, refused.
"""

import itertools

import numpy as np
import pytest
from scipy import stats

import promptcli as pc
from promptcli.backbones.backbone import Backbone
from promptcli.encoder.batching import plan_batches
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.evaluation.evaluator import distinct_sentences, score_encoders
from promptcli.recipe import RECIPES, ModelChoice, Recipe
from promptcli.select import head_search, search
from promptcli.select.head_search import SEARCHED_STATES, head_cosines
from promptcli.select.layer_search import search_layers
from promptcli.select.search import cross_validate
from promptcli.select.tfidf_correlation import correlate, tfidf_weights
from tests.comparing import gap, refusal, refused
from tests.reference.plain import tfidf_weights as plain_weights
from tests.select.pairs import EVERY_PAIR, make_task, write_pairs
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs

#: Every pair of sentences, a sentence with itself, and one pair twice.
TASK = make_task(
    [
        *itertools.combinations(SENTENCES, 2),
        (SENTENCES[0], SENTENCES[0]),
        (SENTENCES[1], SENTENCES[0]),
    ]
)


def search_heads(backbone, task=TASK, corpus=SENTENCES, **options):
    return pc.search_heads(
        TorchEncoder(Recipe(backbone=backbone.name), backbone, {}), task, corpus, **options
    )


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert", "gpt2"])
def test_every_head_equals_its_recipe(family, tiny_backbone):
    backbone = tiny_backbone(family)
    found = search_heads(backbone, TASK, SENTENCES, top=3)
    pairs = TASK.pairs()
    cosines = head_cosines(
        build_encoder(Recipe(), backbone=backbone), pairs.first, pairs.second, SEARCHED_STATES
    )
    names = [
        f"{layer}-{head}" for layer in range(1, backbone.n_layers + 1) for head in (1, 2, 3, 4)
    ]
    specs = [
        f"{states}/{weights}"
        for states in SEARCHED_STATES
        for weights in ("avg", *(f"ditto:{name}" for name in names))
    ]
    scores = iter(
        score_encoders(
            [build_encoder(Recipe(pooling=spec), backbone=backbone) for spec in specs], [TASK]
        )
    )
    by_value = {}
    for number, states in enumerate(SEARCHED_STATES):
        plain = next(scores)
        # 1e-6 in Spearman
        assert plain.value == pytest.approx(found.baselines[states].value, abs=1e-4)
        assert plain.ci95 == pytest.approx(found.baselines[states].ci95, abs=1e-4)
        assert gap(plain.cosines, cosines.plain[number]) < 1e-6
        for place, name in enumerate(names):
            score = next(scores)
            layer, head = (int(part) - 1 for part in name.split("-"))
            assert score.value == pytest.approx(found.maps[states][layer, head], abs=1e-4), (
                states,
                name,
            )
            assert gap(score.cosines, cosines.heads[number, place]) < 1e-6, (states, name)
            by_value[f"{states}/ditto:{name}"] = (score, plain)
    for head in found.ranked:
        score, plain = by_value[head.choice]
        assert head.ci95 == pytest.approx(score.ci95, abs=1e-4)
        assert head.gain == pytest.approx(score.value - plain.value, abs=1e-3)
    ranked = sorted((score.value for score, _ in by_value.values()), reverse=True)
    assert [head.value for head in found.ranked] == pytest.approx(ranked[:3], abs=1e-4)


def test_batches_do_not_matter_and_every_sentence_is_encoded_once(tiny_backbone, monkeypatch):
    encoder = build_encoder(Recipe(), backbone=tiny_backbone("bert"))
    pairs = TASK.pairs()
    whole = head_cosines(encoder, pairs.first, pairs.second, SEARCHED_STATES)
    sizes, made = [], type(encoder).batch
    monkeypatch.setattr(head_search, "plan_batches", lambda lengths: plan_batches(lengths, 32))
    monkeypatch.setattr(head_search, "_PAIRS_AT_ONCE", 5)
    monkeypatch.setattr(
        type(encoder), "batch", lambda self, rows: sizes.append(len(rows)) or made(self, rows)
    )
    small = head_cosines(encoder, pairs.first, pairs.second, SEARCHED_STATES)
    assert len(sizes) > 3 and sum(sizes) == len(distinct_sentences([TASK]))
    assert gap(small.heads, whole.heads) < 1e-6


def test_equal_inputs_tie_at_one(tiny_backbone):
    encoder = build_encoder(Recipe(), backbone=tiny_backbone("bert"))
    first = ["the dog barks", "The  Dog barks", "I", ""]
    second = ["the dog barks", "the dog barks", "I", ""]
    found = head_cosines(encoder, first, second, SEARCHED_STATES)
    assert (found.heads == 1).all() and (found.plain == 1).all()


def _layers(recipe, task=EVERY_PAIR, **options):
    return lambda backbone: search_layers(build_encoder(recipe, backbone=backbone), task, **options)


@pytest.mark.parametrize(
    ("family", "search", "message"),
    [
        (
            "bert",
            lambda bert: search_heads(bert, make_task([("a", "b")] * 5, [2.0] * 5)),
            "two different gold scores",
        ),
        (
            "bert",
            lambda bert: search_heads(bert, make_task([("a", "b")] * 3)),
            "has 3 pairs; ranking needs at least 4",
        ),
        (
            "bert",
            lambda bert: search_heads(bert, states=["first"]),
            "'first'; valid: static, last, first-last",
        ),
        ("bert", lambda bert: search_heads(bert, corpus=[" "]), "no sentence to count idf on"),
        ("deberta-v2", search_heads, "family 'deberta-v2'"),
        (
            "bert",
            _layers(RECIPES["prompt-topk"].replace(transforms=("topk-tokens:20",))),
            "without transforms",
        ),
        ("bert", _layers(Recipe(), weights=["largest"]), "weights of pooling"),
    ],
)
def test_a_search_that_cannot_rank_is_refused(family, search, message, tiny_backbone):
    with refusal(message):
        search(tiny_backbone(family))


def test_the_search_takes_names_and_gives_an_entry(bert_folder):
    found = pc.search_heads(
        str(bert_folder), TASK, ["", *SENTENCES], states=["first-last", "static"], top=99
    )
    assert list(found.maps) == ["static", "first-last"] and len(found.ranked) == 16
    entry = found.entry("mine")
    assert (
        entry.name == "mine"
        and entry.recipe == found.recipe
        and found.recipe.pooling == found.best.choice
    )
    assert entry.provenance["searched_on"]["pairs"] == len(TASK.pairs())


def test_cross_validation_equals_a_plain_loop(monkeypatch):
    monkeypatch.setattr(search, "HALVINGS", 7)
    monkeypatch.setattr(search, "SEED", 3)
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 6, 41).astype(float)
    heads = generator.normal(size=(2, 5, 41)) + gold * 0.2
    plain = generator.normal(size=(2, 41)) + gold * 0.1
    found = cross_validate(heads, plain, gold)
    flat, drawn = heads.reshape(10, 41), np.random.default_rng(3)
    halves = [drawn.permutation(41)[:20] for _ in range(7)]
    chosen, held_out, gain, picks = [], [], [], []
    for half in halves:
        rest = np.setdiff1d(np.arange(41), half)
        for here, there in ((half, rest), (rest, half)):
            values = [stats.spearmanr(row[here], gold[here]).statistic for row in flat]
            best = int(np.argmax(values))
            picks.append(best)
            chosen.append(values[best])
            held_out.append(stats.spearmanr(flat[best][there], gold[there]).statistic)
            gain.append(
                held_out[-1] - stats.spearmanr(plain[best // 5][there], gold[there]).statistic
            )
    overall = int(np.argmax([stats.spearmanr(row, gold).statistic for row in flat]))
    expected = [100 * np.mean(figures) for figures in (chosen, held_out, gain)]
    assert [found.chosen, found.held_out, found.gain] == pytest.approx(expected)
    assert found.gap == pytest.approx(expected[0] - expected[1])
    assert (found.choices, found.agreement) == (14, np.mean([pick == overall for pick in picks]))


def test_a_constant_and_a_row_without_known_words_correlate_with_nothing():
    assert (tfidf_weights([0, 4, 4], np.array([0.0, 1.5, 0.25, 3.0, 0.0])) == 0).all()
    weights = np.random.default_rng(0).integers(0, 4, 50).astype(float)
    constant = correlate(np.full(50, 0.5, np.float32), weights)
    assert (constant.pearson, constant.spearman) == (0.0, 0.0)


def test_tfidf_correlation_of_a_head_is_over_the_words_alone(tiny_backbone):
    backbone = tiny_backbone("bert")
    head = search_heads(backbone, TASK, SENTENCES, states=["last"], top=1).best
    layer, number = (int(part) - 1 for part in head.choice.partition(":")[2].split("-"))
    encoder = build_encoder(Recipe(), backbone=backbone)
    rows = encoder.inputs(SENTENCES).ids
    documents = [set(row) for row in rows]
    diagonals = head_cosines(encoder, SENTENCES, SENTENCES, ["last"]).attention
    words, weights = [], []
    for row, diagonal in zip(rows, diagonals, strict=True):
        weights += plain_weights(row, documents)[1:-1]
        words += diagonal[1:-1, 4 * layer + number].tolist()
    assert head.tfidf.pearson == pytest.approx(stats.pearsonr(words, weights).statistic, abs=1e-5)


def test_the_command_prints_json_and_saves_what_eval_takes(run, bert_folder):
    options = ("--backbone", bert_folder, "--offline", "--name", "best")
    ran = run("ditto-search", *options, "--json")
    assert "choosing on demo:dev; the papers used" in ran.err
    document = ran.json
    assert set(document["ranked"][0]) == {"choice", "value", "ci95", "gain", "tfidf"}
    assert len(document["ranked"]) == 10 and document["task"] == "demo:dev"
    best = document["ranked"][0]
    assert best["value"] == max(
        value for rows in document["maps"].values() for row in rows for value in row
    )
    scored = run("eval", "--model", "best", "--task", "demo:dev", "--offline", "--json").json[
        "results"
    ][0]
    assert scored["value"] == pytest.approx(best["value"], abs=0.01)
    refused(run("ditto-search", *options, "-q"), 2, "'best'")
    words = ("--on", "demo:dev")
    shown = run("ditto-search", *options, "--force", "-q", *words)
    assert (shown.code, shown.err) == (0, "")
    assert (
        "best 10 of 24" in shown.out
        and "ditto, every head" in shown.out
        and "selection bias (" in shown.out
    )


@pytest.mark.parametrize("command", ["ditto-search", "search-templates --mode free --limit 3"])
def test_a_better_average_is_told(command, run, bert_folder, tmp_path):
    pairs = write_graded_pairs(tmp_path / "pairs.tsv")
    words = [*command.split(), "--backbone", bert_folder, "--on", pairs, "--offline", "-q"]
    found = run(*words, "--json").json
    behind = max(row["value"] for row in found["baseline"].values()) > found["ranked"][0]["value"]
    assert found["baseline_is_better"] is behind
    ran = run(*words)
    assert ran.code == 0
    assert ("is better: " in ran.out) is behind


@pytest.mark.parametrize(
    ("family", "recipe", "weights"),
    [
        ("bert", RECIPES["prompt"], ()),
        ("bert", Recipe(), ("avg", "cls")),
        ("qwen2", RECIPES["prompteol"], ("last-token", "avg")),
        ("qwen2", RECIPES["aligned-wva"], ()),
        ("qwen2", RECIPES["values-avg"], ()),
    ],
)
def test_every_layer_equals_its_recipe_and_costs_one_pass(
    family, recipe, weights, tiny_backbone, monkeypatch
):
    backbone = tiny_backbone(family)
    passes = []
    original = Backbone.run
    monkeypatch.setattr(
        Backbone, "run", lambda self, *given: passes.append(given) or original(self, *given)
    )
    found = search_layers(build_encoder(recipe, backbone=backbone), EVERY_PAIR, weights=weights)
    once = len(passes)
    passes.clear()
    score_encoders([build_encoder(recipe, backbone=backbone)], [EVERY_PAIR])
    assert once == len(passes)
    kinds = weights or (recipe.pooling.partition("/")[2],)
    layers = [f"layer-{layer}" for layer in range(backbone.n_layers)]
    name = recipe.pooling.partition("/")[0]
    if name in ("attention", "values"):
        layers += [f"{name}:{some}" for some in ("1-3", "2-3", "3-3", "1-1", "1-2")]
    if name == "values":
        layers.append("values:2-2")
    wanted = {
        f"{states}/{kind}"
        for kind in kinds
        for states in (*layers, "last", "first-last", "first-last:1")
    }
    assert {row.choice for row in found.ranked} == wanted | {recipe.pooling}
    own = score_encoders([build_encoder(recipe, backbone=backbone)], [EVERY_PAIR])[0].value
    assert found.baselines["own"].value == pytest.approx(own, abs=1e-4)
    assert [row.value for row in found.ranked] == sorted(
        (row.value for row in found.ranked), reverse=True
    )
    for row in found.ranked:
        score = score_encoders(
            [build_encoder(recipe.replace(pooling=row.choice), backbone=backbone)], [EVERY_PAIR]
        )[0]
        assert row.value == pytest.approx(score.value, abs=1e-3), row.choice
        assert row.ci95 == pytest.approx(score.ci95, abs=1e-2)
        assert row.gain == pytest.approx(score.value - own, abs=1e-3)
    assert found.encoder.recipe.pooling == found.best.choice


def test_the_layer_and_the_factor_of_a_contrastive_prompt_are_chosen(tiny_backbone):
    backbone = tiny_backbone("qwen2")
    found = search_layers(
        build_encoder(RECIPES["contrastive-prompting"], backbone=backbone), EVERY_PAIR
    )
    settings = [row.choice.partition(" ")[0] for row in found.ranked]
    best = found.encoder.prompt
    # the first half of three layers
    assert {"contrastive:0:0.5", "contrastive:1:0.5"} <= set(settings)
    factors = ("0.25", "0.5", "0.75", "1", "2", "3")
    assert {f"contrastive:{best.layer}:{factor}" for factor in factors} <= set(settings)
    assert found.best.choice == f"{best.settings} {found.recipe.pooling}"
    assert score_encoders([found.encoder], [EVERY_PAIR])[0].value == pytest.approx(
        found.best.value, abs=1e-3
    )
    assert found.baselines["own"].choice == "contrastive:0:0.5 layer--2/last-token"


def test_the_best_layer_is_saved(run, tiny_folder, tmp_path):
    arguments = ["search-layers", "--on", write_pairs(tmp_path), "--backbone", tiny_folder("llama")]
    arguments += ["--model", "prompteol", "--name", "layers"]
    found = run(*arguments, "--json").json
    assert found["recipe"]["pooling"] == found["ranked"][0]["choice"] and found["model"] == "layers"
    table = run(*arguments, "--force")
    assert (
        table.code == 0
        and "\n\nselection bias (" in table.out
        and "\ngain over the recipe's own layer" in table.out
        and "first-last:1/last-token" in table.out
    )


def test_layers_are_compared_at_the_mask_of_a_prompt_that_has_one(bert_folder):
    chosen = ModelChoice(str(bert_folder), {"prompt": "[X] means [MASK] ."})
    assert search_layers(chosen, TASK).baselines["own"].choice == "last/mask"


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_every_slot_row_equals_its_recipe(family, tiny_backbone):
    backbone = tiny_backbone(family)
    found = search_heads(backbone, TASK, SENTENCES, top=3, weights="slot-attention")
    prompt = found.recipe.prompt
    assert found.best.choice.partition("/")[2].startswith("slot-attention:")
    heads = [
        f"{layer}-{head}" for layer in range(1, backbone.n_layers + 1) for head in (1, 2, 3, 4)
    ]
    recipes = []
    for states in SEARCHED_STATES:
        for head in heads:
            recipes.append(Recipe(prompt=prompt, pooling=f"{states}/slot-attention:{head};1"))
    scores = score_encoders(
        [build_encoder(recipe, backbone=backbone) for recipe in recipes], [TASK]
    )
    maps = np.concatenate([found.maps[states].ravel() for states in SEARCHED_STATES])
    assert [score.value for score in scores] == pytest.approx(maps.tolist(), abs=1e-4)


def test_the_slot_is_the_recipe_s_own_mask_or_that_of_a_known_template(tiny_backbone):
    bert = tiny_backbone("bert")
    options = {"states": ["last"], "top": 1, "weights": "slot-attention"}
    own = build_encoder(Recipe(prompt="[MASK] is [X]"), backbone=bert)
    assert pc.search_heads(own, TASK, SENTENCES, **options).recipe.prompt == "[MASK] is [X]"
    known = build_encoder(RECIPES["prompt"], backbone=bert).recipe.prompt
    assert "[MASK]" in known and search_heads(bert, **options).recipe.prompt == known
