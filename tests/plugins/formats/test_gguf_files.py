"""GGUF files as backbones: equal to the checkpoint they were made from, and refused in one line."""

import errno
import json
import struct

import numpy as np
import pytest
from safetensors.torch import load_file

pytest.importorskip("gguf", reason="GGUF files need gguf: pip install '.[gguf]'")
import gguf

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.model_folder import portable_name
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import PromptcliError, UsageError
from promptcli.models.parity import lowest_cosine
from promptcli.plugins.formats import gguf_files
from promptcli.plugins.formats.gguf_header import Header
from promptcli.recipe import Recipe
from tests.comparing import refusal, refused
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


def recipe_on(backbone):
    return Recipe(str(backbone), pooling="last/last-token")


def test_vectors_are_those_of_the_checkpoint(qwen, tmp_path, notes):
    write_gguf(qwen, tmp_path / "tiny.gguf")
    encoder = pc.load(recipe_on(tmp_path / "tiny.gguf"), dtype="float32")
    plain = build_encoder(recipe_on(qwen), dtype="float32")
    np.testing.assert_allclose(encoder.encode(SENTENCES), plain.encode(SENTENCES), atol=1e-5)
    assert "tiny.gguf: F32 weights are kept as float32" in notes.text


def test_quantised_weights_are_dequantised_and_said(qwen, tmp_path, notes):
    write_gguf(qwen, tmp_path / "tiny.gguf", quantised=True)
    encoder = pc.load(recipe_on(tmp_path / "tiny.gguf"), dtype="float32")
    plain = build_encoder(recipe_on(qwen), dtype="float32")
    assert 0.99 < lowest_cosine(encoder.encode(SENTENCES), plain.encode(SENTENCES)) < 0.999999
    assert "tiny.gguf: Q8_0 weights are dequantised to float16" in notes.text


def test_the_file_is_read_once_and_its_model_can_be_saved(qwen, tmp_path, monkeypatch):
    write_gguf(qwen, tmp_path / "tiny.gguf")
    vectors = pc.load(recipe_on(tmp_path / "tiny.gguf")).encode(SENTENCES)
    gguf_files._converted_folder.cache_clear()
    monkeypatch.setattr(gguf_files, "_read", None)
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
    assert refused(similarity("folder"), 2, "model.gguf")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(similarity("text.gguf"), 2, "gguf", ".[gguf]")


_LAYER = {
    "attn_norm": (32,),
    "attn_q": (32, 32),
    "attn_k": (16, 32),
    "attn_v": (16, 32),
    "attn_output": (32, 32),
    "ffn_norm": (32,),
    "ffn_gate": (64, 32),
    "ffn_up": (64, 32),
    "ffn_down": (32, 64),
}
_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]


def llama3(path, *, without=(), tensors=None, special=_SPECIAL, **values):
    """Write a file of Llama 3's kind: bytes and a few merges, and no token <|endoftext|>.

    ``values`` are further metadata, their dots written as two underscores, and replace ours.
    """
    random = np.random.default_rng(0)
    rest = [chr(256 + place) for place in range(256 - len(_BYTES))]
    merges = ["t h", "th e", "a t", "Ġ c"]
    tokens = [*map(chr, _BYTES), *rest, *(merge.replace(" ", "") for merge in merges), *special]
    sizes = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 1,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.dimension_count": 8,
    }
    values = {f"llama.{name.replace('__', '.')}": value for name, value in values.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - len(special)) + [3] * len(special))
    writer.add_token_merges(merges)
    if special:
        writer.add_bos_token_id(len(tokens) - len(special))
        writer.add_eos_token_id(len(tokens) - 1)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in ({f"llama.{name}": size for name, size in sizes.items()} | values).items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value is not None:
            writer.add_uint32(name, value)
    shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
    shapes |= {f"blk.0.{name}": shape for name, shape in _LAYER.items()}
    stored = {
        f"{name}.weight": random.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    for name, tensor in (stored | (tensors or {})).items():
        if name not in without:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_of_llama_3_s_kind_opens_with_its_own_special_tokens(tmp_path):
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "the", "eos_token": "the"}')
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "the", "add_bos_token": true}')
    (tmp_path / "added_tokens.json").write_text('{"<neighbour>": 999}')
    tokens = load_backbone(str(llama3(tmp_path / "a.gguf"))).tokenizer
    assert len(tokens.items()) == 256 + 4 + len(_SPECIAL) == tokens.highest + 1
    [folder] = (tmp_path / "home" / "cache" / "gguf").iterdir()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert (settings["bos_token"], settings["eos_token"]) == (_SPECIAL[0], _SPECIAL[-1])
    assert "<neighbour>" not in (folder / "tokenizer.json").read_text()


