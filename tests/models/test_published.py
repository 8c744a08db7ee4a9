"""The models that people type first: folders of their files and configurations load equal to
sentence-transformers.
"""

import functools
import importlib.util
import itertools
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import promptcli as pc
from promptcli.backbones.published_backbones import PUBLISHED, PublishedBackbone, Shape
from tests.comparing import gap, refusal
from tests.published_folders import MODELS, MODULES, save_body, save_published, write
from tests.reference import sentence_transformers_folder
from tests.tiny import SENTENCES

TEXTS = [
    *SENTENCES,
    *(" ".join(["dog runs ,"] * count) for count in (2, 9, 50, 130, 200)),
    "Straße 12.",
    "A\nB",
]
TEXTS += ["  two spaces  around it  ", "\tA tab, and a line\n", " "]
INSTALLED = importlib.util.find_spec("sentence_transformers") is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a published model's folder by name; made once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = save_published(name, tmp_path_factory.mktemp("published") / name)
        return made[name]

    return get


def close(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return (np.sum(ours * theirs, axis=1) / lengths).min() >= 0.9999 and gap(ours, theirs) < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model_is_read_as_it_says(folder, name):
    path = folder(name)
    ours, prompts = pc.load(path, device="cpu", dtype="float32"), MODELS[name].prompts or {}

    @functools.cache
    def wanted(prompt):
        return sentence_transformers_folder.vectors(path, [prompt + text for text in TEXTS])

    assert close(ours.encode(TEXTS), wanted(""))
    for named, prompt in prompts.items():
        assert close(ours.encode(TEXTS, prompt_name=named), wanted(prompt))
    assert close(ours.encode_query(TEXTS), wanted(prompts.get("query", "")))
    assert close(ours.encode_document(TEXTS), wanted(prompts.get("document", "")))
    if not INSTALLED:
        return
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(path), device="cpu")
    for encode in ("encode", "encode_query", "encode_document"):
        assert close(getattr(ours, encode)(TEXTS), getattr(theirs, encode)(TEXTS))
    assert (ours.max_seq_length, dict(ours.prompts)) == (theirs.max_seq_length, theirs.prompts)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if not model.lower])
def test_special_tokens_may_be_typed(folder, name):
    """Those of a model whose texts are lower-cased stay special in sentence-transformers, unlike in
    the reference.
    """
    path = folder(name)
    tokens = [
        token["content"]
        for token in json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    ]
    forms = (
        "a {} cat",
        "{}",
        "a{}cat",
        "a {}cat",
        "{}cat",
        "{} cat",
        "the cat {} {} a dog",
        "the cat{}{}dog",
        "cat {} ",
    )
    texts = ["", *(form.replace("{}", token) for form in forms for token in tokens)]
    ours = pc.load(path, device="cpu", dtype="float32").encode(texts)
    theirs = sentence_transformers_folder.vectors(path, texts)
    far = np.abs(ours - theirs).max(axis=1) > 1e-4 * np.abs(theirs).max()
    assert list(itertools.compress(texts, far)) == []


def edited(folder, path, file, changes):
    """Copy a folder and change fields of one of its files."""
    shutil.copytree(folder, path)
    write(path, file, {**json.loads((path / file).read_text()), **changes})
    return path


@pytest.mark.parametrize(
    ("name", "file", "changes", "expected"),
    [
        (
            "all-MiniLM-L6-v2",
            "config_sentence_transformers.json",
            {"truncate_dim": 5},
            lambda vectors: vectors[:, :5],
        ),
        (
            "modernbert-embed-base",
            "sentence_bert_config.json",
            {"do_lower_case": True},
            lambda vectors: vectors,
        ),
        (
            "gte-modernbert-base",
            "tokenizer_config.json",
            {"truncation_side": "left"},
            lambda vectors: vectors,
        ),
    ],
)
def test_what_a_folder_declares_is_obeyed(folder, tmp_path, name, file, changes, expected):
    short = edited(
        folder(name), tmp_path / "short", "sentence_bert_config.json", {"max_seq_length": 40}
    )
    path = edited(short, tmp_path / "model", file, changes)
    ours, prompts = pc.load(path, device="cpu", dtype="float32"), MODELS[name].prompts or {}
    for prompt in (None, *(["search_query"] if prompts else [])):
        read = sentence_transformers_folder.vectors(
            path, [prompts.get(prompt, "") + text for text in TEXTS]
        )
        assert close(ours.encode(TEXTS, prompt_name=prompt), expected(read))
    other = pc.load(short).encode(TEXTS)
    assert other.shape != (len(TEXTS), ours.width) or not close(ours.encode(TEXTS), other)
    if INSTALLED:
        from sentence_transformers import SentenceTransformer

        typed = [*TEXTS, "A typed [SEP] and a [MASK]."]
        assert close(ours.encode(typed), SentenceTransformer(str(path), device="cpu").encode(typed))


