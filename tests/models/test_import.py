"""Imports: folders in the published layouts, made here, become entries with the vectors of their
authors' formula.
"""

import json
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.convert import convert_apart
from promptcli.backbones.model_folder import locate
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import NotFoundError, PromptcliError
from promptcli.models.foreign_formats import read_model
from promptcli.models.importing import import_model
from promptcli.models.loading import open_torch_encoder
from promptcli.models.saving import save
from promptcli.notes import without_network
from promptcli.recipe import Recipe
from tests.comparing import refusal
from tests.import_traps import imported_traps, write_traps
from tests.published_folders import write, write_modules
from tests.tiny import SENTENCES

WIDTH, LAYERS, HEADS, LENGTH = 16, 2, 4, 3
OF = 'This sentence of "[X]" means [MASK] .'


@pytest.fixture
def authors(bert_folder, tmp_path):
    """Return a function that makes a folder as training code saves it: the encoder under ``bert.``,
    and more.
    """

    def make(name, extra, *, pickled=False):
        folder = shutil.copytree(bert_folder, tmp_path / name)
        stored = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        stored = {key: value for key, value in stored.items() if key.startswith("bert.")} | extra
        config = json.loads((folder / "config.json").read_text())
        write(folder, "config.json", {**config, "architectures": ["BertForCL"]})
        if pickled:
            torch.save(stored, folder / "pytorch_model.bin")
        else:
            save_file(stored, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def vectors(registry, name):
    entry = registry.load(name)
    return build_encoder(entry.recipe, device="cpu", dtype="float32", tensors=entry.tensors).encode(
        SENTENCES
    )


def states(folder, text):
    """Return the last layer (t, d) of one text, by transformers alone."""
    ids = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        return ids[0], AutoModel.from_pretrained(folder).eval()(input_ids=ids).last_hidden_state[0]


def head(seed=0, norm=False):
    generator = torch.Generator().manual_seed(seed)
    made = {"mlp.dense.weight": (WIDTH, WIDTH), "mlp.dense.bias": (WIDTH,)}
    made |= {"mlp.LayerNorm.weight": (WIDTH,), "mlp.LayerNorm.bias": (WIDTH,)} if norm else {}
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in made.items()}


def kind_of(entry):
    return entry.provenance["imported"]["kind"]


def test_simcse_unsupervised_has_no_head_and_supervised_has_one(registry, authors, bert_folder):
    own = head()
    made = import_model(str(authors("my-unsup-simcse", own)), "unsup")
    assert (kind_of(made), made.recipe.pooling, made.recipe.transforms) == (
        "SimCSE checkpoint",
        "last/cls",
        (),
    )
    made = import_model(str(authors("my-sup-simcse", own)), "sup")
    assert made.recipe.transforms == ("projection:tanh",)
    for row, text in enumerate(SENTENCES[:4]):
        state = states(bert_folder, text)[1][0]
        np.testing.assert_allclose(vectors(registry, "unsup")[row], state, atol=1e-5)
        expected = torch.tanh(own["mlp.dense.weight"] @ state + own["mlp.dense.bias"])
        np.testing.assert_allclose(vectors(registry, "sup")[row], expected, atol=1e-5)


@pytest.mark.parametrize("content", [{}, head()], ids=["class", "projection"])
def test_simcse_s_checkpoint_needs_no_name(registry, authors, content, notes):
    folder = authors("checkpoint-500", content)
    if content:  # another program's class
        config = json.loads((folder / "config.json").read_text())
        write(folder, "config.json", {**config, "architectures": ["BertModel"]})
    made = import_model(str(folder), "told")
    assert (kind_of(made), made.recipe.pooling) == ("SimCSE checkpoint", "last/cls")
    assert "read as an unsupervised one" in notes.text


def test_promptbert_is_read_at_its_mask(registry, authors, bert_folder):
    made = import_model(str(authors("unsup-PromptBERT", head())), "p")
    recipe = made.recipe
    assert (kind_of(made), recipe.prompt, recipe.pooling) == (
        "PromptBERT checkpoint",
        OF,
        "last/mask",
    )
    ids, layer = states(bert_folder, OF.replace("[X]", SENTENCES[0]))
    np.testing.assert_allclose(vectors(registry, "p")[0], layer[ids.tolist().index(4)], atol=1e-5)
    supervised = import_model(str(authors("sup-PromptBERT", head(norm=True))), "s")
    assert (supervised.recipe.transforms, supervised.recipe.denoise) == (
        ("projection:mlm",),
        "head",
    )
    assert np.isfinite(vectors(registry, "s")).all()


