"""Read a model folder of promptcli, peft, sentence-transformers, model2vec or a paper's program, or
refuse it with the reason.

``_FORMATS`` at the end lists the files that identify a format, with their schemas and readers.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from promptcli.backbones.families import FAMILIES, Family
from promptcli.backbones.model_folder import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CONFIG,
    PREFIX_TUNING,
    SHIPPED_BACKBONES,
    SHIPPED_TABLES,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    AdapterConfig,
    ModelFolder,
    base_name,
    base_of,
    check_kind,
    is_word_file,
    json_field,
    locate,
)
from promptcli.backbones.published_backbones import PUBLISHED, folder_shape
from promptcli.backbones.transformers_loading import tokens_added_after
from promptcli.encoder.template import lower
from promptcli.errors import short_repr
from promptcli.models.entries import (
    BACKBONE,
    MODEL_MANIFEST,
    MODULES,
    Entry,
    read_entry,
    with_backbone,
)
from promptcli.notes import note
from promptcli.recipe import MASK, RECIPES, SLOT, LeadingTexts, Recipe

if TYPE_CHECKING:
    from torch import Tensor

_HINT = "fetch the folder again"
_RERANKER = (
    "is a reranker or a classifier: it scores texts, or pairs of them, and has no vectors of"
    " sentences"
)
#: sentence-transformers' settings of the Transformer module, and of the whole model.
MODULE_SETTINGS = "sentence_bert_config.json"
MODEL_SETTINGS = "config_sentence_transformers.json"
_NO_LIMIT = 1 << 30  # tokens; a larger number in a tokenizer's file means that there is no limit
#: Mode of sentence-transformers' Pooling -> our weights.
MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "avg",
    "mean_sqrt_len_tokens": "sqrt",
    "weightedmean": "weighted",
    "lasttoken": "last-token",
}
#: Flag in older files -> mode, in the order in which their vectors are concatenated.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Setting of a module or a tokenizer -> its only supported value, if it is set.
_SUPPORTED = {
    "transformer_task": "feature-extraction",
    "module_input_name": "sentence_embedding",
    "processing_kwargs": {},
    "use_residual": False,
    "split_special_tokens": False,
}
_GRAPHS = ("onnx", "openvino")  #: targets of exports whose folder holds a graph, not a recipe
#: PromptBERT's templates for BERT and for RoBERTa in its tests (run.sh of its code).
_TEMPLATES = {
    "bert": f'This sentence of "{SLOT}" means {MASK} .',
    "roberta": f"This sentence : ' {SLOT} ' means{MASK}.",
}
_SIMCSE = "SimCSE checkpoint"
_PROMPTBERT = "PromptBERT checkpoint"
_PROMCSE_PREFIX = "prefix_encoder.embedding.weight"
#: Head -> PromptBERT's place of denoising: its code has T(h) - T(h_hat) for one head, and the other
#: head of h - h_hat.
_DENOISE = {"projection:mlm": "head", "projection:tanh": "hidden"}
#: Backbones of the models that SimCSE's authors released.
_SIMCSE_BACKBONES = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")

Config = dict[str, Any]


def read_model(folder: ModelFolder) -> Entry:
    """Return the entry of the encoder in a folder."""
    for file, (schema, read) in _FORMATS.items():
        if folder.has(file):
            return read(folder, folder.document(file, schema))
    raise folder.error(f"is not a model folder: it has none of {', '.join(_FORMATS)}")


def _entry(
    folder: ModelFolder,
    kind: str,
    recipe: Recipe,
    tensors: "Mapping[str, Tensor]",
    prompts: LeadingTexts | None = None,
) -> Entry:
    name = folder.path.resolve().name
    return Entry(name, recipe, tensors, {"kind": kind}, prompts=prompts or LeadingTexts())


def _note_assumed(folder: ModelFolder, recipe: Recipe) -> None:
    assumed = f"{recipe.prompt} {recipe.pooling}"
    note(f"{folder.name} does not say how sentences are read; assumed unless given: {assumed}")


def _promptcli(folder: ModelFolder, manifest: Any) -> Entry:
    entry = read_entry(folder.path, checked=True)
    if entry.target in _GRAPHS:
        raise folder.error(
            f"is an export for {entry.target}: a graph; load the model that it was made from"
        )
    if entry.target is not None and folder.is_table:
        return _table(folder, folder.optional(MODULES, list[_Module]))
    inside = (str(folder.path), str(folder.path / BACKBONE))
    for recipe in (entry.recipe, entry.transfer or entry.recipe):
        name = recipe.backbone
        if name in (*inside, *SHIPPED_BACKBONES, *SHIPPED_TABLES):
            continue
        # whoever gets a copy of the model would also get a backbone from elsewhere on this machine
        if is_word_file(name) or os.path.exists(name):
            raise folder.error(
                f"has the backbone {short_repr(name)}, outside of the folder; load it by its name"
                " in the registry, or fetch a folder that holds its backbone"
            )
    if entry.recipe.backbone == str(folder.path):
        return with_backbone(entry, folder.name)
    return entry


def _adapter(folder: ModelFolder, config: AdapterConfig) -> Entry:
    """Read an adapter of peft: prefix tuning becomes a deep prefix, a LoRA a backbone."""
    if config.peft_type != PREFIX_TUNING:
        check_kind(folder, config)
        is_causal = config.task_type == "CAUSAL_LM"
        recipe = RECIPES["prompteol"] if is_causal else Recipe(pooling="last/cls")
        _note_assumed(folder, recipe)
        return _entry(folder, "peft LoRA adapter", recipe.replace(backbone=folder.name), {})
    stored = folder.tensors(ADAPTER_WEIGHTS).get("prompt_embeddings")
    sizes = (config.num_layers, config.num_attention_heads, config.token_dim)
    prompt, tensors = _deep_prefix(folder, sizes, stored)
    base = base_name(folder, config)
    if config.revision:
        base = f"{base}@{config.revision}"
    recipe = Recipe(base, prompt, pooling="last/cls")
    _note_assumed(folder, recipe)
    return _entry(folder, "peft prefix tuning", recipe, tensors)


@dataclass(frozen=True)
class _Module:
    """A module in ``modules.json``."""

    type: str
    path: str | None = ""


@dataclass(frozen=True)
class _About:
    """``config_sentence_transformers.json``."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: Annotated[int, msgspec.Meta(gt=0)] | None = None


