"""The library: every name loads on first use, its examples run, what cannot be met is refused."""

import doctest
import importlib
import inspect
import pkgutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import promptcli as pc
from promptcli.data.arguments import as_texts
from promptcli.embedding import compare_rows
from promptcli.models.loading import open_encoder
from promptcli.plugins.serve.settings import ServeSettings
from tests.comparing import refusal
from tests.public import PUBLIC
from tests.tiny import SENTENCES


@pytest.fixture(scope="module")
def encoder():
    return pc.load(pc.RECIPES["prompt"], device="cpu")


def test_every_name_loads():
    assert all(getattr(pc, name) is not None for name in pc.__all__)
    with pytest.raises(AttributeError, match="embedd"):
        pc.embedd  # noqa: B018


@pytest.mark.parametrize(
    "others", [["mini", "mini-static"], ["mini-static", "mini"], ["last-avg", "mini", "prompt"]]
)
def test_a_tuned_backbone_is_no_other_models(others):
    alone = {name: pc.load(name).encode(SENTENCES) for name in others}
    made = {}
    for name in others:
        made[name] = open_encoder(name, backbone_donors=made.values())
    for name, vectors in alone.items():
        np.testing.assert_allclose(made[name].encode(SENTENCES), vectors, atol=1e-6)
    shared = [one.loaded_backbone for name, one in made.items() if name != "mini"]
    assert len(set(map(id, shared))) == 1


@pytest.mark.parametrize("name", pc.__all__)
def test_a_public_name_is_the_object_of_its_module(name):
    module = importlib.import_module(PUBLIC[name])
    public = getattr(pc, name)
    assert public is getattr(module, name)
    if inspect.isfunction(public):
        assert inspect.getsource(public).startswith(f"def {name}(") and inspect.getdoc(public)


@pytest.mark.parametrize(
    "name",
    [
        "promptcli",
        "promptcli.models.loading",
        "promptcli.training",
        "promptcli.encoder.sentence_encoder",
        "promptcli.grammar",
    ],
)
def test_the_examples_of_the_docstrings_run(name):
    ran = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert ran.attempted and not ran.failed


def test_load_takes_an_entry_a_recipe_and_a_folder(bert_folder, tmp_path):
    folder = bert_folder
    recipe = pc.Recipe(backbone=str(folder), pooling="last/cls")
    pc.load(recipe).register("mine")
    file = tmp_path / "mine.json"
    file.write_text(recipe.to_json())
    vectors = [pc.load(choice, device="cpu").encode(SENTENCES) for choice in ("mine", recipe, file)]
    assert all(np.array_equal(one, vectors[0]) for one in vectors)
    assert pc.load(folder).recipe.pooling == "first-last/avg"
    assert pc.load("cls").recipe.pooling == "last/cls"
    names = [model.name for model in pc.list_models()]
    assert names == ["mini", "mini-static", "mini-multi", "mine"]
    with refusal("'mine' exists", pc.PromptcliError):
        pc.load(recipe).register("mine")
    pc.load(recipe).register("mine", force=True)


def test_the_defaults_of_the_command_line_are_not_the_librarys(run, bert_folder):
    assert run("config", "backbone", bert_folder).code == 0
    assert pc.load("last-avg", device="cpu").recipe.backbone == "mini-bert"


def test_keywords_of_sentence_transformers_may_be_none(bert_folder):
    encoder = pc.load("last-avg", backbone=str(bert_folder), device="cpu")
    for encode in (encoder.encode, encoder.encode_query, encoder.encode_document):
        assert encode(["a cat"], pool=None, chunk_size=None).shape == (1, 16)
    with pytest.raises(TypeError, match=r"takes no pool$"):
        encoder.encode(["a cat"], chunk_size=None, pool={"input": 1})


def test_an_unknown_name_lists_the_known_ones():
    listed = "mini, mini-static, mini-multi, static"
    with refusal(rf"'minni'; did you mean mini\?.*{listed}", pc.NotFoundError):
        pc.load("minni", offline=True)
    with refusal("nowhere", pc.NotFoundError):
        pc.load("./nowhere", offline=True)
    for model in (None, 3):
        with refusal("is not a model"):
            pc.load(model)


