"""GGUF files as backbones: equal to the checkpoint they were made from, and refused in one line."""

import json
import logging

import numpy as np
import pytest
from safetensors.torch import load_file

pytest.importorskip("gguf", reason="GGUF files need gguf: pip install '.[gguf]'")
import gguf

import promptcli as pc
from promptcli.backbones import gguf_files
from promptcli.backbones.names import portable_name
from promptcli.encoder.encoder import build_encoder
from promptcli.models.sentence_transformers_format import lowest_cosine
from promptcli.recipe import Recipe
from tests.embed_running import refused
from tests.tiny import SENTENCES
from tests.tiny_causal import save_tiny_causal

_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "vocab_size": "vocab_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads",
    "head_count_kv": "num_key_value_heads",
    "layer_norm_rms_eps": "rms_norm_eps",
}


def write_gguf(folder, path, *, architecture="qwen2", quantised=False):
    """Write a folder's Qwen2 with its tokenizer as a GGUF file, in float32 or quantised."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    for key, name in _FIELDS.items():
        getattr(writer, f"add_{key}")(config[name])
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    writer.add_token_types([1] * len(model["vocab"]))
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        values = tensor.float().numpy()
        if quantised and values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A folder whose matrices have rows of 32, a block of Q8_0."""
    return save_tiny_causal("qwen2", tmp_path_factory.mktemp("qwen2"), hidden_size=32)


@pytest.fixture(autouse=True)
def notes(caplog):
    caplog.set_level(logging.INFO, "promptcli")


def recipe_on(backbone):
    return Recipe(str(backbone), pooling="last/last-token")


def test_vectors_are_those_of_the_checkpoint(qwen, tmp_path, caplog):
    write_gguf(qwen, tmp_path / "tiny.gguf")
    encoder = pc.load(recipe_on(tmp_path / "tiny.gguf"), dtype="float32")
    plain = build_encoder(recipe_on(qwen), dtype="float32")
    np.testing.assert_allclose(encoder.encode(SENTENCES), plain.encode(SENTENCES), atol=1e-5)
    assert "tiny.gguf: F32 weights are kept as float32" in caplog.text


def test_quantised_weights_are_dequantised_and_said(qwen, tmp_path, caplog):
    write_gguf(qwen, tmp_path / "tiny.gguf", quantised=True)
    encoder = pc.load(recipe_on(tmp_path / "tiny.gguf"), dtype="float32")
    plain = build_encoder(recipe_on(qwen), dtype="float32")
    assert 0.99 < lowest_cosine(encoder.encode(SENTENCES), plain.encode(SENTENCES)) < 0.999999
    assert "tiny.gguf: Q8_0 weights are dequantised to float16" in caplog.text


def test_the_file_is_read_once_and_its_model_can_be_saved(qwen, tmp_path, monkeypatch):
    write_gguf(qwen, tmp_path / "tiny.gguf")
    vectors = pc.load(recipe_on(tmp_path / "tiny.gguf")).encode(SENTENCES)
    gguf_files._converted_folder.cache_clear()
    monkeypatch.setattr(gguf_files, "_convert", None)
    again = pc.load(recipe_on(tmp_path / "tiny.gguf"))
    np.testing.assert_array_equal(again.encode(SENTENCES), vectors)
    again.save(tmp_path / "plain")
    (tmp_path / "tiny.gguf").unlink()
    np.testing.assert_array_equal(pc.load(tmp_path / "plain").encode(SENTENCES), vectors)


def test_another_file_of_that_name_is_another_model(qwen, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(qwen, path)
    first = gguf_files.folder_of(str(path))
    write_gguf(qwen, path, quantised=True)
    assert gguf_files.folder_of(str(path)) != first


def test_the_name_of_a_file_holds_from_every_folder(qwen, tmp_path, monkeypatch):
    write_gguf(qwen, tmp_path / "tiny.gguf")
    monkeypatch.chdir(tmp_path)
    assert portable_name("tiny.gguf") == str(tmp_path / "tiny.gguf")


def test_what_is_no_model_of_ours_is_one_line(run, qwen, tmp_path, home, monkeypatch):
    def similarity(file):
        return run("similarity", "a", "b", "--backbone", tmp_path / file)

    write_gguf(qwen, tmp_path / "rwkv.gguf", architecture="rwkv7")
    assert refused(similarity("rwkv.gguf"), 2, "architecture of rwkv.gguf 'rwkv7'", "qwen2, qwen3")
    whole = (tmp_path / "rwkv.gguf").read_bytes()
    for size in (10, 500, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        said = f"cut.gguf is cut, damaged or of a later version: its {size:,} bytes"
        assert refused(similarity("cut.gguf"), 2, said, "fetch it again")
    (tmp_path / "later.gguf").write_bytes(whole[:4] + b"\x63" + whole[5:])
    assert refused(similarity("later.gguf"), 2, "later.gguf is cut, damaged or of a later")
    (tmp_path / "text.gguf").write_text("no model")
    assert refused(similarity("text.gguf"), 2, "text.gguf is not a GGUF file")
    (tmp_path / "empty.gguf").touch()
    assert refused(similarity("empty.gguf"), 2, "empty.gguf is not a GGUF file")
    assert refused(similarity("none.gguf"), 3, "no GGUF file", "none.gguf")
    assert not (home / "cache").exists()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text((qwen / "config.json").read_text())
    (tmp_path / "rwkv.gguf").rename(folder / "model.gguf")
    assert refused(similarity("folder"), 2, "--backbone", str(folder / "model.gguf"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(similarity("text.gguf"), 2, "gguf", ".[gguf]")