def test_promcse_s_prefix_is_a_deep_prefix(registry, authors, tiny_backbone):
    numbers = torch.randn(LENGTH, 2 * LAYERS * WIDTH, generator=torch.Generator().manual_seed(1))
    folder = authors("unsup-promcse", {"prefix_encoder.embedding.weight": numbers, **head()})
    made = import_model(str(folder), "prom")
    assert (kind_of(made), made.recipe.prompt) == ("PromCSE checkpoint", f"deep-prefix:{LENGTH}")
    # as its code reshapes: (p, 2 L, h, d/h), layer l takes the parts 2 l and 2 l + 1
    parts = numbers.view(LENGTH, 2 * LAYERS, HEADS, WIDTH // HEADS)
    stored = made.tensors["deep-prefix.keys_values"]
    for layer in range(LAYERS):
        for part in (0, 1):
            assert torch.equal(stored[layer, part], parts[:, 2 * layer + part].transpose(0, 1))
    short = authors(
        "broken-promcse", {"prefix_encoder.embedding.weight": numbers[:, :-2].contiguous()}
    )
    with refusal(r"64\)"):
        import_model(str(short), "broken")
    assert "broken" not in registry.names()


def test_weights_in_several_files_come_with_their_index(registry, tiny_folder, tmp_path):
    folder = shutil.copytree(tiny_folder("modernbert"), tmp_path / "sharded")
    (folder / "model.safetensors").unlink()
    AutoModel.from_pretrained(tiny_folder("modernbert")).save_pretrained(
        folder, max_shard_size="10KB"
    )
    assert len(list(folder.glob("*.safetensors"))) > 1
    import_model(str(folder), "whole")
    own = build_encoder(Recipe(str(folder)), device="cpu", dtype="float32")
    assert np.array_equal(vectors(registry, "whole"), own.encode(SENTENCES))


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_a_pickle_is_refused_then_converted_and_a_malicious_one_never_runs(
    registry, authors, run, tmp_path, bert_folder, monkeypatch
):
    folder = authors("unsup-simcse-pickled", head(), pickled=True)
    write_traps(folder)
    monkeypatch.chdir(folder)
    refused = run("models", "import", folder, "--name", "p")
    assert refused.code == 2 and "pytorch_model.bin" in refused.err and "--convert" in refused.err
    converted = run("models", "import", folder, "--name", "p", "--convert", "--json")
    assert converted.code == 0, converted.err
    assert (
        "a separate process" in converted.err
        and json.loads(converted.out)["recipe"]["pooling"] == "last/cls"
    )
    np.testing.assert_allclose(
        vectors(registry, "p")[0], states(bert_folder, SENTENCES[0])[1][0], atol=1e-5
    )
    assert not imported_traps(folder)
    sentinel = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Payload(sentinel)}))
    evil = run("models", "import", folder, "--name", "evil", "--convert")
    assert evil.code == 2 and "nothing in it was run" in evil.err and evil.err.count("\n") == 2
    assert not sentinel.exists() and "evil" not in registry.names()


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_file_that_is_not_a_pickle_is_not_converted(content, tmp_path):
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(content)
    with refusal("nothing in it was run: it is not a pickle, or it holds more than tensors$"):
        convert_apart(file, tmp_path / "model.safetensors")


def test_names_may_have_slashes_after_the_at(monkeypatch):
    asked = []

    def snapshot(repository, revision, **_):
        asked.append((repository, revision))
        raise FileNotFoundError

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    with without_network(), refusal("no local model", NotFoundError):
        locate("owner/name@refs/pr/5")
    assert asked == [("owner/name", "refs/pr/5")]


def test_links_out_of_a_foreign_folder_are_not_followed_except_those_of_the_hub_s_cache(
    registry, authors, tmp_path
):
    (tmp_path / "secret.txt").write_text("[PAD]\nsecret\n")
    folder = authors("my-unsup-simcse", head())
    (folder / "vocab_more.txt").symlink_to(tmp_path / "secret.txt")
    with refusal(r"vocab_more.txt is a link that leads out of the folder"):
        import_model(str(folder), "new")
    assert "new" not in registry.names()
    (folder / "vocab_more.txt").unlink()
    (folder / "vocab_more.txt").symlink_to("config.json")
    import_model(str(folder), "new")

    (folder / "vocab_more.txt").unlink()
    cached, blobs = (tmp_path / "models--me--mine" / name for name in ("snapshots/abc", "blobs"))
    cached.mkdir(parents=True)
    blobs.mkdir()
    for path in folder.iterdir():
        (cached / path.name).symlink_to(path.rename(blobs / f"of {path.name}"))
    import_model(str(cached), "cached")


