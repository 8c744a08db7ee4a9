"""The successors of the line, against plain loops: PromCSE's hinge, SNCSE's soft negatives, false
negatives of a batch by their cosines.
"""

import functools

import numpy as np
import pytest
import torch

import promptcli as pc
from promptcli.data.layouts import PAIRS, TRIPLETS
from promptcli.data.negation import negate
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.encoder import TorchEncoder
from promptcli.recipe import Recipe
from promptcli.training.methods import find_method
from promptcli.training.objectives.contrastive import (
    SoftNegative,
    hinge_loss,
    nearer_than_positive,
    soft_negative_loss,
)
from promptcli.training.teacher import SentenceVectors
from tests import training_steps
from tests.comparing import gap, refusal
from tests.reference import losses
from tests.tiny import SENTENCES
from tests.training_steps import assert_equal, gradients, views_of

learner_of = functools.partial(training_steps.learner_of, dropout=0.0)
SENT0, SENT1 = SENTENCES[:5], SENTENCES[5:10]
HARD = ["", SENTENCES[10], SENTENCES[9], "", SENTENCES[11]]


def drawn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def none_excluded(n, m):
    return [[False] * m for _ in range(n)]


@pytest.mark.parametrize("margin", [0.0, 0.2, 2.0])
@pytest.mark.parametrize("some_excluded", [False, True])
def test_the_hinge_and_its_gradient_are_a_loops(margin, some_excluded):
    vectors = drawn(3, 6, 8)
    excluded = none_excluded(6, 12)
    if some_excluded:
        excluded[0][7] = excluded[2][1] = True
    ours = vectors.clone().requires_grad_()
    loss = hinge_loss(
        ours[0],
        torch.cat([ours[1], ours[2]]),
        margin=margin,
        excluded=torch.tensor(excluded) if some_excluded else None,
    )
    plain = vectors.double().requires_grad_()
    expected = losses.hinge(*map(list, (plain[0], plain[1], plain[2])), margin, excluded)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    expected.backward()
    loss.backward()
    assert gap(ours.grad, plain.grad) < 1e-6


def test_equally_near_negatives_share_the_hinge_s_gradient():
    first, second = drawn(2, 3, 8)
    nearest = first[0] + 0.1 * drawn(8, seed=1)
    hard = torch.stack([nearest, nearest]).requires_grad_()
    hinge_loss(first, torch.cat([second, hard]), margin=2.0).backward()
    alone = nearest.clone().unsqueeze(0).requires_grad_()
    hinge_loss(first, torch.cat([second, alone]), margin=2.0).backward()
    assert torch.allclose(hard.grad[0], hard.grad[1])
    assert torch.allclose(hard.grad.sum(0), alone.grad[0], atol=1e-6)


@pytest.mark.parametrize("hard", [HARD, [""] * 4 + [SENTENCES[11]], [""] * 5])
def test_promcse_adds_the_hinge_over_the_hard_negatives_that_exist(hard, bert_folder):
    columns = [SENT0, SENT1, hard]
    options = {"supervised": True, "mask_duplicates": False}
    learner = learner_of("promcse", bert_folder, **options)
    plain = learner_of("promcse", bert_folder, hinge_weight=0.0, **options)
    views = views_of(learner, columns)
    there = [views[2][row] for row in range(5) if hard[row]]
    expected = losses.hinge(
        *[view.tolist() for view in views[:2]],
        [vector.tolist() for vector in there],
        0.2,
        none_excluded(5, 5 + len(there)),
    )
    added = learner.objective.loss(views, columns) - plain.objective.loss(views, columns)
    assert float(added) == pytest.approx(10 * expected if there else 0, abs=1e-5)


def test_the_hinge_is_the_same_in_chunks_with_caching(bert_folder):
    columns = [SENT0, SENT1, HARD]

    def step(**changes):
        learner = learner_of("promcse", bert_folder, supervised=True, **changes)
        return gradients(learner, columns=columns)

    assert_equal(step(chunk_tokens=10**6), step(chunk_tokens=64, gradient_caching=True))