def test_encode_takes_what_sentence_transformers_takes(encoder, capsys):
    plain = encoder.encode(SENTENCES)
    assert plain.dtype == np.float32 and plain.shape == (
        len(SENTENCES),
        encoder.get_sentence_embedding_dimension(),
    )
    assert np.array_equal(encoder.encode(SENTENCES[0]), encoder.encode(SENTENCES[:1])[0])
    np.testing.assert_allclose(encoder.encode(SENTENCES, batch_size=2), plain, atol=2e-5)
    tensor = encoder.encode(SENTENCES, convert_to_tensor=True)
    assert (
        isinstance(tensor, torch.Tensor)
        and tensor.device == encoder.device
        and tensor.shape == plain.shape
    )
    rows = encoder.encode(SENTENCES, convert_to_numpy=False)
    assert isinstance(rows, list) and torch.equal(rows[1], tensor[1])
    lengths = np.linalg.norm(encoder.encode([*SENTENCES, ""], normalize_embeddings=True), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)
    assert torch.allclose(
        encoder.similarity(plain, plain).diagonal(), torch.ones(len(plain)), atol=1e-5
    )
    assert encoder.encode([]).shape == (0, encoder.width)
    assert capsys.readouterr().err == ""
    encoder.encode(SENTENCES, show_progress_bar=True)
    assert f"{len(SENTENCES)}/{len(SENTENCES)}" in capsys.readouterr().err


@given(st.lists(st.one_of(st.text(), st.integers(), st.none(), st.binary()), max_size=5))
def test_texts_are_kept_and_all_else_refused(given):
    wrong = [number for number, item in enumerate(given) if not isinstance(item, str)]
    if not wrong:
        assert as_texts(tuple(given)) == given
        return
    with refusal(f"sentence {wrong[0]} is", pc.PromptcliError):
        as_texts(given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda encoder: encoder.encode(["a"], precision="int8"), "int8"),
        (lambda encoder: encoder.encode(["a"], batch_size=0), "number from 1"),
        (
            lambda encoder: encoder.encode(["a"], truncate_dim=0),
            "truncate_dim: .*from 1, got 0",
        ),
        (
            lambda encoder: encoder.encode(["a"], batch_size=2.5),
            "batch_size: .*from 1, got 2.5",
        ),
        (lambda encoder: encoder.encode(["a"], truncate_dim=9999), "truncate_dim: must be at most"),
        (
            lambda _: pc.load("cls", transforms="truncate:999").encode(["a"]),
            "only 256",
        ),
        (lambda _: pc.load("static-avg", transforms="truncate:999").encode(["a"]), "only 256"),
        (lambda encoder: pc.embed(["a"], model=encoder, device="cpu"), "encoder.to"),
        (lambda _: pc.Encoder("mini"), "open a model with promptcli.load"),
        (lambda _: pc.load("mini", device=4.5), "unknown device '4.5'"),
        (lambda _: pc.load("mini", dtype=3), "unknown dtype '3'"),
        (
            lambda _: pc.load("mini", dtype="int8"),
            "dtype: int8 needs a backend, e.g. openvino-int8",
        ),
        (lambda _: pc.evaluate(None), "None is not a model"),
        (lambda _: pc.evaluate("mini", tasks=3), "tasks are int"),
        (lambda _: pc.train("simcse", data=SENTENCES, steps="1"), r"steps: '1' is not allowed"),
        (lambda _: pc.train("simcse", data=5), "examples are int"),
        (lambda _: pc.fit("whitening", on=5), "sentences are int"),
        (lambda _: pc.quantize(["a"], "int8"), "vectors must be numbers"),
        (lambda _: pc.search_heads(5), "5 is not a model"),
        (lambda _: as_texts(np.array("a")), "sentences are ndarray"),
    ],
)
def test_arguments_that_cannot_be_met_are_refused(call, message, encoder):
    with refusal(message):
        call(encoder)


@pytest.mark.parametrize(
    "call",
    [
        pc.load,
        lambda model: pc.save(model, "saved"),
        lambda model: pc.register(model, "mine"),
        lambda model: pc.export(model, "exported"),
        lambda model: pc.push(model, "me/mine"),
        lambda model: pc.embed(["a"], model=model),
        lambda model: pc.similarity("a", "b", model),
        lambda model: pc.evaluate(model or [model], ["demo"]),
        lambda model: pc.choose(["sentences.txt"], models=model or [model]),
        lambda model: pc.serve(model or [model], settings=ServeSettings(port=0)),
        lambda model: pc.SentenceIndex.build(["a"], model=model),
        lambda model: pc.fit(model, on=["a"]),
        pc.search_layers,
    ],
)
def test_no_function_takes_a_wrong_type_for_a_model(call):
    for model in (3, []):
        with refusal("is not a model"):
            call(model)


