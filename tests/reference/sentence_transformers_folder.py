"""Reads a folder of sentence-transformers by its own description: modules in a row, one text a
time.

Only transformers, tokenizers and safetensors are used, so that the folder is read here as other
programs read it.
"""

import functools
import importlib
import json

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer


def vectors(folder, texts):
    """Return (n, d) of n texts."""
    modules = json.loads((folder / "modules.json").read_text())
    return torch.stack([_vector(folder, modules, text) for text in texts]).numpy()


def _vector(folder, modules, text):
    state = {}
    for module in modules:
        assert module["type"].startswith("sentence_transformers.models.")
        _MODULES[module["type"].rpartition(".")[2]](folder / module["path"], state, text)
    return state["vector"]


def _transformer(folder, state, text):
    limits = json.loads((folder / "sentence_bert_config.json").read_text())
    tokenizer, model = _loaded(folder)
    text = text.lower() if limits["do_lower_case"] else text
    limit = limits["max_seq_length"] or model.config.max_position_embeddings
    tokens = tokenizer(text, truncation=True, max_length=limit, padding=False, return_tensors="pt")
    with torch.inference_mode():
        output = model(**tokens, output_hidden_states=True)
    state["ids"] = tokens["input_ids"][0].tolist()
    state["tokens"], state["weight"] = output.last_hidden_state[0], torch.ones(len(state["ids"]))
    if model.config.output_hidden_states:
        state["layers"] = torch.stack(output.hidden_states)[:, 0]


@functools.lru_cache(1)
def _loaded(folder):
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def _layers(folder, state, text):
    weights = load_file(folder / "model.safetensors")["layer_weights"]
    state["tokens"] = (
        sum(weight * layer for weight, layer in zip(weights, state["layers"], strict=True))
        / weights.sum()
    )


def _word_weights(folder, state, text):
    config = json.loads((folder / "config.json").read_text())
    words = [config["vocab"][token] for token in state["ids"]]
    state["weight"] = torch.tensor(
        [config["word_weights"].get(word, config["unknown_word_weight"]) for word in words]
    )


#: Mode -> its flag in older files, in the order in which their vectors are concatenated.
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def _pooling(folder, state, text):
    config = json.loads((folder / "config.json").read_text())
    modes = config.get("pooling_mode") or [mode for mode, flag in FLAGS.items() if config.get(flag)]
    modes = [modes] if isinstance(modes, str) else modes
    assert modes and config.get("include_prompt", True)
    state["vector"] = torch.cat([pooled(state["tokens"], mode, state["weight"]) for mode in modes])


def pooled(x, mode, weight):
    """Return one vector of states (t, d), as the documentation of sentence-transformers says."""
    place = torch.arange(1, len(x) + 1).float()
    return {
        "cls": x[0],
        "max": x.max(dim=0).values,
        "mean": (weight[:, None] * x).sum(0) / weight.sum(),
        "mean_sqrt_len_tokens": x.sum(dim=0) / len(x) ** 0.5,
        "weightedmean": (x * place[:, None]).sum(dim=0) / place.sum(),
        "lasttoken": x[-1],
    }[mode]


def _dense(folder, state, text):
    module, _, name = json.loads((folder / "config.json").read_text())[
        "activation_function"
    ].rpartition(".")
    tensors = load_file(folder / "model.safetensors")
    linear = tensors["linear.weight"] @ state["vector"] + tensors.get("linear.bias", 0)
    state["vector"] = getattr(importlib.import_module(module), name)()(linear)


def _norm(folder, state, text):
    tensors, vector = load_file(folder / "model.safetensors"), state["vector"]
    centred = vector - vector.mean()
    state["vector"] = (
        centred / (centred.square().mean() + 1e-5).sqrt() * tensors["norm.weight"]
        + tensors["norm.bias"]
    )


def _normalize(folder, state, text):
    state["vector"] = functional.normalize(state["vector"], dim=0)


def _static(folder, state, text):
    (rows,) = load_file(folder / "model.safetensors").values()
    ids = (
        Tokenizer.from_file(str(folder / "tokenizer.json"))
        .encode(text, add_special_tokens=False)
        .ids
    )
    state["vector"] = rows[ids].mean(0) if ids else torch.zeros(rows.shape[1])


_MODULES = {
    "Transformer": _transformer,
    "WeightedLayerPooling": _layers,
    "WordWeights": _word_weights,
    "Pooling": _pooling,
    "Dense": _dense,
    "LayerNorm": _norm,
    "Normalize": _normalize,
    "Dropout": lambda folder, state, text: None,
    "StaticEmbedding": _static,
}