@dataclass(frozen=True)
class _DenseConfig:
    """``config.json`` of a Dense layer."""

    activation_function: str
    use_residual: bool = False
    module_input_name: str | None = None


def _module_folders(folder: ModelFolder, modules: list[_Module]) -> list[tuple[str, str]]:
    """Return the class and the folder of each module."""
    kinds = []
    for module in modules:
        path = module.path or ""
        if not module.type.startswith("sentence_transformers."):
            raise folder.error(
                f"has a module {module.type} ({path or '.'}): it is remote code and is never run"
            )
        folder.inside(path, MODULES)
        kinds.append((module.type.rpartition(".")[2], "" if path == "." else path))
    return kinds


def _sentence_transformers(folder: ModelFolder, modules: list[_Module]) -> Entry:
    kinds = _module_folders(folder, modules)
    names = [kind for kind, _ in kinds]
    if names[:1] == ["StaticEmbedding"]:
        return _table(folder, modules)
    task = folder.optional(MODULE_SETTINGS).get("transformer_task")
    if names == ["Transformer"] and task == "sequence-classification":
        raise folder.error(_RERANKER)
    if names[:2] != ["Transformer", "Pooling"]:
        raise folder.error(
            f"begins with {', '.join(names[:2]) or 'no module'}, not with Transformer and"
            " Pooling, or StaticEmbedding"
        )
    (_, transformer), (_, pooling), *after = kinds
    body = folder.subfolder(transformer)
    base = base_of(body)  # the configuration of an adapter is that of its base
    model = body if base is None else locate(base)
    family = FAMILIES[model.family]
    weights, includes_prompt = _weights(folder, folder.document(f"{pooling}/{CONFIG}"))
    transforms, tensors = _after_pooling(folder, after)
    rule = _text_rule(body)
    about = folder.optional(MODEL_SETTINGS, _About)
    prompts = _prompts(folder, about, includes_prompt)
    text = lower(prompts.default_text) if rule == "lower" else prompts.default_text
    if text and not includes_prompt:
        raise folder.error(
            "has a default prompt that its pooling leaves out, which is not supported"
        )
    end = tokens_added_after(body.path) if family.causal else ""
    recipe = Recipe(
        backbone=body.name,
        prompt=f"{text}{SLOT}{end}",
        period=False,
        pooling=f"last/{weights}",
        transforms=(*transforms, *_truncation(folder, about)),
        text_rule=rule,
        max_length=_max_length(body, model.config, family),
    )
    return _entry(folder, "sentence-transformers", recipe, tensors, prompts)