def test_a_name_can_be_saved_and_registered(tmp_path):
    pc.save("last-avg", tmp_path / "saved")
    pc.register("last-avg", "mine")
    vectors = [pc.load(model, device="cpu").encode(SENTENCES) for model in ("mine", "last-avg")]
    assert np.array_equal(*vectors) and pc.load(tmp_path / "saved").width == len(vectors[0][0])


def test_a_tensor_is_on_the_device_that_encoded_it(encoder, monkeypatch):
    elsewhere = encoder.shallow_copy()
    elsewhere._device_name = "meta"
    monkeypatch.setattr(encoder, "to", lambda device: elsewhere, raising=False)
    tensor = encoder.encode(SENTENCES, device="cuda:1", convert_to_tensor=True)
    assert tensor.device.type == "meta"


@pytest.mark.parametrize("device", [None, torch.device("cpu"), "cpu"])
def test_what_is_plainly_meant_works(device, encoder):
    same = pc.load(pc.RECIPES["prompt"], device=device, dtype=torch.float32 if device else None)
    vectors = same.encode(
        np.array(SENTENCES), batch_size=np.int64(4), device=device, precision=None
    )
    np.testing.assert_array_equal(vectors, encoder.encode(SENTENCES, batch_size=4))
    np.testing.assert_array_equal(
        same.encode(SENTENCES, truncate_dim=5), encoder.encode(SENTENCES)[:, :5]
    )


def test_several_threads_may_encode(encoder):
    parts = [[f"{sentence} {number}" for sentence in SENTENCES * 3] for number in range(6)]
    barrier = threading.Barrier(len(parts))

    def work(part):
        barrier.wait()
        return encoder.encode(part)

    with ThreadPoolExecutor(len(parts)) as pool:
        for vectors, part in zip(pool.map(work, parts), parts, strict=True):
            np.testing.assert_allclose(vectors, encoder.encode(part), atol=1e-5)


def test_an_encoder_is_a_transformer_of_scikit_learn(encoder):
    linear_model = pytest.importorskip("sklearn.linear_model")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import Pipeline, make_pipeline

    texts = ["good film", "bad film", "a fine play", "an awful play"] * 4
    labels = [1, 0] * 8
    model = make_pipeline(encoder, linear_model.LogisticRegression())
    assert model.fit(texts, labels).predict(["good film"]).tolist() == [1]
    assert len(cross_val_score(model, texts, labels, cv=2)) == 2
    make_pipeline(encoder).transform(texts)  # is fitted as it is
    assert np.array_equal(encoder.fit(texts).transform(texts), encoder.encode(texts))
    assert np.array_equal(encoder.fit_transform(texts, labels), encoder.encode(texts))

    steps = [("encoder", pc.load("mini-static")), ("classify", linear_model.LogisticRegression())]
    grid = GridSearchCV(Pipeline(steps), {"encoder__model": ["mini", "mini-static"]}, cv=2)
    grid.fit(texts, labels)
    assert steps[0][1].name == "mini-static"  # the copies changed
    best = grid.best_estimator_.named_steps["encoder"]
    wanted = pc.load(grid.best_params_["encoder__model"])
    assert np.array_equal(best.transform(texts), wanted.encode(texts))

    copied = clone(encoder).set_params(model="mini-static")
    assert np.array_equal(copied.encode(texts), pc.load("mini-static").encode(texts))
    assert encoder.get_params() == {"model": encoder} and encoder.set_params() is encoder
    with pytest.raises(ValueError, match="pooling"):
        encoder.set_params(pooling="last/avg")


