"""An encoder in the form of other programs."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone_files import (
    head_tensors,
    save_tokenizer,
    tokenizer_definition,
)
from promptcli.backbones.tokenizer import remove_blanks
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.template import text_rule
from promptcli.encoder.transforms.heads import ACTIVATIONS, ClsPooler, Dense, Normalize, Projection
from promptcli.encoder.transforms.transform import Transform
from promptcli.errors import UsageError
from promptcli.recipe import Recipe
from promptcli.storage.tensors import save_tensors
from promptcli.storage.typed_documents import to_json


@dataclass(frozen=True)
class Exported:
    """An exported folder."""

    load: str  #: Python that loads it
    tool: str | None = None  #: the program whose vectors were compared; None if it is not installed
    cosine: float | None = None  #: the lowest of the probes' vectors to the encoder's
    notes: tuple[str, ...] = ()  #: differences, and what loading needs
    backbone: str | None = None  #: the backbone by the folder's own recipe; None: the encoder's
    target: str = ""
    folder: Path = Path()
    bytes: int = 0  #: of all files


#: Tokenizers normalise the text before and after a special token separately.
TYPED_SPECIAL = (
    "a sentence in which a special token is typed out, e.g. [MASK], has another vector there"
)


class InexactError(UsageError):
    """A format cannot hold an encoder exactly; the message is the reason."""


AROUND = "⊢⊢⊢"  #: put in front of every text by exports without another place for the template

_PERIOD = r"""(?<=[^.?"'⊢])\z"""  # the end of a text that has no end mark; no text has no end
# AROUND itself is normalised too, and stays unchanged
_START = rf"\A(?!{AROUND})"
_END = r"(?<!⊢)\z"

#: Text rules as replacements of a pattern by a text, in order.
_RULES: dict[str, tuple[tuple[str, str], ...]] = {
    "prompteol": (('"', "'"), (r"\?\z", ".")),
    "full-stop": ((r"(?<=[^\p{P}$+<=>^`|~\s⊢])\z", " ."),),
}


def changes_ends(recipe: Recipe) -> bool:
    """Return whether the normalizer of a recipe changes the end of a text."""
    rules = _RULES.get(recipe.text_rule or "", ())
    return bool(recipe.period) or any(pattern.endswith(r"\z") for pattern, _ in rules)


def with_template(
    encoder: TorchEncoder,
    definition: Mapping[str, Any] | None = None,
    *,
    left: Sequence[int] | None = None,
    right: Sequence[int] | None = None,
    marks: int = 0,
) -> dict[str, Any]:
    """Return a ``tokenizer.json`` that puts the template around a sentence.

    ``definition`` replaces the backbone's own.

    A post-processor sets the ids ``left`` and ``right`` (default: the template's) around the
    sentence's, so that truncation cuts the sentence only. The normalizer adds the period and the
    characters that touch [X], and ``AROUND`` in front of every text, as often as ``marks`` says.
    """
    if definition is None:
        changed = tokenizer_definition(encoder.backbone)
    else:
        changed = copy.deepcopy(dict(definition))
    template = encoder.template
    if template.has_blocks:
        raise InexactError(
            f"template {template.text!r} has placeholders between the blocks of a text, and no"
            " tokenizer.json sets them"
        )
    if template.copies > 1:
        raise InexactError(
            f"template {template.text!r} has two places for the sentence, and no tokenizer.json"
            " repeats a text"
        )
    rule = text_rule(encoder.recipe.text_rule)
    name = encoder.recipe.text_rule
    before, after = template.prepare(["\0"], False)[0].split("\0")
    steps: list[dict[str, Any]] = []
    if rule.strips:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    if encoder.recipe.period:
        steps.append({"type": "Replace", "pattern": {"Regex": _PERIOD}, "content": "."})
    if name == "lower":
        steps.append({"type": "Lowercase"})
    steps += [
        {"type": "Replace", "pattern": {"Regex": old}, "content": new}
        for old, new in _RULES.get(name or "", ())
    ]
    if before and not marks:
        steps.append({"type": "Prepend", "prepend": before})
    if after:
        steps.append({"type": "Replace", "pattern": {"Regex": _END}, "content": after})
    normalizer = changed.get("normalizer") or {}
    members = normalizer.get("normalizers", [normalizer] if normalizer else [])
    # a space that the template sets itself
    steps += [member for member in members if member["type"] != "Prepend"]
    if marks:  # last: the tokenizers library panics if it comes before BERT's normalizer
        start = AROUND * marks + before
        steps.append({"type": "Replace", "pattern": {"Regex": _START}, "content": start})
    changed["normalizer"] = {"type": "Sequence", "normalizers": steps}
    remove_blanks(changed.get("pre_tokenizer"))  # the template has the spaces
    sides = {
        "<left>": template.prefix if left is None else left,
        "<right>": template.suffix if right is None else right,
    }
    texts = {token["id"]: token["content"] for token in changed["added_tokens"]}

    def around(*sequences: str) -> list[dict[str, Any]]:
        slots: list[dict[str, Any]] = [
            {"Sequence": {"id": name, "type_id": 0}} for name in sequences
        ]
        ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in sides]
        return [ends[0], *slots, ends[1]]

    changed["post_processor"] = {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A", "B"),
        "special_tokens": {
            name: {
                "id": name,
                "ids": list(ids),
                "tokens": [texts.get(token, str(token)) for token in ids],
            }
            for name, ids in sides.items()
        },
    }
    return changed


def write_tokenizer(encoder: TorchEncoder, folder: Path) -> list[str]:
    """Write a tokenizer whose ids are the encoder's inputs, with its prompt around them and cut to
    its length; return how it differs, in words.

    Raises:
        InexactError: No ``tokenizer.json`` expresses the prompt.
    """
    cut = {
        "direction": "Right",
        "max_length": encoder.max_length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    definition = {**with_template(encoder), "truncation": cut}
    save_tokenizer(encoder.backbone, folder, definition, encoder.max_length)
    if changes_ends(encoder.recipe):
        return [TYPED_SPECIAL]
    return []


def add_tokens(definition: dict[str, Any], names: Sequence[str]) -> list[int]:
    """Add special tokens to a ``tokenizer.json``; return their ids, which follow the highest id."""
    vocabulary = definition["model"]["vocab"]
    ids = {*(vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary)))}
    ids |= {token["id"] for token in definition["added_tokens"]}
    first = max(ids) + 1
    if len(ids) < first:
        raise InexactError(
            "the numbers of its vocabulary have gaps, so no token can be added at the end"
        )
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    definition["added_tokens"] += [
        {"id": first + n, "content": name, **flags} for n, name in enumerate(names)
    ]
    return list(range(first, first + len(names)))