@pytest.mark.parametrize("name", ["simcse", "promptbert", "dcpcse", "promcse"])
def test_negatives_nearer_than_the_positive_are_left_out_by_the_vectors(name, bert_folder):
    columns = [SENT0, SENT1, HARD]
    options = {"mask_duplicates": False, "hinge_weight": 0.0, "temperature": 0.5}
    options |= {"mask_false": "self", "mask_margin": 0.01}
    learner = learner_of(name, bert_folder, supervised=True, **options)
    views = [drawn(5, 8, seed=number) for number in range(3)]
    own = [losses.cosine(*pair) for pair in zip(*[v.tolist() for v in views[:2]], strict=True)]

    def is_nearer(i, vector):
        return losses.cosine(views[0][i].tolist(), vector.tolist()) > own[i] + 0.01

    there = [[views[2][row]] if HARD[row] else [] for row in range(5)]
    expected = losses.infonce(
        views[0].tolist(),
        views[1].tolist(),
        [[vector.tolist() for vector in row] for row in there],
        0.5,
        [[is_nearer(i, views[1][j]) for j in range(5)] for i in range(5)],
        [[[is_nearer(i, vector) for vector in row] for row in there] for i in range(5)],
    )
    found = float(learner.objective.loss(views, columns))
    assert found == pytest.approx(expected, abs=1e-6)
    changed = learner_of(name, bert_folder, True, **{**options, "mask_false": "none"})
    assert float(changed.objective.loss(views, columns)) > found + 1e-3


def test_a_guide_of_another_width_leaves_out_what_it_finds_nearer(bert_folder):
    columns = [SENT0, SENT1, HARD]
    texts = list(dict.fromkeys([*SENT0, *SENT1, *HARD]))
    guide = SentenceVectors(texts, "print", 3)
    guide.parts = [np.random.default_rng(0).standard_normal((len(texts), 3)).astype(np.float32)]
    options = {"mask_duplicates": False, "temperature": 0.5}
    options |= {"mask_false": "guide", "mask_guide": "guide", "mask_margin": 0.0}
    learner = learner_of("simcse", bert_folder, True, models={"mask_guide": guide}, **options)
    views = [drawn(5, 8, seed=number) for number in range(3)]

    def is_nearer(i, text):
        anchor, own, other = guide.encode([SENT0[i], SENT1[i], text]).tolist()
        return losses.cosine(anchor, other) > losses.cosine(anchor, own)

    there = [[row] if HARD[row] else [] for row in range(5)]
    expected = losses.infonce(
        views[0].tolist(),
        views[1].tolist(),
        [[views[2][row].tolist() for row in rows] for rows in there],
        0.5,
        [[is_nearer(i, SENT1[j]) for j in range(5)] for i in range(5)],
        [[[is_nearer(i, HARD[row]) for row in rows] for rows in there] for i in range(5)],
    )
    assert float(learner.objective.loss(views, columns)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["cotbert", "consert"])
def test_methods_of_single_sentences_leave_out_false_negatives_too(name, bert_folder):
    options = {**training_steps.CERTAIN.get(name, {}), "mask_margin": 0.0}
    views = [drawn(5, 8, seed=number) for number in range(3 if name == "cotbert" else 2)]

    def loss(**changes):
        learner = learner_of(name, bert_folder, **options, **changes)
        return float(learner.objective.loss(views, [SENT0]))

    near = nearer_than_positive(views[0], views[1])
    assert near.any() and not near.diagonal().any()
    assert loss(mask_false="self") < loss()


def test_a_run_asks_the_guide_that_is_named(bert_folder):
    pairs = list(zip(SENT0, SENT1, strict=True))
    options = {"backbone": str(bert_folder), "on": "demo:dev", "batch_size": 4, "steps": 2}
    options |= {"mask_false": "guide", "mask_guide": "mini-static"}
    trained = pc.train("simcse", pairs, **options)
    assert trained.facts["mask_guide_fingerprint"]
    with refusal("mask_false: guide needs pairs"):
        pc.train("simcse", SENTENCES, **options)


