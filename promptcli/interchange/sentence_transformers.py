"""``--to sentence-transformers``: by configuration alone where that is exact, else one module that calls promptcli.

The names of modules and keys are those of all versions since 2; ``trust_remote_code`` is not needed for them.
"""

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.checking import opening
from promptcli.backbones.saving import save_tokenizer, save_weights, tokenizer_definition, whole_inputs
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.prompts.soft_template import TENSOR as SOFT
from promptcli.encoder.prompts.soft_template import SoftTemplate
from promptcli.interchange.card import model_card
from promptcli.interchange.dense import Dense, layers_of
from promptcli.interchange.encoder_folder import RECIPE, load_encoder, save_encoder
from promptcli.interchange.exactness import BLANK, PROBES, TOO_LONG, TYPED, InexactError, check_parity
from promptcli.interchange.static_table import static_table
from promptcli.interchange.target import Source, Written
from promptcli.interchange.tokenization import add_tokens, with_template
from promptcli.recipe import split_spec
from promptcli.storage.documents import to_json
from promptcli.storage.tensors import save_tensors

_MODELS = "sentence_transformers.models."
#: The token that is read, in the place of the template's mask, so that a sentence may hold the mask token itself.
_READ = "[promptcli-mask]"
_MODULE = "modeling_promptcli"
_SOURCE = '''"""The encoder of this folder; pip install promptcli."""

from promptcli.interchange.st_module import PromptcliModule

__all__ = ["PromptcliModule"]
'''

#: Weights -> mode of the module Pooling.
_MODES = {"avg": "mean_tokens", "mask": "mean_tokens", "cls": "cls_token", "last-token": "lasttoken"}


@dataclass
class _Module:
    """One entry of ``modules.json``."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def export_sentence_transformers(source: Source, folder: Path) -> Written:
    """Fill a folder that ``SentenceTransformer(folder)`` loads.

    Raises:
        CheckFailedError: The vectors that sentence-transformers computes are not the encoder's.
    """
    encoder = source.encoder
    reasons = []
    for writer in (_static, _configured):
        try:
            notes, probes = writer(encoder, folder)
            load = 'SentenceTransformer("FOLDER")'
            break
        except InexactError as error:
            reasons.append(str(error))
            for path in folder.iterdir():
                path.unlink()
    else:
        notes, probes = _delegated(encoder, folder, reasons[-1]), list(PROBES)
        load = 'SentenceTransformer("FOLDER", trust_remote_code=True)'
    about: dict[str, Any] = {"__version__": {}, "prompts": {}, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(to_json(about), encoding="utf-8")
    shown = load.replace('"FOLDER"', "folder")
    use = f"from sentence_transformers import SentenceTransformer\n\nvectors = {shown}.encode(sentences)"
    entry = source.entry
    card = model_card(
        entry.name, encoder.recipe, use=use, library="sentence-transformers", provenance=entry.provenance,
        scores=entry.scores, tags=["sentence-transformers"],
    )  # fmt: skip
    (folder / "README.md").write_text(card, encoding="utf-8")
    if importlib.util.find_spec("sentence_transformers") is None:
        lacking = "vectors were not compared: sentence-transformers is not installed (pip install promptcli[st])"
        return Written(load, notes=(*notes, lacking))
    theirs = _encoded_there(folder, probes)
    nonzero = theirs.any(axis=1)  # that a vector is zero is said in the notes
    found = check_parity(encoder.encode(probes)[nonzero], theirs[nonzero], "sentence-transformers")
    return Written(load, "sentence-transformers", found, notes)


def _encoded_there(folder: Path, probes: list[str]) -> np.ndarray:
    """Return what sentence-transformers makes of the folder; a module of ours is imported, never run from there."""
    import sentence_transformers

    with opening("the exported folder"):
        if (folder / RECIPE).is_file():
            from promptcli.interchange.st_module import as_sentence_transformer

            model = as_sentence_transformer(load_encoder(folder, device="cpu", offline=True))
        else:
            model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        vectors: np.ndarray = model.encode(probes, show_progress_bar=False)
    return vectors


def _static(encoder: Encoder, folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Write a static recipe: one table of words.

    Raises:
        InexactError: See ``static_table``.
    """
    table = static_table(encoder)
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODELS}StaticEmbedding"}]
    (folder / "modules.json").write_text(to_json(modules), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(table.definition, ensure_ascii=False), encoding="utf-8")
    save_tensors({"embedding.weight": table.rows}, folder / "model.safetensors")
    cut = encoder.inputs(PROBES).truncated
    return table.notes, [probe for probe, is_cut in zip(PROBES, cut, strict=True) if not is_cut]