def _table(folder: ModelFolder, modules: list[_Module]) -> Entry:
    """Read a table of words: sentence-transformers' StaticEmbedding, or a model of model2vec."""
    (_, inside), *after = _module_folders(folder, modules) or [("", "")]
    transforms, tensors = _after_pooling(folder, after)
    config = folder.optional(CONFIG)
    if config.get("model_type") == "model2vec":
        transforms = ["normalize"] if config.get("normalize") else []
    about = folder.optional(MODEL_SETTINGS, _About)
    recipe = Recipe(
        folder.subfolder(inside).name,
        period=False,
        pooling="static/avg",
        transforms=(*transforms, *_truncation(folder, about)),
    )
    prompts = LeadingTexts() if about == _About() else _prompts(folder, about, True)
    return _entry(folder, "table of words", recipe, tensors, prompts)


def _after_pooling(
    folder: ModelFolder, modules: list[tuple[str, str]]
) -> "tuple[list[str], dict[str, Tensor]]":
    """Return modules (kind, path) as transforms, and their tensors."""
    tensors: dict[str, Tensor] = {}
    transforms: list[str] = []
    for number, (kind, path) in enumerate(modules):
        if kind == "Dense":
            activation, weight, bias = _dense(folder, path)
            transforms.append(f"dense:{number}:{activation}")
            tensors |= {f"dense.{number}.weight": weight, f"dense.{number}.bias": bias}
        elif kind == "Normalize":
            transforms.append("normalize")
        elif kind != "Dropout":  # Dropout changes nothing outside of training
            raise folder.error(
                f"has a module {kind} ({path}); supported: Dense, Normalize, Dropout"
            )
    return transforms, tensors


def _dense(folder: ModelFolder, path: str) -> "tuple[str, Tensor, Tensor]":
    """Return the activation, the weights and the bias of a Dense layer."""
    import torch

    from promptcli.encoder.transforms.heads import ACTIVATIONS

    config: _DenseConfig = folder.document(f"{path}/{CONFIG}", _DenseConfig)
    _check_settings(folder, f"{path}/{CONFIG}", vars(config))
    activation = config.activation_function.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise folder.error(f"has a Dense layer with {activation} ({path}); supported: {supported}")
    tensors = folder.tensors(f"{path}/{WEIGHTS}")
    weight = tensors.get("linear.weight", torch.empty(0))
    if weight.dim() != 2:
        raise folder.error(f"has no matrix linear.weight in {path}; {_HINT}")
    return activation, weight, tensors.get("linear.bias", weight.new_zeros(len(weight)))


def _prompts(folder: ModelFolder, about: _About, includes_prompt: bool) -> LeadingTexts:
    """Return the texts in front of sentences; ``includes_prompt``: the pooling reads them."""
    texts = {"query": "", "document": ""}  # sentence-transformers always has these
    texts |= {name: text or "" for name, text in (about.prompts or {}).items()}
    default = about.default_prompt_name
    if default is not None and default not in texts:
        raise folder.error(
            f"names {default!r} as its default prompt and has no such prompt; {_HINT}"
        )
    for text in texts.values():
        if SLOT in text or MASK in text:
            raise folder.error(f"has a prompt with {SLOT} or {MASK} ({text!r})")
    return LeadingTexts(texts, default, includes_prompt)


def _weights(folder: ModelFolder, config: Config) -> tuple[str, bool]:
    """Return our name of a pooling, and whether it reads the tokens of a text in front."""
    flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    stated = config.get("pooling_mode", [mode for flag, mode in FLAGS.items() if config.get(flag)])
    modes = stated if isinstance(stated, list) else [stated]
    unknown = [str(mode) for mode in modes if mode not in MODES]
    unknown += [flag for flag in flags if flag not in FLAGS]
    if unknown or not modes:
        raise folder.error(
            f"pools by {', '.join(unknown) or 'nothing'}; supported: {', '.join(MODES)}"
        )
    return "+".join(MODES[mode] for mode in modes), bool(config.get("include_prompt", True))