@pytest.mark.parametrize(
    ("changes", "layout", "message"),
    [
        ({"hinge_weight": 10.0}, PAIRS, "hinge_weight: needs hard negatives, columns sent0, sent"),
        ({"hinge_weight": 10.0}, None, "in.tsv has none; mine finds some for pairs"),
        ({"mask_false": "guide"}, PAIRS, "mask_guide: is missing; name the model"),
        ({"mask_guide": "mini"}, PAIRS, "requires mask_false=guide"),
        ({"hinge_weight": 10.0, "mine": "mini"}, PAIRS, None),
        ({"hinge_weight": 10.0}, TRIPLETS, None),
        ({"mask_false": "self"}, None, None),
    ],
)
def test_a_hinge_or_a_guide_that_cannot_work_is_refused(changes, layout, message):
    settings = find_method("simcse", supervised=True).mini_bert_settings.replace(**changes)
    check = functools.partial(settings.check_layout, layout, source="in.tsv")
    if message is None:
        check(has_negatives=layout == TRIPLETS)
        if layout == TRIPLETS:
            with refusal("hard negatives"):
                check(has_negatives=False)
        return
    with refusal(message):
        check(has_negatives=layout == TRIPLETS)


#: D of each row: above -alpha, between the bounds, below -beta.
REGIONS = [0.05, -0.2, -0.6]


def test_the_soft_negative_s_bounds_are_a_loops_in_each_region():
    first = drawn(3, 8, seed=3)
    second, soft = first + 0.3 * drawn(3, 8, seed=4), drawn(3, 8, seed=5)
    for row, distance in enumerate(REGIONS):  # turn z3 until its cosine is that of z2 plus D
        one = torch.nn.functional.normalize(first[row], dim=0)
        across = soft[row] - (soft[row] @ one) * one
        across = torch.nn.functional.normalize(across, dim=0)
        wanted = losses.cosine(first[row].tolist(), second[row].tolist()) + distance
        wanted = min(wanted, 1.0)
        soft[row] = wanted * one + (1 - wanted**2) ** 0.5 * across
    for rows in ([0], [1], [2], [0, 1, 2]):
        ours = torch.stack([first, second, soft])[:, rows].clone().requires_grad_()
        loss = soft_negative_loss(*ours, alpha=0.1, beta=0.3)
        plain = ours.detach().double().requires_grad_()
        expected = losses.soft_negative(*map(list, plain), 0.1, 0.3)
        assert float(loss) == pytest.approx(float(expected), abs=1e-6)
        assert (float(loss) == 0) is (rows == [1])
        if rows != [1]:
            loss.backward()
            expected.backward()
            assert gap(ours.grad, plain.grad) < 1e-6


@pytest.mark.parametrize(
    ("sentence", "negation"),
    [
        ("CAN'T go", "CAN go"),
        ("Can't we go?", "Can we go?"),
        ("I do n't know.", "I do know."),
        ("DON'T ask.", "DO ask."),
        ("It is red.", "It is not red."),
    ],
)
def test_a_contraction_is_negated_in_any_case(sentence, negation):
    assert negate(sentence) == negation


SNCSE_VIEW = 'This sentence : " [X] " means [MASK] .'


def test_sncse_adds_the_bounds_to_infonce(bert_folder):
    columns = [SENT0, SENT0, [negate(text) for text in SENT0]]
    learner = learner_of("sncse", bert_folder, soft_weight=0.5)
    assert [encoder.template.text for encoder in learner.template_encoders] == [
        'This sentence : " [X] " means [MASK] .',
        'This sentence of " [X] " means [MASK] .',
    ]
    views = [view.tolist() for view in views_of(learner, columns)]
    expected = losses.infonce(
        views[0], views[1], [[]] * 5, 0.2, none_excluded(5, 5), [[[]] * 5] * 5
    ) + 0.5 * losses.soft_negative(*views, 0.1, 0.3)
    assert float(learner.objective.loss(views_of(learner, columns), columns)) == pytest.approx(
        expected, rel=1e-4
    )