def _configured(encoder: Encoder, folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Write Transformer, pooling and dense layers.

    Raises:
        InexactError: The recipe has a part that no module of sentence-transformers is.
    """
    pooling, weights = _pooling_modules(encoder)
    modules = [*pooling, *_after(encoder)]
    definition, rows = _template_tokens(encoder, read=weights == "mask")
    if weights == "mask":
        vocabulary = [""] * max(len(encoder.backbone.token_rows), max(rows) + 1)
        vocabulary[max(rows)] = _READ
        config = {"vocab": vocabulary, "word_weights": {_READ: 1.0}, "unknown_word_weight": 0.0}
        modules.insert(len(pooling) - 1, _Module("WordWeights", config))
    layered = any(module.kind == "WeightedLayerPooling" for module in modules)
    save_weights(encoder.backbone, folder, rows=rows, output_hidden_states=layered)
    save_tokenizer(encoder.backbone, folder, definition, encoder.max_length)
    compared = _compare_ids(encoder, folder)
    limits = {"max_seq_length": encoder.max_length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(to_json(limits), encoding="utf-8")
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODELS}Transformer"}]
    for number, module in enumerate(modules, 1):
        path = f"{number}_{module.kind}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": _MODELS + module.kind})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(to_json(module.config, indent=None), encoding="utf-8")
        if module.tensors:
            save_tensors(module.tensors, folder / path / "model.safetensors")
    (folder / "modules.json").write_text(to_json(listed), encoding="utf-8")
    return compared


def _pooling_modules(encoder: Encoder) -> tuple[list[_Module], str]:
    """Return the modules that choose layers and pool tokens, and the name of the weights."""
    states, _, spec = encoder.pooling.spec.partition("/")
    weights, width, last = split_spec(spec)[0], encoder.backbone.width, encoder.backbone.n_layers
    if weights not in _MODES:
        raise InexactError(f"weights {spec!r} are no module of sentence-transformers")
    if not states.startswith(("last", "first-last", "layer-")):
        raise InexactError(f"states {states!r} with {spec!r} are no module of sentence-transformers")
    if encoder.denoising.place != "none":
        raise InexactError("denoising depends on the length of the sentence, which no module knows")
    layers = encoder.pooling.states.needs.layers
    modules = []
    if layers != {last}:
        chosen = torch.zeros(last + 1)
        chosen[sorted(layers)] = 1
        config = {"word_embedding_dimension": width, "layer_start": 0, "num_hidden_layers": last}
        modules.append(_Module("WeightedLayerPooling", config, {"layer_weights": chosen}))
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    chosen_modes = {f"pooling_mode_{mode}": mode == _MODES[weights] for mode in modes}
    modules.append(_Module("Pooling", {"word_embedding_dimension": width, **chosen_modes}))
    return modules, weights


def _after(encoder: Encoder) -> list[_Module]:
    """Return the modules of the transforms."""
    modules = []
    for layer in layers_of(encoder):
        if isinstance(layer, Dense):
            out, width = layer.weight.shape
            config = {"in_features": width, "out_features": out, "bias": True, "activation_function": layer.activation}
            named = {"linear.weight": layer.weight.contiguous(), "linear.bias": layer.bias.contiguous()}
            modules.append(_Module("Dense", config, named))
        else:
            named = {"norm.weight": layer.weight, "norm.bias": layer.bias}
            modules.append(_Module("LayerNorm", {"dimension": len(layer.bias)}, named))
    return modules


def _template_tokens(encoder: Encoder, *, read: bool) -> tuple[dict[str, Any], dict[int, Tensor]]:
    """Return the tokenizer with the template in it, and the rows of the tokens that it adds.

    Raises:
        InexactError: A learned prompt that is no row of words.
    """
    backbone, template, prompt = encoder.backbone, encoder.template, encoder.prompt
    if type(prompt) not in (Prompt, SoftTemplate):
        raise InexactError(f"prompt {prompt.spec.partition(':')[0]!r} is more than tokens around the sentence")
    soft = prompt.slots if isinstance(prompt, SoftTemplate) else []
    if soft and template.pieces(["\0"], False)[0].strip() != "\0":
        raise InexactError("a soft template whose words touch the sentence has no ids of their own in this vocabulary")
    definition = tokenizer_definition(backbone)
    names = [f"[promptcli-{number}]" for number in range(len(soft))] + ([_READ] if read else [])
    ids = add_tokens(definition, names) if names else []
    whole = [*template.prefix, *template.suffix]
    rows = dict(zip(ids, prompt.tensors()[SOFT], strict=False)) if soft else {}
    places = [*soft, *([template.masks[(encoder.pooling.needs.slot or 1) - 1]] if read else [])]
    if read:
        rows[ids[-1]] = backbone.token_rows[backbone.tokenizer.mask].detach()
    for place, token in zip(places, ids, strict=True):
        whole[place] = token
    left, right = whole[: len(template.prefix)], whole[len(template.prefix) :]
    recipe = encoder.recipe
    made = with_template(
        definition, template, period=bool(recipe.period), rule=recipe.text_rule, left=left, right=right
    )
    return made, rows


def _compare_ids(encoder: Encoder, folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return what differs between the ids of the tokenizer and of the encoder, and the probes where nothing does.

    Raises:
        InexactError: Ids of a sentence that is neither blank nor cut.
    """
    probes = [*PROBES, TOO_LONG, BLANK]
    found, inputs = whole_inputs(folder, probes, encoder.max_length), encoder.inputs(probes)
    left, right = len(encoder.template.prefix), len(encoder.template.suffix)
    same = [
        len(one) == len(other) and one[left : len(one) - right] == other[left : len(other) - right]
        for one, other in zip(found, inputs.rows, strict=True)
    ]
    if not all(equal or cut for equal, cut in zip(same[:-1], inputs.truncated, strict=False)):
        raise InexactError("transformers' tokenizer of this family does not give the encoder's ids, whatever its file")
    notes = []
    if encoder.recipe.period:
        notes.append(TYPED)
    if not all(same[:-1]):
        notes.append(f"a sentence that is cut at {encoder.max_length} tokens loses the mark of the template after it")
    if not same[-1]:
        notes.append("a blank sentence has another vector there")
    return tuple(notes), [probe for probe, equal in zip(PROBES, same, strict=False) if equal]


def _delegated(encoder: Encoder, folder: Path, reason: str) -> tuple[str, ...]:
    """Write one module that calls promptcli, and the whole encoder."""
    save_encoder(encoder, folder)
    (folder / f"{_MODULE}.py").write_text(_SOURCE, encoding="utf-8")
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_MODULE}.PromptcliModule"}]
    (folder / "modules.json").write_text(to_json(modules), encoding="utf-8")
    return (
        f"no configuration holds this recipe exactly: {reason}",
        "loading needs promptcli installed, and trust_remote_code=True; without the flag:"
        " as_sentence_transformer(encoder) of promptcli.interchange.st_module",
    )