def _text_rule(body: ModelFolder) -> str | None:
    """Return the text rule by which sentence-transformers prepares a sentence."""
    if body.optional(MODULE_SETTINGS).get("do_lower_case"):
        return "lower"
    strips = True
    if body.has(TOKENIZER):
        strips = b"BertPreTokenizer" in body.inside(TOKENIZER).read_bytes()
    return None if strips else "as-typed"


def _max_length(body: ModelFolder, config: Config, family: Family) -> int | None:
    """Return the number of tokens that an input may have; None: the backbone's limit.

    Older versions store the limit with the module, newer ones with the tokenizer.
    """
    module = body.optional(MODULE_SETTINGS)
    _check_settings(body, MODULE_SETTINGS, module)
    # document() refuses the integer of 31 digits in the file of a tokenizer without a limit
    settings = body.path / TOKENIZER_CONFIG
    splits_specials = json_field(settings, "split_special_tokens")
    _check_settings(body, TOKENIZER_CONFIG, {"split_special_tokens": splits_specials})
    limit = module.get("max_seq_length") or json_field(settings, "model_max_length")
    backbone_limit = _NO_LIMIT
    if isinstance(positions := config.get("max_position_embeddings"), int):
        backbone_limit = min(positions - 2 * family.pads_before_positions, _NO_LIMIT)
    return limit if isinstance(limit, int) and limit < backbone_limit else None


def _check_settings(folder: ModelFolder, file: str, config: Config) -> None:
    """Refuse a setting of sentence-transformers that changes vectors and is not supported here."""
    for name, usual in _SUPPORTED.items():
        value = config.get(name)
        if value not in (None, False, {}, usual):
            raise folder.error(
                f"sets {name} to {short_repr(value)} in {file}, which is not supported"
            )


def _truncation(folder: ModelFolder, about: _About) -> list[str]:
    """Return the transform that keeps ``truncate_dim`` columns, if it is set; note a similarity
    other than cosine.
    """
    if about.similarity_fn_name not in (None, "cosine"):
        note(
            f"{folder.name} is compared by {about.similarity_fn_name}; promptcli compares by cosine"
        )
    return [] if about.truncate_dim is None else [f"truncate:{about.truncate_dim}"]


def _language_model(folder: ModelFolder, config: Config) -> Entry:
    """Read a table of model2vec, a checkpoint of a paper's authors, or a plain language model."""
    if config.get("model_type") == "model2vec":
        return _table(folder, [])
    family = folder.family
    kind = _checkpoint_kind(folder)
    if kind is not None:
        return _checkpoint(folder, kind, family)
    remedy = "; to use only its language model, give it as the backbone"
    if any(name.endswith("ForSequenceClassification") for name in _classes(folder)):
        raise folder.error(f"{_RERANKER}{remedy}")
    for path in sorted(folder.path.glob("1_*")):
        raise folder.error(
            f"has {path.name} and no {MODULES}, which says how it is used; {_HINT}{remedy}"
        )
    recipe = Recipe(folder.name, pooling="last/last-token" if FAMILIES[family].causal else "")
    _note_assumed(folder, recipe)
    return replace(_entry(folder, "language model", recipe, {}), name=folder.name)


def _classes(folder: ModelFolder) -> list[str]:
    return list(map(str, folder.config.get("architectures") or ()))


def _checkpoint_kind(folder: ModelFolder) -> str | None:
    """Return which paper's program saved a checkpoint, by its tensors and names; None for others.

    SimCSE's program and its successors store a projection with the language model, or the name of
    their model class.
    """
    tensors = folder.tensor_names()
    name = folder.name.lower()
    if _PROMCSE_PREFIX in tensors:
        return "PromCSE checkpoint"
    has_head = "mlp.dense.weight" in tensors
    is_trained = has_head or any(kind.endswith("ForCL") for kind in _classes(folder))
    if is_trained and re.search(r"prompt-?_?(ro)?bert", name):
        return _PROMPTBERT
    if is_trained:
        return _SIMCSE
    # in their released models the authors renamed the projection to the pooler
    if "simcse" in name and _has_pooler(tensors):
        shapes = [PUBLISHED[backbone].shape for backbone in _SIMCSE_BACKBONES]
        return _SIMCSE if folder_shape(folder) in shapes else None
    return None