def test_a_file_that_says_it_scales_no_positions_opens(tmp_path):
    values = {"rope__scaling__type": "none", "rope__scaling__factor": 1.0}
    assert load_backbone(str(llama3(tmp_path / "a.gguf", **values))).n_layers == 1


#: What is wrong with a file -> a word of the message.
WRONG = {
    "missing": ({"without": ["blk.0.ffn_up.weight"]}, "weights"),
    "no layer": ({"block_count": 2}, "weights"),
    "no embeddings": ({"without": ["token_embd.weight"]}, "weights"),
    "no size": ({"embedding_length": None}, ""),
    "many layers": ({"block_count": 1 << 31}, "layers"),
    "an endless layer": ({"feed_forward_length": 1 << 31}, "weights"),
    "other size": ({"feed_forward_length": 96}, "weights"),
    "other heads": ({"attention__head_count_kv": 4}, "weights"),
    "surplus": ({"tensors": {"blk.0.attn_q.bias": np.ones(32, np.float32)}}, "weights"),
    "long factors": ({"tensors": {"rope_factors_long.weight": np.ones(4, np.float32)}}, "weights"),
    "rotary factors": (
        {"tensors": {"rope_freqs.weight": np.ones(4, np.float32)}},
        "rope_freqs",
    ),
    "scaling": ({"rope__scaling__type": "longrope"}, "not supported"),
    "linear": ({"rope__scaling__factor": 4.0}, "not supported"),
    "older linear": ({"rope__scale_linear": 2.0}, "scale_linear"),
    "attention factor": ({"rope__scaling__attn_factor": 2.0}, "attn_factor"),
    "other rotary width": ({"rope__dimension_count": 4}, "weights"),
    "no number": ({"rope__scaling__factor": float("nan")}, "scaling.factor"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_file_that_is_no_whole_model_is_refused(wrong, tmp_path):
    changes, message = WRONG[wrong]
    with refusal(message, PromptcliError):
        gguf_files.folder_of(str(llama3(tmp_path / "a.gguf", **changes)))
    assert not [*tmp_path.rglob("*.safetensors")]


def _text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def _raw(*, tensors=0, values=2, last=b"", after=b""):
    start = b"GGUF" + struct.pack("<IQQ", 3, tensors, values)
    architecture = _text("general.architecture") + struct.pack("<I", 8) + _text("llama")
    return start + architecture + last + after


_ARRAY = _text("x") + struct.pack("<I", 9)
DAMAGED = {
    "endless array": _raw(last=_ARRAY + struct.pack("<IQ", 0, 1 << 62)),
    "long array": _raw(last=_ARRAY + struct.pack("<IQ", 0, 5_000_000), after=bytes(5_000_000)),
    "array of arrays": _raw(last=_ARRAY + struct.pack("<IQ", 9, 3), after=bytes(99)),
    "endless texts": _raw(last=_ARRAY + struct.pack("<IQ", 8, 1 << 61), after=bytes(99)),
    "many values": _raw(values=1 << 60),
    "many tensors": _raw(values=1, tensors=1 << 60),
    "long text": _raw(last=struct.pack("<Q", 1 << 63)),
    "many axes": _raw(
        values=1, tensors=1, after=_text("a") + struct.pack("<I", 1 << 31) + bytes(99)
    ),
    "no size": _raw(
        values=1, tensors=1, after=_text("a") + struct.pack("<IQIQ", 1, 0, 0, 0) + bytes(64)
    ),
    "unknown type": _raw(
        values=1, tensors=1, after=_text("a") + struct.pack("<IQIQ", 1, 1, 99, 0) + bytes(64)
    ),
    "behind the end": _raw(
        values=1, tensors=1, after=_text("a") + struct.pack("<IQIQ", 1, 1, 0, 1 << 62) + bytes(64)
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_counts_and_sizes_are_compared_with_the_length_of_the_file(damage, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(DAMAGED[damage])
    with refusal(r"fetch|take"):
        Header(path)


def test_a_refused_file_is_not_kept_and_a_full_disk_is_not_its_fault(tmp_path, monkeypatch):
    path = str(llama3(tmp_path / "a.gguf"))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space") as raised:
        patched.setattr(gguf_files, "_write", full)
        gguf_files.folder_of(path)
    assert not isinstance(raised.value, UsageError)

    def refused(*_, **__):
        raise UsageError("not of one model")

    with monkeypatch.context() as patched, refusal("one model"):
        patched.setattr(gguf_files.checking, "check_vocabulary", refused)
        gguf_files.folder_of(path)
    assert not list((tmp_path / "home" / "cache" / "gguf").iterdir())
    assert gguf_files.folder_of(path).is_dir()