IDENTITY = "torch.nn.modules.linear.Identity"
#: What may follow a dense layer, by the name of its class.
_CLASSES = {
    f"torch.nn.modules.activation.{name}": ACTIVATIONS[name.lower()]
    for name in ("Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")
}
_PROBES = 16  # random vectors on which a map is compared with its affine form
_FAR = 2.0**14  # length of the vectors that give the slope: the constant's rounding is negligible
_CLOSE = 1e-4


@dataclass
class Module:
    """A module of sentence-transformers."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def _dense(weight: Tensor, bias: Tensor, activation: str = IDENTITY) -> Module:
    out, width = weight.shape
    config = {
        "in_features": width,
        "out_features": out,
        "bias": True,
        "activation_function": activation,
    }
    return Module(
        "Dense", config, {"linear.weight": weight.contiguous(), "linear.bias": bias.contiguous()}
    )


def layers_of(encoder: TorchEncoder) -> list[Module]:
    """Return the transforms of an encoder as modules, in order.

    InexactError names one that is not.
    """
    layers: list[Module] = []
    width = encoder.backbone.last_width
    for transform in encoder.transforms:
        if isinstance(transform, ClsPooler):
            head = head_tensors(encoder.backbone)
            parts: list[Module] | None = [
                _dense(head["weight"], head["bias"], next(iter(_CLASSES)))
            ]
        elif isinstance(transform, Projection):
            parts = _of_network(transform.module)
        elif isinstance(transform, Dense):
            name = transform.activation
            kind = next(
                (path for path in _CLASSES if path.rpartition(".")[2].lower() == name), IDENTITY
            )
            weight, bias = transform.tensors().values()
            parts = [_dense(weight, bias, kind)]
        elif isinstance(transform, Normalize):
            layers.append(Module("Normalize", {}))
            continue
        else:
            parts = _of_map(transform, width)
        if parts is None:
            raise InexactError(
                f"transform {transform.spec!r} is neither an affine map nor dense layers"
            )
        layers += parts
        width = len([*parts[-1].tensors.values()][-1])  # of the bias
    return layers


def _of_map(transform: Transform, width: int) -> list[Module] | None:
    """Return an affine map as one layer, or None if the transform is not affine."""

    def function(vectors: Tensor) -> Tensor:
        for _, step in transform.stages:
            vectors = step(vectors)
        return vectors.float().cpu()

    random = torch.randn(_PROBES, width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        bias = function(torch.zeros(1, width))[0]
        slope = (function(torch.eye(width) * _FAR) - bias) / _FAR
        wanted = function(random)
        affine = random @ slope + bias
    if (wanted - affine).abs().max() > _CLOSE * wanted.abs().max():
        return None
    return [_dense(slope.T, bias.clone())]


def _of_network(network: nn.Module) -> list[Module] | None:
    """Return a sequence of linear layers, activations and LayerNorms, or None if the network is
    anything else.
    """
    layers: list[Module] = []
    for module in network.modules():
        if any(True for _ in module.children()):
            continue
        if isinstance(module, nn.Linear):
            layers.append(_dense(module.weight.detach().cpu(), module.bias.detach().cpu()))
        elif isinstance(module, nn.LayerNorm):
            named = {
                "norm.weight": module.weight.detach().cpu(),
                "norm.bias": module.bias.detach().cpu(),
            }
            layers.append(Module("LayerNorm", {"dimension": len(module.bias)}, named))
        elif layers and layers[-1].kind == "Dense" and (name := _activation(module)):
            layers[-1].config["activation_function"] = name
        elif not isinstance(module, nn.Identity | nn.Dropout):
            return None
    return layers


def _activation(module: nn.Module) -> str | None:
    points = torch.linspace(-6, 6, 101)
    values = module(points)
    return next(
        (
            name
            for name, curve in _CLASSES.items()
            if torch.allclose(curve(points), values, atol=1e-6)
        ),
        None,
    )


@dataclass
class StaticTable:
    """A static recipe as a row for every token: a sentence is the mean of its tokens' rows."""

    rows: Tensor  #: (v, d)
    definition: dict[str, Any]  #: of the tokenizer, ``tokenizer.json``
    max_length: int  #: tokens of a sentence, marks included
    notes: tuple[str, ...]  #: differences in the program that reads it