@pytest.mark.parametrize(
    ("name", "file", "changes"),
    [
        ("all-MiniLM-L6-v2", "tokenizer_config.json", {"split_special_tokens": True}),
        (
            "all-MiniLM-L6-v2",
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"padding": True}}},
        ),
        ("all-MiniLM-L6-v2", "config_sentence_transformers.json", {"truncate_dim": "many"}),
        ("embeddinggemma-300m", "2_Dense/config.json", {"use_residual": True}),
        ("embeddinggemma-300m", "2_Dense/config.json", {"module_input_name": "token_embeddings"}),
    ],
)
def test_what_a_folder_declares_and_is_not_supported_is_refused(
    folder, tmp_path, name, file, changes
):
    (field,) = changes
    with refusal(rf"{field}\b"):
        pc.load(edited(folder(name), tmp_path / "model", file, changes))


def test_a_model_with_code_of_its_own_is_refused(tmp_path):
    path = save_published("e5-base-v2", tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    write(
        path,
        "config.json",
        {**config, "model_type": "nomic_bert", "auto_map": {"AutoModel": "modeling.Model"}},
    )
    with refusal("remote code, which is never run"):
        pc.load(path)


def test_an_author_s_checkpoint_is_told_by_its_content(tmp_path, notes, monkeypatch):
    config, fields, tokenizer, *_ = MODELS["all-MiniLM-L6-v2"]
    folder = tmp_path / "sup-simcse-bert-base-uncased"
    save_body(folder, config, fields, tokenizer)
    assert pc.load(folder, device="cpu").recipe.pooling != "last/cls"  # its name alone says nothing
    width, layers = fields["hidden_size"], fields["num_hidden_layers"]
    stored = json.loads((folder / "config.json").read_text())
    heads, rows = stored["num_attention_heads"], stored["vocab_size"]
    released = PublishedBackbone(Shape("bert", width, layers, heads, rows), ("",))
    monkeypatch.setitem(PUBLISHED, "bert-base-uncased", released)
    recipe = pc.load(folder, device="cpu").recipe
    assert (recipe.pooling, recipe.transforms, recipe.prompt) == (
        "last/cls",
        ("cls-pooler",),
        "[X]",
    )
    assert "is taken for a" in notes.text and "supervised by its name" in notes.text


def with_adapter(folder, tmp_path):
    """Write a sentence-transformers folder whose language model is a LoRA, and the same with the
    LoRA merged.
    """
    adapted, merged = tmp_path / "adapted", tmp_path / "merged"
    shutil.copytree(folder("all-MiniLM-L6-v2"), merged)
    shutil.copytree(merged, adapted)
    (adapted / "base").mkdir()
    for file in ("config.json", "model.safetensors"):
        (adapted / file).rename(adapted / "base" / file)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(adapted / file, adapted / "base" / file)
    weights = load_file(merged / "model.safetensors")
    layer = "encoder.layer.0.attention.self.query"
    weight = weights[f"{layer}.weight"]
    generator = torch.Generator().manual_seed(0)
    down, up = (
        torch.randn(shape, generator=generator)
        for shape in ((2, weight.size(1)), (weight.size(0), 2))
    )
    weights[f"{layer}.weight"] = weight + 6 / 2 * up @ down
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    halves = {"A": down, "B": up}
    stored = {
        f"base_model.model.{layer}.lora_{half}.weight": tensor for half, tensor in halves.items()
    }
    save_file(stored, adapted / "adapter_model.safetensors")
    write(
        adapted,
        "adapter_config.json",
        {"peft_type": "LORA", "lora_alpha": 6, "base_model_name_or_path": "base"},
    )
    return adapted, merged


def test_the_modules_of_an_adapter_are_read(folder, tmp_path, home):
    adapted, merged = with_adapter(folder, tmp_path)
    wanted = sentence_transformers_folder.vectors(merged, TEXTS)
    ours = pc.load(adapted, device="cpu", dtype="float32")
    assert close(ours.encode(TEXTS), wanted)
    assert ours.recipe.transforms == ("normalize",) and ours.recipe.pooling == "last/avg"
    assert not close(
        pc.load(folder("all-MiniLM-L6-v2"), device="cpu", dtype="float32").encode(TEXTS), wanted
    )
    pc.import_model(adapted, "adapted")
    ours.save(tmp_path / "saved")
    shutil.rmtree(adapted)
    for kept in ("adapted", tmp_path / "saved"):
        assert close(pc.load(kept, device="cpu", dtype="float32").encode(TEXTS), wanted)


def without_modules(path):
    (path / "modules.json").unlink()


def reranker(path):
    write(
        path, "modules.json", [{"idx": 0, "name": "0", "path": "", "type": f"{MODULES}Transformer"}]
    )
    write(path, "sentence_bert_config.json", {"transformer_task": "sequence-classification"})


def older_reranker(path):
    (path / "modules.json").unlink()
    shutil.rmtree(path / "1_Pooling")
    config = json.loads((path / "config.json").read_text())
    write(path, "config.json", {**config, "architectures": ["BertForSequenceClassification"]})


def of_tensorflow(path):
    (path / "model.safetensors").rename(path / "tf_model.h5")


def of_flax(path):
    (path / "model.safetensors").rename(path / "flax_model.msgpack")


def prompt_tuning(path):
    (path / "config.json").unlink()
    (path / "modules.json").unlink()
    write(
        path,
        "adapter_config.json",
        {"peft_type": "PROMPT_TUNING", "base_model_name_or_path": "owner/name"},
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (without_modules, "has 1_Pooling and no modules.json, .* give it as the backbone"),
        (reranker, "is a reranker or a classifier"),
        (older_reranker, "is a reranker or a classifier.* give it as the backbone"),
        (of_tensorflow, "in tf_model.h5 only, which is of another program; use"),
        (of_flax, "in flax_model.msgpack only"),
        (prompt_tuning, "is a PROMPT_TUNING adapter of peft, which is not supported"),
    ],
)
def test_what_is_something_else_is_told_by_its_name(spoil, message, folder, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(folder("all-MiniLM-L6-v2"), path)
    spoil(path)
    with refusal(message):
        pc.load(path)


@pytest.mark.parametrize("spoil", [without_modules, older_reranker])
def test_the_language_model_of_such_a_folder_is_a_backbone(spoil, folder, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(folder("all-MiniLM-L6-v2"), path)
    spoil(path)
    assert pc.load("last-avg", backbone=str(path), device="cpu").encode("a dog").shape == (16,)


@pytest.mark.parametrize("name", ["e5-base-v2", "embeddinggemma-300m"])
def test_what_was_read_is_saved_and_pickled(folder, tmp_path, name):
    encoder = pc.load(folder(name), device="cpu", dtype="float32")
    vectors = [encoder.encode(SENTENCES), encoder.encode_query(SENTENCES)]
    # nothing is lost
    pc.load(folder(name), device="cpu", dtype="bfloat16").save(tmp_path / "saved")
    again = pc.load(tmp_path / "saved", device="cpu", dtype="float32")
    assert again.prompts == encoder.prompts and again.fingerprint == encoder.fingerprint
    np.testing.assert_array_equal([again.encode(SENTENCES), again.encode_query(SENTENCES)], vectors)
    pickled = pickle.loads(pickle.dumps(encoder))
    assert pickled.name == encoder.name
    np.testing.assert_array_equal(pickled.encode_query(SENTENCES), vectors[1])


def test_the_owner_sentence_transformers_may_be_left_out(bert_folder, tmp_path, monkeypatch):
    repository = tmp_path / "models--sentence-transformers--tiny-L2"
    encoder = pc.load("last-avg", backbone=str(bert_folder))
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots").mkdir()
    encoder.save(repository / "snapshots" / "abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    opened = pc.load("tiny-L2")
    np.testing.assert_array_equal(opened.encode(SENTENCES), encoder.encode(SENTENCES))
    with refusal("no local model 'tiny-L3'", pc.NotFoundError):
        pc.load("tiny-L3")
