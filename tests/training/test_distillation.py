"""Distillation: losses and the start map against plain loops and scipy.

Vectors made once, or read from a file.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

import promptcli as pc
from promptcli.data import demo
from promptcli.errors import NotFoundError, UsageError
from promptcli.models.loading import open_registry
from promptcli.training import teacher
from promptcli.training.methods import find_method
from promptcli.training.objectives.distillation import rotation_between
from promptcli.training.teacher import SentenceVectors, teacher_of
from promptcli.training.trainer import draw_batches
from tests.comparing import gap, refusal
from tests.reference.losses import guided_infonce, similarities_distance, vectors_distance
from tests.tiny import SENTENCES
from tests.training_steps import learner_of, mini_vectors, stopped_at, views_of

CORPUS = [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]]
SETTINGS = {"steps": 9, "eval_steps": 3, "batch_size": 16, "learning_rate": 3e-3, "warmup": 0.0}
TEMPLATE = 'It is "[X]" , a [MASK] .'


def drawn(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", ["vectors", "similarities"])
def test_the_loss_is_a_loops(target, bert_folder, tmp_path):
    columns = [SENTENCES[:5]]
    models = {"teacher": mini_vectors(columns, tmp_path)}
    learner = learner_of(
        "distill", bert_folder, models=models, target=target, similarity_weight=3.0
    )
    student, theirs = views_of(learner, columns)
    assert (student.shape, theirs.shape) == ((5, 16), (5, 16 if target == "vectors" else 256))
    expected = similarities_distance(student.tolist(), theirs.tolist())
    if target == "vectors":
        expected = vectors_distance(student.tolist(), theirs.tolist()) + 3 * expected
    assert learner.objective.loss((student, theirs), columns).item() == pytest.approx(
        expected, rel=1e-4
    )
    assert all(name.startswith("backbone.") for name in learner.trainable())  # no map learns
    single = [view[:1] for view in (student, theirs)]  # an epoch's last batch
    assert torch.isfinite(learner.objective.loss(single, [columns[0][:1]]))


HARD = ["", SENTENCES[10], "", SENTENCES[11], ""]


@pytest.mark.parametrize("guide", [True, False])
@pytest.mark.parametrize("hard", [[], [HARD], [HARD, ["", "It snows.", "A boat.", "", ""]]])
def test_pairs_add_a_contrastive_loss_that_the_teacher_guides(guide, hard, bert_folder, tmp_path):
    columns = [SENTENCES[:5], SENTENCES[5:10], *hard]
    models = {"teacher": mini_vectors(columns, tmp_path)}
    options = {
        "target": "similarities",
        "contrastive_weight": 0.5,
        "temperature": 0.3,
        "guide": guide,
    }
    learner = learner_of("distill", bert_folder, supervised=True, models=models, **options)
    views = views_of(learner, columns)
    present = [[row for row, text in enumerate(column) if text] for column in columns]
    student, theirs = (
        [view[rows].tolist() for view, rows in zip(side, present, strict=True)]
        for side in (views[: len(columns)], views[len(columns) :])
    )
    (one, *others), (their_one, *their_others) = student, theirs
    others, their_others = list(itertools.chain(*others)), list(itertools.chain(*their_others))
    masked = (their_one, their_others) if guide else ([[1.0]] * 5, [[1.0]] * len(others))
    expected = similarities_distance([*one, *others], [*their_one, *their_others])
    expected += 0.5 * guided_infonce(one, others, *masked, 0.3)
    assert learner.objective.loss(views, columns).item() == pytest.approx(expected, rel=1e-4)


def cosine_matrix(vectors):
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units @ units.T


def stored(vectors):
    kept = SentenceVectors(SENTENCES, str(vectors.shape[1]), vectors.shape[1])
    starts = range(0, len(vectors), teacher.PART_ROWS)
    kept.parts = [vectors[start : start + teacher.PART_ROWS] for start in starts]
    return kept


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_two_teachers_have_the_weighted_mean_of_their_cosines(weight, monkeypatch):
    monkeypatch.setattr(teacher, "PART_ROWS", 7)  # the moment is summed over parts
    count = len(SENTENCES)
    first, second = drawn(count, 12), 3 * drawn(count, 5)
    settings = find_method("distill", supervised=False).mini_bert_settings.replace(
        second_teacher="another", second_weight=weight
    )
    models = {"teacher": stored(first), "second_teacher": stored(second)}
    joined = teacher_of(models, settings)
    both = joined.encode(SENTENCES)
    assert both.shape == (count, joined.width) == (count, 17)
    expected = (1 - weight) * cosine_matrix(first) + weight * cosine_matrix(second)
    assert both @ both.T == pytest.approx(expected, abs=1e-5)
    moment = sum(np.outer(vector, vector) for vector in both) / count
    assert joined.second_moment() == pytest.approx(moment, abs=1e-5)
    alone = teacher_of({"teacher": stored(first)}, settings)
    assert alone.width == 12


@pytest.mark.parametrize(("theirs", "own"), [(12, 5), (5, 12), (7, 7)])
def test_the_start_map_is_a_projection_and_a_procrustes_turn(theirs, own):
    vectors, student = drawn(300, theirs), drawn(300, own)
    moment = sum(np.outer(vector, vector) for vector in vectors) / len(vectors)
    k = min(theirs, own)
    directions = np.linalg.svd(vectors, full_matrices=False)[2][:k].T
    padded = np.concatenate([vectors @ directions, np.zeros((300, own - k))], axis=1)
    projected = np.concatenate([directions, np.zeros((theirs, own - k))], axis=1)
    expected = projected @ orthogonal_procrustes(padded, student)[0]
    start = rotation_between(moment, vectors, student)
    assert start == pytest.approx(expected, abs=1e-4)
    kept = vectors @ start  # whose products are the projection's
    assert kept @ kept.T == pytest.approx(padded @ padded.T, abs=1e-2)


def test_a_static_student_is_its_word_embeddings(home):
    corpus = demo.SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:300]
    options = {"steps": 16, "eval_steps": 16, "batch_size": 64, "learning_rate": 4e-2}
    trained = pc.train(
        "distill", corpus, name="words", teacher="mini", pool="static/avg", **options
    )
    assert trained.entry.tensors.keys() == {"backbone.embeddings.word_embeddings.weight"}
    assert trained.scores["demo:dev"] > trained.untrained_scores["demo:dev"]
    words = pc.load("words").encode(SENTENCES)
    assert words == pytest.approx(trained.encoder.encode(SENTENCES), abs=1e-6)
    plain = pc.load(pc.Recipe(backbone="mini-bert", pooling="static/avg")).encode(SENTENCES)
    assert gap(words, plain) > 1e-2


def test_vectors_are_made_in_parts_and_read_by_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(teacher, "PART_ROWS", 5)
    vectors = mini_vectors([CORPUS, SENTENCES], tmp_path)
    distinct = list(dict.fromkeys([*CORPUS, *SENTENCES]))
    assert len(list(tmp_path.glob("*.npy"))) == -(-len(distinct) // 5)
    assert not any(part.flags.owndata for part in vectors.parts)  # memory-mapped
    plain = pc.load(pc.Recipe(backbone="mini-bert", pooling="last/avg"), device="cpu").encode(
        distinct
    )
    plain /= np.linalg.norm(plain, axis=1, keepdims=True)
    asked = [SENTENCES[3], CORPUS[40], SENTENCES[3]]
    expected = plain[[distinct.index(sentence) for sentence in asked]]
    assert vectors.encode(asked) == pytest.approx(expected, abs=2e-2)  # of bfloat16
    assert vectors.second_moment() == pytest.approx(plain.T @ plain / len(plain), abs=1e-2)


def test_batches_of_similar_lengths_are_every_example_once_an_epoch():
    settings = find_method("distill", supervised=False).mini_bert_settings.replace(batch_size=4)
    lengths = np.random.default_rng(0).integers(1, 100, 301)
    count = 76
    stream = draw_batches(settings, [301], lengths)
    first, second = ([next(stream).tolist() for _ in range(count)] for _ in range(2))
    assert [sorted(itertools.chain(*epoch)) for epoch in (first, second)] == [list(range(301))] * 2
    assert first != second
    assert first == [
        rows.tolist() for rows in itertools.islice(draw_batches(settings, [301], lengths), count)
    ]
    spread = np.mean([np.ptp(lengths[batch]) for batch in first])
    assert spread < 10
    middles = [lengths[batch].mean() for batch in first]
    assert middles != sorted(middles)


def test_a_run_killed_while_encoding_and_while_training_ends_at_the_same_numbers(
    bert_folder, monkeypatch
):
    monkeypatch.setattr(teacher, "PART_ROWS", 16)
    options = {
        "backbone": str(bert_folder),
        "teacher": "mini",
        "template": (TEMPLATE,),
        **SETTINGS,
    }
    expected = pc.train("distill", CORPUS, name="complete", **options)
    losses = [score.loss for score in expected.curve[1:]]
    assert losses[-1] < losses[0]
    assert expected.entry.recipe.pooling == "last/mask"
    assert expected.facts["teacher_fingerprint"] == pc.load("mini", device="cpu").fingerprint
    keep, kept = teacher.atomic_path, []

    def dies(path):
        kept.append(int(path.stem))
        if len(kept) == 2:
            raise KeyboardInterrupt
        return keep(path)

    monkeypatch.setattr(teacher, "atomic_path", dies)
    with pytest.raises(KeyboardInterrupt):
        pc.train("distill", CORPUS, name="killed", **options)
    with stopped_at(monkeypatch, 7), pytest.raises(KeyboardInterrupt):
        pc.train("distill", CORPUS, name="killed", resume=True, **options)
    assert kept == [0, 16, 16, 32]  # the first one stayed
    with refusal("was started with teacher 'mini'"):
        pc.train(
            "distill", CORPUS, name="killed", resume=True, **{**options, "teacher": "mini-static"}
        )
    resumed = pc.train("distill", CORPUS, name="killed", resume=True, **options)
    assert kept == [0, 16, 16, 32]
    assert resumed.scores == expected.scores
    assert all(
        torch.equal(tensor, resumed.entry.tensors[name])
        for name, tensor in expected.entry.tensors.items()
    )


@pytest.fixture
def corpus(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("".join(f"{sentence}\n" for sentence in CORPUS))
    pc.embed(file, tmp_path / "vectors.npy", "mini-static")
    return file


def test_a_file_of_vectors_is_a_teacher(corpus, tmp_path, bert_folder):
    other = tmp_path / "other.npy"  # another program's: it has no manifest
    np.save(other, np.load(tmp_path / "vectors.npy").astype(np.float16))
    for file in (tmp_path / "vectors.npy", other):
        trained = pc.train(
            "distill", corpus, backbone=str(bert_folder), teacher=str(file), **SETTINGS
        )
        losses = [score.loss for score in trained.curve[1:]]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("method", ["distill", "rankcse"])
def test_a_model_and_a_file_of_another_width_teach_together(method, corpus, tmp_path, tiny_folder):
    options = {"backbone": str(tiny_folder("bert")), "teacher": str(tmp_path / "vectors.npy")}
    scores = {}
    for second in ("", str(tiny_folder("roberta"))):
        trained = pc.train(method, corpus, **options, second_teacher=second, **SETTINGS)
        losses = [score.loss for score in trained.curve[1:]]
        assert losses[-1] < losses[0]
        scores[second] = losses
    assert trained.facts["second_teacher_fingerprint"]
    assert len(set(map(tuple, scores.values()))) == 2


def with_nan(tmp_path):
    vectors = np.load(tmp_path / "vectors.npy")
    vectors[17] = np.nan
    np.save(tmp_path / "nan.npy", vectors)
    return "nan.npy"


def of_other_sentences(folder):
    (folder / "others.txt").write_text("".join(f"{sentence}\n" for sentence in CORPUS[::-1]))
    pc.embed(folder / "others.txt", folder / "others.npy", "mini-static")
    return "others.npy"


#: The changed options, made from the folder of ``corpus``, the error and its message.
REFUSED = {
    "no teacher": (lambda folder: {"teacher": ""}, UsageError, "teacher: give a model"),
    "nobody": (lambda folder: {"teacher": "nobody"}, NotFoundError, "no local model 'nobody'"),
    "no file": (
        lambda folder: {"teacher": "none.npy"},
        NotFoundError,
        "'none.npy' cannot be opened",
    ),
    "no second file": (
        lambda folder: {"second_teacher": "none.npy"},
        NotFoundError,
        "'none.npy' cannot be opened",
    ),
    "weight of nobody": (
        lambda folder: {"second_weight": 0.3},
        UsageError,
        "second_weight: needs second_teacher",
    ),
    "second teacher of others": (
        lambda folder: {"second_teacher": of_other_sentences(folder)},
        UsageError,
        "others.npy holds vectors of other sentences than",
    ),
    "nan": (
        lambda folder: {"teacher": with_nan(folder)},
        UsageError,
        "nan.npy has vectors with NaN",
    ),
    "ten lines": (
        lambda folder: {"data": CORPUS[:10], "teacher": "mini"},
        UsageError,
        "10 examples are fewer than",
    ),
    "other count": (
        lambda folder: {"data": CORPUS[:40]},
        UsageError,
        "has 48 vectors, but list has 40 sentences",
    ),
    "others": (
        lambda folder: {"data": CORPUS[::-1]},
        UsageError,
        "holds vectors of other sentences than list",
    ),
    "pairs": (
        lambda folder: {"data": list(zip(CORPUS, CORPUS, strict=True))},
        UsageError,
        "other sentences",
    ),
    "no pairs": (
        lambda folder: {"contrastive_weight": 1.0},
        UsageError,
        "contrastive_weight: needs pairs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_teacher_that_cannot_teach_is_refused(case, corpus, here, bert_folder):
    change, error, message = REFUSED[case]
    options = {
        "data": corpus,
        "teacher": "vectors.npy",
        "backbone": str(bert_folder),
        **SETTINGS,
    }
    with pytest.raises(error, match=message) as caught:
        pc.train("distill", name="mine", offline=True, **options | change(here))
    assert "\n" not in str(caught.value)
    assert not [*open_registry().run_folder("mine").parent.glob("*")]


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("target", ["vectors", "similarities"])
def test_the_teacher_reads_another_column(number, target, bert_folder, tmp_path):
    columns = [SENTENCES[:4], SENTENCES[4:8], SENTENCES[8:12]][:number]
    models = {"teacher": mini_vectors(columns[-1:], tmp_path)}
    options = {"target": target, "similarity_weight": 3.0, "target_column": number}
    learner = learner_of("distill", bert_folder, True, models=models, **options)
    assert list(models["teacher"].rows) == columns[-1]
    student, theirs = views_of(learner, columns)
    alone = learner_of("distill", bert_folder, True, models=models, target=target)
    assert torch.allclose(student, alone.hidden(alone.tokenize(columns[:1])).float(), atol=1e-6)
    vectors = torch.from_numpy(models["teacher"].encode(columns[-1]))
    if target == "vectors":
        vectors = vectors @ learner.objective.map
    assert torch.allclose(theirs, vectors, atol=1e-5)
    expected = similarities_distance(student.tolist(), theirs.tolist())
    if target == "vectors":
        expected = vectors_distance(student.tolist(), theirs.tolist()) + 3 * expected
    assert learner.objective.loss((student, theirs), columns).item() == pytest.approx(
        expected, rel=1e-4
    )


PAIRED = [(one, other) for one in CORPUS for other in SENTENCES[:1]]


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (CORPUS, {"target_column": 2}, "does not exist: the examples have 1 column"),
        (PAIRED, {"target_column": 3}, "does not exist: the examples have 2 columns"),
        (PAIRED, {"target_column": 2, "contrastive_weight": 1.0}, "compares the columns"),
    ],
)
def test_a_column_without_texts_is_refused(data, changes, message, bert_folder):
    options = {"teacher": "mini", "backbone": str(bert_folder), **SETTINGS, **changes}
    with refusal(message):
        pc.train("distill", data=data, name="mine", offline=True, **options)


def test_a_student_learns_from_a_teacher_of_answers(bert_folder, tmp_path):
    options = {"teacher": "mini-static", "backbone": str(bert_folder), **SETTINGS}
    trained = pc.train(
        "distill", data=PAIRED, name="answers", offline=True, target_column=2, **options
    )
    assert trained.facts["settings"]["target_column"] == 2
    files = open_registry().run_folder("answers").rglob("*.npy")
    assert not any(len(np.load(file)) > 1 for file in files)  # the one answer of all


def test_a_student_whose_pooling_is_narrower_than_its_backbone(tiny_folder, tmp_path):
    """Values of grouped queries: 8 numbers of a backbone of 16; the teacher has 16, too."""
    columns = [SENTENCES[:5]]
    vectors = SentenceVectors(columns[0], "teacher", 16)
    vectors.parts = [drawn(5, 16)]
    learner = learner_of(
        "distill", tiny_folder("llama"), models={"teacher": vectors}, pool="values/avg"
    )
    student, theirs = views_of(learner, columns)
    assert student.shape == theirs.shape == (5, 8)
    learner.objective.loss((student, theirs), columns).backward()
    values = [name for name, tensor in learner.trainable().items() if "v_proj" in name]
    assert values and all(learner.trainable()[name].grad.any() for name in values[1:])


def test_a_student_reads_blocks_of_a_text_as_its_encoder_does(tiny_folder, tmp_path):
    texts = ["The cat sleeps. Rain falls.", "It is old!"]
    learner = learner_of(
        "distill",
        tiny_folder("llama"),
        models={"teacher": mini_vectors([texts], tmp_path)},
        target="similarities",
        template=("token-prepending:1-3;sentences:[X]",),
        pool="last/content-avg",
    )
    student, _ = views_of(learner, [texts])
    encoder = learner.template_encoders[0]
    assert gap(student.detach().numpy(), encoder.encode(texts)) < 1e-5