def test_similarity_means_one_thing(encoder):
    first, second = ["a cat", "a dog"], ["a cat", "the sea", "rain"]
    cosines = pc.similarity(first, second, encoder)
    assert cosines.shape == (2, 3) and cosines[0, 0] == pytest.approx(1, abs=1e-5)
    assert np.array_equal(encoder.similarity(first, second), cosines)
    of_vectors = encoder.similarity(encoder.encode(first), encoder.encode(second))
    np.testing.assert_allclose(of_vectors.numpy(), cosines, atol=1e-6)
    one = pc.similarity("a dog", "the sea", encoder)
    assert one == encoder.similarity("a dog", "the sea") == pytest.approx(cosines[1, 1], abs=1e-5)
    assert pc.similarity("a dog", second, encoder).shape == (1, 3)
    for empty, others in (([], []), ([], second)):
        cosines = encoder.similarity(empty, others)
        assert isinstance(cosines, np.ndarray) and cosines.shape == (0, len(others))
    rows = compare_rows("a dog", "the sea", encoder)
    assert [row[2] for row in rows] == pytest.approx([one], abs=1e-5)


@pytest.mark.parametrize("name", ["mini", "mini-static"])
def test_asking_what_an_encoder_has_computes_nothing(name, monkeypatch):
    opened = pc.load(name)
    for computing in ("encode_report", "encode_windows"):
        monkeypatch.setattr(type(opened), computing, None)
    if name == "mini-static":
        monkeypatch.setattr(opened, "on_torch", None)
    assert hasattr(opened, "fit_transform") and not hasattr(opened, "nothing_like_it")
    assert name == "mini" or not hasattr(opened, "backbone")
    assert repr(opened).startswith("Encoder('mini") and "cpu" in repr(opened)


def test_a_name_gives_one_set_of_vectors(encoder, tmp_path):
    (tmp_path / "texts.txt").write_text("a cat\nthe sea", encoding="utf-8")
    vectors = pc.load("mini").encode(["a cat", "the sea"])
    np.testing.assert_array_equal(pc.embed(["a cat", "the sea"], model="mini"), vectors)
    pc.embed(tmp_path / "texts.txt", tmp_path / "v.npy", model="mini")
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), vectors)


def test_texts_become_an_array(encoder):
    vectors = pc.embed(["a cat", "the sea"], model=encoder, normalize=True)
    assert vectors.dtype == np.float32 and vectors.shape == (2, encoder.width)
    assert np.allclose(vectors, encoder.encode(["a cat", "the sea"], normalize_embeddings=True))
    with refusal("a list of texts is returned as an array"):
        pc.embed(["a cat"], "v.npy", encoder)
    with refusal("a list of texts is returned as an array"):
        pc.embed(["a cat"], model=encoder, force=True)


def test_search_train_and_fit_take_texts_and_a_device(bert_folder):
    assert pc.search("rain", ["It rains.", "The sun shines."])[0].text == "It rains."
    given = {"backbone": str(bert_folder), "device": "cpu"}
    trained = pc.train("simcse", data=SENTENCES * 4, batch_size=4, steps=1, **given)
    assert trained.encoder.encode(SENTENCES).shape == (len(SENTENCES), 16)
    fitted = pc.fit("first-last-tfidf", on=SENTENCES, device="cpu")
    assert fitted.encode(SENTENCES).shape[0] == len(SENTENCES)


def test_train_is_the_command(run, bert_folder, tmp_path):
    data = tmp_path / "text.txt"
    data.write_text("\n".join(SENTENCES * 4))
    typed = ["simcse", "--data", data, "--backbone", bert_folder, "--steps", 2]
    typed += ["--batch-size", 8, "--set", "eval-steps=1"]
    told = run("train", *typed, "--name", "typed", "--json").json
    settings = {"steps": 2, "eval_steps": 1, "batch_size": 8, "backbone": str(bert_folder)}
    trained = pc.train("simcse", str(data), **settings).to_dict()
    assert told["command"].startswith("promptcli train simcse")
    ours = {"seconds": 0, "command": None, "model": None}
    assert {**told, **ours} == {**trained, **ours}
    shown = run("train", *typed, "--dry-run", "--json").json
    assert pc.training_settings("simcse", str(data), **settings) == shown


def test_no_module_hides_a_name_of_the_library():
    assert not {module.name for module in pkgutil.iter_modules(pc.__path__)} & set(pc.__all__)


def test_an_opened_model_is_scored_under_its_name():
    plain = pc.load(pc.Recipe(pooling="last/avg"))
    scores = pc.evaluate([pc.load("mini-static"), plain], tasks=["demo"])
    assert [score.label.model for score in scores] == ["mini-static", "mini-bert"]
