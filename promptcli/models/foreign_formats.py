"""Read a model folder of promptcli, peft, sentence-transformers, ..., or refuse it with the reason:
a table of the files that identify a format, with their schemas and readers.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from promptcli.backbones.adapter_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    PREFIX_TUNING,
    AdapterConfig,
    base_name,
    base_of,
    check_kind,
)
from promptcli.backbones.checking import (
    is_table,
    json_field,
    path_inside,
    tensor_names,
    tokens_added_after,
)
from promptcli.backbones.families import FAMILIES, family_of
from promptcli.backbones.locating import SHIPPED as BACKBONES
from promptcli.backbones.locating import SHIPPED_TABLES, locate
from promptcli.backbones.names import words_only
from promptcli.backbones.published_backbones import PUBLISHED
from promptcli.encoder.tensor_names import DEEP_PREFIX
from promptcli.encoder.text_rules import lower
from promptcli.errors import UsageError, shorten
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
from promptcli.storage.tensors import load_tensors
from promptcli.storage.typed_documents import read_document

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "config.json"
_HINT = "fetch the folder again"
_RERANKER = (
    "is a reranker or a classifier: it scores texts, or pairs of them, and has no vectors of"
    " sentences"
)
_NO_LIMIT = 1 << 30  # tokens; a larger number in a tokenizer's file means no limit
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
#: Setting of a module or a tokenizer -> its only supported value.
_USUAL = {
    "transformer_task": "feature-extraction",
    "module_input_name": "sentence_embedding",
    "processing_kwargs": {},
    "use_residual": False,
    "split_special_tokens": False,
}
#: targets of exports that hold a graph, from which no recipe can be read
_GRAPHS = ("onnx", "openvino")
#: PromptBERT's test templates, of BERT and of RoBERTa (run.sh of its code).
_TEMPLATES = {
    "bert": f'This sentence of "{SLOT}" means {MASK} .',
    "roberta": f"This sentence : ' {SLOT} ' means{MASK}.",
}
#: PromptBERT's place of denoising, by head (its code: T(h) - T(h_hat), or the head of h - h_hat).
_DENOISE = {"projection:mlm": "head", "projection:tanh": "hidden"}
#: Backbones of the models that SimCSE's authors released.
_SIMCSE = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")

Config = dict[str, Any]


@dataclass(frozen=True)
class _Folder:
    name: str  #: as the user gave it: a folder, or a hub id
    path: Path

    def document(self, file: str, kind: Any = Config) -> Any:
        if not (self.path / file).is_file():
            raise self.error(f"has no {file}; {_HINT}")
        return read_document(self.inside(file), kind, hint=_HINT, error=UsageError)

    def inside(self, name: str, file: str = "files") -> Path:
        """Return the path of a name given in one of the folder's files, unless it leads out of the
        folder.
        """
        return path_inside(self.name, self.path, name, file)

    def optional(self, file: str, kind: Any = Config) -> Any:
        """Return the content of a JSON file; empty if it is missing."""
        return self.document(file, kind) if (self.path / file).is_file() else kind()

    def tensors(self, file: str) -> "dict[str, Tensor]":
        if not (self.path / file).is_file():
            convert = f"`promptcli models import {self.name} --name NAME --convert`"
            raise self.error(f"has no {file}: pickles are not read; convert them, {convert}")
        return load_tensors(self.inside(file), hint=_HINT, error=UsageError)

    def error(self, reason: str) -> UsageError:
        return UsageError(f"{self.name} {reason}")

    def entry(
        self,
        kind: str,
        recipe: Recipe,
        tensors: "Mapping[str, Tensor]",
        prompts: LeadingTexts | None = None,
    ) -> Entry:
        name = self.name if kind == "language model" else self.path.resolve().name
        return Entry(
            name,
            recipe,
            dict(tensors),
            {"kind": kind},
            prompts=prompts or LeadingTexts(),
        )

    def note_assumed(self, recipe: Recipe) -> None:
        assumed = f"{recipe.prompt} {recipe.pooling}"
        note(f"{self.name} does not say how sentences are read; assumed unless given: {assumed}")


def read_model(name: str) -> Entry:
    """Return the encoder in a folder, or of a hub id with an optional ``@revision``."""
    return read_model_folder(name, locate(name)[0])


def read_model_folder(name: str, path: Path) -> Entry:
    """Return the encoder in a folder; ``name`` is its name in messages and recipes."""
    folder = _Folder(name, path)
    for file, (schema, read) in _FORMATS.items():
        if (path / file).is_file():
            return read(folder, folder.document(file, schema))
    raise UsageError(f"{name} is not a model folder: it has none of {', '.join(_FORMATS)}")


def _promptcli(folder: _Folder, manifest: Any) -> Entry:
    entry = read_entry(folder.path, checked=True)
    if entry.target in _GRAPHS:
        raise folder.error(
            f"is an export for {entry.target}: a graph; load the model that it was made from"
        )
    if entry.target is not None and is_table(folder.path):
        return _table(folder, folder.optional(MODULES, list[_Module]))
    own = (str(folder.path), str(folder.path / BACKBONE), *BACKBONES, *SHIPPED_TABLES)
    for recipe in (entry.recipe, entry.transfer or entry.recipe):
        name = recipe.backbone
        # a backbone elsewhere on this machine would be passed on with the model
        if name not in own and (words_only(name) or os.path.exists(name)):
            raise folder.error(
                f"has the backbone {shorten(name)}, outside of the folder; load it by its name in"
                " the registry, or fetch a folder that holds its backbone"
            )
    if entry.recipe.backbone == str(folder.path):
        return with_backbone(entry, folder.name)
    return entry


def _adapter(folder: _Folder, config: AdapterConfig) -> Entry:
    """Read an adapter of peft: prefix tuning is a deep prefix, a LoRA is its own backbone."""
    if config.peft_type != PREFIX_TUNING:
        # before a note; other kinds than LoRA are refused when it is loaded
        check_kind(folder.name, config)
        is_causal = config.task_type == "CAUSAL_LM"
        recipe = RECIPES["prompteol"] if is_causal else Recipe(pooling="last/cls")
        folder.note_assumed(recipe)
        return folder.entry("peft LoRA adapter", recipe.replace(backbone=folder.name), {})
    stored = folder.tensors(ADAPTER_WEIGHTS).get("prompt_embeddings")
    sizes = (config.num_layers, config.num_attention_heads, config.token_dim)
    numbers = _prefix(folder, sizes, stored)
    base = base_name(folder.name, folder.path, config)
    recipe = Recipe(
        f"{base}@{config.revision}" if config.revision else base,
        f"deep-prefix:{numbers.size(3)}",
        pooling="last/cls",
    )
    folder.note_assumed(recipe)
    return folder.entry("peft prefix tuning", recipe, {DEEP_PREFIX: numbers})


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


def _kinds(folder: _Folder, modules: list[_Module]) -> list[tuple[str, str]]:
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


def _sentence_transformers(folder: _Folder, modules: list[_Module]) -> Entry:
    kinds = _kinds(folder, modules)
    names = [kind for kind, _ in kinds]
    if names[:1] == ["StaticEmbedding"]:
        return _table(folder, modules)
    task = folder.optional("sentence_bert_config.json").get("transformer_task")
    if names == ["Transformer"] and task == "sequence-classification":
        raise folder.error(_RERANKER)
    if names[:2] != ["Transformer", "Pooling"]:
        raise folder.error(
            f"begins with {', '.join(names[:2]) or 'no module'}, not with Transformer and"
            " Pooling, or StaticEmbedding"
        )
    (_, body), (_, pooling), *after = kinds
    inside = f"{body}/" if body else ""
    owner, config_file = folder, f"{inside}{_CONFIG}"
    base = base_of(folder.name, folder.path / inside)
    if base is not None:  # an adapter has the configuration of its base
        owner, config_file = _Folder(base, locate(base)[0]), _CONFIG
    config: Config = owner.document(config_file)
    family = _check_family(owner, config)
    weights, counted = _weights(folder, folder.document(f"{pooling}/{_CONFIG}"))
    transforms, tensors = _after_pooling(folder, after)
    longest, rule = _reading(folder, inside, config)
    about = folder.optional("config_sentence_transformers.json", _About)
    prompts = _prompts(folder, about, counted)
    text = lower(prompts.default_text) if rule == "lower" else prompts.default_text
    if text and not counted:
        raise folder.error(
            "has a default prompt that its pooling leaves out, which is not supported"
        )
    end = tokens_added_after(folder.path / inside) if FAMILIES[family].causal else ""
    recipe = Recipe(
        backbone=str(folder.path / inside) if inside else folder.name,
        prompt=f"{text}{SLOT}{end}",
        period=False,
        pooling=f"last/{weights}",
        transforms=(*transforms, *_truncation(folder, about)),
        text_rule=rule,
        max_length=longest,
    )
    return folder.entry("sentence-transformers", recipe, tensors, prompts)


def _table(folder: _Folder, modules: list[_Module]) -> Entry:
    """Read a table of words: sentence-transformers' StaticEmbedding, or a model of model2vec."""
    (_, inside), *after = _kinds(folder, modules) or [("", "")]
    transforms, tensors = _after_pooling(folder, after)
    config = folder.optional(_CONFIG)
    if config.get("model_type") == "model2vec":
        transforms = ["normalize"] if config.get("normalize") else []
    about = folder.optional("config_sentence_transformers.json", _About)
    recipe = Recipe(
        str(folder.path / inside) if inside else folder.name,
        period=False,
        pooling="static/avg",
        transforms=(*transforms, *_truncation(folder, about)),
    )
    prompts = LeadingTexts() if about == _About() else _prompts(folder, about, True)
    return folder.entry("table of words", recipe, tensors, prompts)