def test_soft_negatives_are_given_or_made_by_rule(tiny_folder):
    settings, backbone = find_method("sncse", supervised=False).mini_bert_settings, None
    for columns, layout in (
        ((SENT0,), None),
        ((SENT0, SENT1), PAIRS),
        ((SENT0, SENT1, HARD), TRIPLETS),
    ):
        examples = TrainingExamples(tuple(map(list, columns)), "hash", layout=layout)
        chosen = SoftNegative.choose(examples, settings, backbone)
        assert chosen.columns[:2] == (SENT0, columns[min(1, len(columns) - 1)])
        given = HARD if layout == TRIPLETS else [""] * 5
        made = [text or negate(one) for text, one in zip(given, SENT0, strict=True)]
        assert chosen.columns[2] == made and all(made)


@pytest.mark.parametrize(
    ("sentence", "read"),
    [
        ("A dog barks", "A dog barks ."),
        ("It is 5", "It is 5 ."),
        ("A dog barks.", "A dog barks."),
        ("Stop!", "Stop!"),
        ("He left (early)", "He left (early)"),
        ("First;", "First;"),
        ("a $", "a $"),
        ("Er ging …", "Er ging …"),
        ("un café", "un café ."),
        ("猫が寝る", "猫が寝る。"),
        ("猫が寝る。", "猫が寝る。"),
        ("", ""),
    ],
)
def test_sncse_ends_a_sentence_as_its_authors_do_in_training_and_at_test(
    sentence, read, bert_folder
):
    learner = learner_of("sncse", bert_folder)
    at_test = learner.as_encoder()
    assert (at_test.recipe.period, at_test.recipe.prompt) == (False, SNCSE_VIEW)
    for view in [at_test, *learner.template_encoders]:
        plain = Recipe(prompt=view.recipe.prompt, period=False, pooling="last/mask")
        as_written = TorchEncoder(plain, learner.backbone, {})
        as_written.max_length = view.max_length
        assert view.inputs([sentence]).ids == as_written.inputs([read]).ids


def test_sncse_trains_and_shows_five_negated_sentences(bert_folder):
    options = {"backbone": str(bert_folder), "on": "demo:dev", "batch_size": 4}
    shown = pc.training_settings("sncse", SENTENCES, **options)["soft_negatives"]
    assert shown == [f"{text} -> {negate(text)}" for text in SENTENCES[:5]]
    trained = pc.train("sncse", SENTENCES, steps=2, **options)
    assert trained.entry.recipe.prompt == 'This sentence : " [X] " means [MASK] .'


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The men were playing.", "The men were not playing."),
        ("She can swim", "She can not swim"),
        ("He is not here.", "He is here."),
        ("It can't rain, and it won't.", "It can rain, and it won't."),
        ("They don\N{RIGHT SINGLE QUOTATION MARK}t like it", "They do like it"),
        ("Isn't it?", "Is it?"),
        ("A cat sleeps.", "Not A cat sleeps."),
        ("Cannot see", "Can see"),
        ("A cant is a hasp", "A cant is not a hasp"),
    ],
)
def test_sentences_are_negated_by_a_list_of_words(sentence, expected):
    assert negate(sentence) == expected


@pytest.mark.parametrize(("setting", "value"), [("hinge_weight", 10.0), ("mine", "mini")])
def test_sncse_refuses_what_needs_hard_negatives(setting, value):
    with refusal(f"{setting}: needs hard negatives, .* use promcse"):
        find_method("sncse", supervised=True).mini_bert_settings.replace(**{setting: value})