def static_table(encoder: TorchEncoder, program: str, *, same_length: bool = False) -> StaticTable:
    """Return a static recipe as a table for ``program``.

    The template's tokens around a sentence become one mark in front of it, so that vectors have
    the same direction; with ``same_length`` as many marks as there are tokens, so that vectors are
    equal.
    """
    if encoder.pooling.spec not in ("static/avg", "mlm-head/avg"):
        raise InexactError(
            f"{program} holds a table of words, which pooling {encoder.pooling.spec!r} does not"
            f" come from; give a static model such as mini-static, or the pooling"
            " static/avg"
        )
    if encoder.backbone.words_only:
        raise InexactError("word vectors have their own tokenizer, which no tokenizer.json holds")
    if type(encoder.prompt) is not Prompt or encoder.denoising.name != "none":
        raise InexactError("learned prompts and denoising are not rows of words")
    backbone = encoder.backbone
    template = encoder.template
    base = (
        (backbone.token_rows if encoder.pooling.needs.static else backbone.head.rows)
        .detach()
        .float()
        .cpu()
    )
    matrix = torch.eye(base.size(1))
    bias = torch.zeros(base.size(1))
    for layer in layers_of(encoder):
        if layer.config.get("activation_function") != IDENTITY:
            raise InexactError("a table of words can only hold transforms that are affine maps")
        weight, shift = layer.tensors.values()
        matrix = matrix @ weight.T
        bias = bias @ weight.T + shift
    rows = base @ matrix + bias
    around = [*template.prefix, *template.suffix]
    marks = len(around)
    if around and not same_length:
        marks = 1
    definition = with_template(encoder, marks=marks)
    definition["post_processor"] = None
    notes = [f"in {program} an empty sentence gets a zero vector"]
    if len(around) < template.length:
        notes.append(f"in {program} a sentence that is cut loses the mark of the template after it")
    if around:
        notes.append(TYPED_SPECIAL)
        number = add_tokens(definition, [AROUND])[0]
        definition["added_tokens"][-1] |= {"special": False, "normalized": True}
        extended = rows.new_zeros(max(len(rows), number + 1), rows.size(1))
        extended[: len(rows)] = rows
        extended[number] = rows[around].sum(0) / marks
        rows = extended
    room = encoder.max_length - len(around) + marks
    return StaticTable(rows, definition, room, tuple(notes))


def write_static(table: StaticTable, folder: Path) -> None:
    """Write a table as sentence-transformers' StaticEmbedding."""
    definition = copy.deepcopy(table.definition)
    definition["truncation"] = {
        "direction": "Right",
        "max_length": table.max_length,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
    ]
    (folder / "modules.json").write_text(to_json(modules), encoding="utf-8")
    (folder / "tokenizer.json").write_text(
        json.dumps(definition, ensure_ascii=False), encoding="utf-8"
    )
    save_tensors({"embedding.weight": table.rows.contiguous()}, folder / "model.safetensors")