def _checkpoint(folder: ModelFolder, kind: str, family: str) -> Entry:
    """Read a checkpoint of a paper's authors.

    The checkpoint does not say whether it is supervised: the folder's name decides, and a note says
    so.
    """
    recipe = Recipe(folder.name, pooling="last/cls")
    if kind == _PROMPTBERT:
        template = _TEMPLATES["roberta" if "roberta" in family else "bert"]
        recipe = recipe.replace(prompt=template, pooling="last/mask")
    name = folder.name.lower()
    is_supervised = bool(re.search(r"(?<!un)sup", name))
    reading = "and read as an unsupervised one, without a head: its name has neither sup nor unsup"
    if "sup" in name:
        reading = f"{'supervised' if is_supervised else 'unsupervised'} by its name"
    stored = folder.tensors() if folder.tensor_names() else {}
    tensors: dict[str, Tensor] = {}
    if is_supervised:
        recipe, tensors = _head(recipe, stored)
    if _PROMCSE_PREFIX in stored:
        sizes = ("num_hidden_layers", "num_attention_heads", "hidden_size")
        layers, heads, width = map(folder.config.get, sizes)
        prompt, prefix = _deep_prefix(folder, (layers, heads, width), stored[_PROMCSE_PREFIX])
        recipe = recipe.replace(prompt=prompt)
        tensors |= prefix
    note(f"{folder.name} is taken for a {kind}, {reading}")
    return _entry(folder, kind, recipe, tensors)


def _has_pooler(names: Collection[str]) -> bool:
    return any("pooler." in name for name in names)


def _deep_prefix(
    folder: ModelFolder, sizes: tuple[Any, ...], stored: "Tensor | None"
) -> "tuple[str, dict[str, Tensor]]":
    """Return the prompt of a deep prefix and its tensor (L, 2, h, p, d/h), stored as (p, 2 L d).

    ``sizes`` are layers, heads and width, by the configuration.
    """
    from promptcli.encoder.prompts import deep_prefix

    layers, heads, width = (max(size, 0) if isinstance(size, int) else 0 for size in sizes)
    shape = (0,) if stored is None else tuple(stored.shape)
    if stored is None or 0 in (layers, heads, width) or shape != (*shape[:1], 2 * layers * width):
        shapes = f"{shape}, and its configuration says (length, {2 * layers * width})"
        raise folder.error(f"has a prefix of shape {shapes}; {_HINT}")
    by_layer = stored.float().view(len(stored), layers, 2, heads, width // heads)
    tensors = {deep_prefix.TENSOR: by_layer.permute(1, 2, 3, 0, 4).contiguous()}
    return f"deep-prefix:{len(stored)}", tensors


def _head(recipe: Recipe, stored: "Mapping[str, Tensor]") -> "tuple[Recipe, dict[str, Tensor]]":
    """Return a recipe with the head of a supervised checkpoint, and the head's tensors."""
    head = {
        f"projection.0.{name.removeprefix('mlp.')}": tensor.float()
        for name, tensor in stored.items()
        if name.startswith(("mlp.dense.", "mlp.LayerNorm."))
    }
    if not head:
        return recipe.replace(transforms=("cls-pooler",) if _has_pooler(stored) else ()), {}
    transform = "projection:mlm"
    if "projection.0.LayerNorm.weight" not in head:
        transform = "projection:tanh"
        head = {name.replace("dense.", ""): tensor for name, tensor in head.items()}
    denoise = _DENOISE[transform] if MASK in recipe.prompt else "none"
    return recipe.replace(transforms=(transform,), denoise=denoise), head


#: File that identifies a format -> its schema and its reader, in order of precedence.
_FORMATS: dict[str, tuple[Any, Callable[[ModelFolder, Any], Entry]]] = {
    MODEL_MANIFEST: (Config, _promptcli),
    MODULES: (list[_Module], _sentence_transformers),
    ADAPTER_CONFIG: (AdapterConfig, _adapter),
    CONFIG: (Config, _language_model),
}