def _check_family(folder: _Folder, config: Config) -> str:
    """Return the family of a language model if it is supported and needs no remote code."""
    family = str(family_of(config))
    if family in FAMILIES and "auto_map" not in config:
        return family
    reason = "its family is not supported"
    if "auto_map" in config:
        reason = "it comes with remote code, which is never run"
    raise folder.error(f"is a {family}: {reason}; supported: {', '.join(FAMILIES)}")


def _after_pooling(
    folder: _Folder, modules: list[tuple[str, str]]
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
        elif kind != "Dropout":  # has no effect at inference
            raise folder.error(
                f"has a module {kind} ({path}); supported: Dense, Normalize, Dropout"
            )
    return transforms, tensors


def _dense(folder: _Folder, path: str) -> "tuple[str, Tensor, Tensor]":
    """Return the activation, the weights and the bias of a layer."""
    import torch

    from promptcli.encoder.transforms.heads import ACTIVATIONS

    config: _DenseConfig = folder.document(f"{path}/{_CONFIG}", _DenseConfig)
    _check_usual(folder, f"{path}/{_CONFIG}", vars(config))
    activation = config.activation_function.rpartition(".")[2].lower()
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise folder.error(f"has a Dense layer with {activation} ({path}); supported: {known}")
    stored = folder.tensors(f"{path}/model.safetensors")
    weight = stored.get("linear.weight", torch.empty(0))
    if weight.dim() != 2:
        raise folder.error(f"has no matrix linear.weight in {path}; {_HINT}")
    return activation, weight, stored.get("linear.bias", weight.new_zeros(len(weight)))


def _prompts(folder: _Folder, about: _About, counted: bool) -> LeadingTexts:
    texts = {"query": "", "document": ""}  # sentence-transformers always has these
    texts |= {name: text or "" for name, text in (about.prompts or {}).items()}
    default = about.default_prompt_name
    if default is not None and default not in texts:
        raise folder.error(
            f"takes the prompt {default!r} by default and has none of that name; {_HINT}"
        )
    for text in texts.values():
        if SLOT in text or MASK in text:
            raise folder.error(f"has a prompt with {SLOT} or {MASK} ({text!r})")
    return LeadingTexts(texts, default, counted)


def _weights(folder: _Folder, config: Config) -> tuple[str, bool]:
    """Return our name of a pooling, and whether it includes the tokens of a prompt."""
    flags = [name for name, on in config.items() if name.startswith("pooling_mode_") and on is True]
    named = config.get("pooling_mode", [mode for flag, mode in FLAGS.items() if config.get(flag)])
    modes = named if isinstance(named, list) else [named]
    unknown = [str(mode) for mode in modes if mode not in MODES]
    unknown += [flag for flag in flags if flag not in FLAGS]
    if unknown or not modes:
        raise folder.error(
            f"pools by {', '.join(unknown) or 'nothing'}; supported: {', '.join(MODES)}"
        )
    return "+".join(MODES[mode] for mode in modes), bool(config.get("include_prompt", True))


def _reading(folder: _Folder, inside: str, config: Config) -> tuple[int | None, str | None]:
    """Return the longest input in tokens (None: the backbone's limit), and the text rule.

    Older versions store the limit with the module, newer ones with the tokenizer.
    """
    module = folder.optional(f"{inside}sentence_bert_config.json")
    _check_usual(folder, f"{inside}sentence_bert_config.json", module)
    # not read_document: a tokenizer without a limit has an integer of 31 digits
    limit, split = (
        json_field(folder.path / f"{inside}tokenizer_config.json", name)
        for name in ("model_max_length", "split_special_tokens")
    )
    _check_usual(folder, f"{inside}tokenizer_config.json", {"split_special_tokens": split})
    longest = module.get("max_seq_length") or limit
    most = _NO_LIMIT
    if isinstance(positions := config.get("max_position_embeddings"), int):
        pads = FAMILIES[str(family_of(config))].pads_before_positions
        most = min(positions - 2 * pads, _NO_LIMIT)
    tokenizer = folder.path / f"{inside}tokenizer.json"
    strips = not tokenizer.is_file() or b"BertPreTokenizer" in tokenizer.read_bytes()
    rule = None if strips else "as-typed"
    if module.get("do_lower_case"):
        rule = "lower"
    return longest if isinstance(longest, int) and longest < most else None, rule


def _check_usual(folder: _Folder, file: str, config: Config) -> None:
    """Refuse a setting of sentence-transformers that changes vectors and is not supported here."""
    for name, usual in _USUAL.items():
        value = config.get(name)
        if value not in (None, False, {}, usual):
            raise folder.error(f"sets {name} to {shorten(value)} in {file}, which is not supported")


def _truncation(folder: _Folder, about: _About) -> list[str]:
    """Return the transform that keeps ``truncate_dim`` columns; note a similarity other than
    cosine.
    """
    if about.similarity_fn_name not in (None, "cosine"):
        note(
            f"{folder.name} is compared by {about.similarity_fn_name}; promptcli compares by cosine"
        )
    return [] if about.truncate_dim is None else [f"truncate:{about.truncate_dim}"]


def _plain(folder: _Folder, config: Config) -> Entry:
    """Read a table of model2vec, the authors' own checkpoints, recognised by tensors and names, and
    plain language models.
    """
    if config.get("model_type") == "model2vec":
        return _table(folder, [])
    family = _check_family(folder, config)
    weights = "model.safetensors"
    names = tensor_names(folder.path / weights)
    called = folder.name.lower()
    classes = tuple(map(str, config.get("architectures") or ()))
    prefix = "prefix_encoder.embedding.weight"
    # SimCSE's program and its successors store a projection beside the language model, or the name
    # of its class. They do not store the method or whether it is supervised: the folder's name
    # decides.
    trained = "mlp.dense.weight" in names or any(name.endswith("ForCL") for name in classes)
    # the authors renamed the projections of their released models to the pooler
    shapes = (PUBLISHED[name] for name in _SIMCSE)
    released = _has_pooler(names) and any(published.describes(config) for published in shapes)
    recipe = Recipe(folder.name, pooling="last/cls")
    if prefix in names:
        kind = "PromCSE checkpoint"
    elif trained and re.search(r"prompt-?_?(ro)?bert", called):
        kind = "PromptBERT checkpoint"
        template = _TEMPLATES["roberta" if "roberta" in family else "bert"]
        recipe = recipe.replace(prompt=template, pooling="last/mask")
    elif trained or ("simcse" in called and released):
        kind = "SimCSE checkpoint"
    else:
        remedy = "; for its language model alone give it as the backbone"
        if any(name.endswith("ForSequenceClassification") for name in classes):
            raise folder.error(f"{_RERANKER}{remedy}")
        for path in sorted(folder.path.glob("1_*")):
            raise folder.error(
                f"has {path.name} and no {MODULES}, which says how it is used; {_HINT}{remedy}"
            )
        recipe = Recipe(folder.name, pooling="last/last-token" if FAMILIES[family].causal else "")
        folder.note_assumed(recipe)
        return folder.entry("language model", recipe, {})
    supervised = bool(re.search(r"(?<!un)sup", called))
    how = "and read as an unsupervised one, without a head: its name has neither sup nor unsup"
    if "sup" in called:
        how = f"{'supervised' if supervised else 'unsupervised'} by its name"
    stored = folder.tensors(weights) if names else {}
    tensors: dict[str, Tensor] = {}
    if supervised:
        recipe, tensors = _head(recipe, stored)
    if prefix in names:
        sizes = ("num_hidden_layers", "num_attention_heads", "hidden_size")
        numbers = _prefix(folder, tuple(map(config.get, sizes)), stored[prefix])
        recipe = recipe.replace(prompt=f"deep-prefix:{numbers.size(3)}")
        tensors[DEEP_PREFIX] = numbers
    note(f"{folder.name} is taken for a {kind}, {how}")
    return folder.entry(kind, recipe, tensors)


def _has_pooler(names: Collection[str]) -> bool:
    return any("pooler." in name for name in names)


def _size(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _prefix(folder: _Folder, sizes: tuple[Any, ...], stored: "Tensor | None") -> "Tensor":
    """Return keys and values (L, 2, h, p, d/h), stored as (p, 2 L d).

    ``sizes`` are layers, heads and width, by the configuration.
    """
    layers, heads, width = map(_size, sizes)
    shape = (0,) if stored is None else tuple(stored.shape)
    if stored is None or 0 in (layers, heads, width) or shape != (*shape[:1], 2 * layers * width):
        shapes = f"{shape}, and its configuration says (length, {2 * layers * width})"
        raise folder.error(f"has a prefix of shape {shapes}; {_HINT}")
    parts = stored.float().view(len(stored), layers, 2, heads, width // heads)
    return parts.permute(1, 2, 3, 0, 4).contiguous()


def _head(recipe: Recipe, stored: "Mapping[str, Tensor]") -> "tuple[Recipe, dict[str, Tensor]]":
    """Return a recipe with the head that a supervised checkpoint keeps, and the head's tensors."""
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
_FORMATS: dict[str, tuple[Any, Callable[[_Folder, Any], Entry]]] = {
    MODEL_MANIFEST: (Config, _promptcli),
    MODULES: (list[_Module], _sentence_transformers),
    ADAPTER_CONFIG: (AdapterConfig, _adapter),
    _CONFIG: (Config, _plain),
}