def _modules(path):
    def change(folder):
        write_modules(folder, {"pooling_mode_mean_tokens": True}, [])
        listed = json.loads((folder / "modules.json").read_text())
        listed[0]["path"] = path.format(folder.parent)
        (folder / "modules.json").write_text(json.dumps(listed))

    return change


def _linked_module(folder):
    _modules("linked")(folder)
    (folder / "linked").symlink_to(folder.parent / "private")


def _field(file, **fields):
    def change(folder):
        path = folder / file
        content = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**content, **fields}))

    return change


def _promptcli_folder(**fields):
    def change(folder):
        save(build_encoder(Recipe(str(folder)), device="cpu"), folder.parent / "saved")
        shutil.rmtree(folder)
        (folder.parent / "saved").rename(folder)
        content = json.loads((folder / "promptcli.json").read_text())
        content["recipe"] |= {
            name: value.format(folder.parent) for name, value in fields.get("recipe", {}).items()
        }
        content["files"] |= fields.get("files", {})
        (folder / "promptcli.json").write_text(json.dumps(content))

    return change


OUTSIDE = {
    "a module by ..": (_modules("../private"), "leads out of the folder"),
    "a module by its path": (_modules("{}/private"), "leads out of the folder"),
    "a module by a link": (_linked_module, "leads out of the folder"),
    "a file of weights": (
        _field("model.safetensors.index.json", weight_map={"x": "../private/model.safetensors"}),
        "leads out of the folder",
    ),
    "a file of weights whose name is half a surrogate pair": (
        _field("model.safetensors.index.json", weight_map={"x": "\ud800"}),
        "is not a file's name",
    ),
    "a version of the tokenizer": (
        _field("tokenizer_config.json", fast_tokenizer_files=["../private/tokenizer.4.0.json"]),
        "leads out of the folder",
    ),
    "a file of a manifest": (
        _promptcli_folder(files={"../private/config.json": {"size": 1, "sha256": None}}),
        "leads out of it",
    ),
    "the backbone of a recipe": (
        _promptcli_folder(recipe={"backbone": "{}/private"}),
        "outside of the folder",
    ),
    "word vectors of a recipe": (
        _promptcli_folder(recipe={"backbone": "glove:/etc/passwd"}),
        "outside of the folder",
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_in_a_foreign_folder_leads_out_of_it(name, registry, bert_folder, tmp_path):
    change, message = OUTSIDE[name]
    shutil.copytree(bert_folder, tmp_path / "private")
    folder = shutil.copytree(bert_folder, tmp_path / "foreign")
    change(folder)
    for take in (
        lambda: import_model(str(folder), "new"),
        lambda: open_torch_encoder(read_model(locate(str(folder)))),
    ):
        with refusal(message, PromptcliError):
            take()
    assert "new" not in registry.names()


def test_an_adapter_s_base_in_its_own_folder_is_imported_with_it(registry, bert_folder, tmp_path):
    folder = tmp_path / "lora"
    shutil.copytree(bert_folder, folder / "base")
    write(
        folder,
        "adapter_config.json",
        {"base_model_name_or_path": "base", "peft_type": "LORA", "lora_alpha": 2},
    )
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_{}.weight"
    halves = {name.format("A"): torch.ones(2, WIDTH), name.format("B"): torch.ones(WIDTH, 2)}
    save_file(halves, folder / "adapter_model.safetensors")
    wanted = open_torch_encoder(read_model(locate(str(folder))), dtype="float32").encode(SENTENCES)
    import_model(str(folder), "new")
    shutil.rmtree(folder)
    assert np.array_equal(vectors(registry, "new"), wanted)


def test_a_pipe_in_a_model_folder_is_refused_and_not_waited_for(registry, authors):
    folder = authors("my-unsup-simcse", head())
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    for take in (
        lambda: import_model(str(folder), "new"),
        lambda: load_backbone(str(folder)),
    ):
        with refusal(r"model.safetensors of .* is a pipe or a device"):
            take()
