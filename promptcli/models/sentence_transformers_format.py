"""Write an encoder as modules of sentence-transformers, as a table of words, or as a
``tokenizer.json`` that makes its inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone_files import (
    put_around,
    save_tokenizer,
    save_weights,
    token_ids,
    tokenizer_definition,
    whole_inputs,
    with_rows,
    write_json,
)
from promptcli.backbones.model_folder import CONFIG, TOKENIZER, WEIGHTS
from promptcli.backbones.tokenizer import remove_blanks
from promptcli.encoder.components import Prompt, Transform
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts.soft_template import TENSOR as SOFT
from promptcli.encoder.prompts.soft_template import SoftTemplate
from promptcli.encoder.template import text_rule
from promptcli.encoder.transforms.heads import ACTIVATIONS, Dense, Normalize
from promptcli.errors import UsageError
from promptcli.grammar import split_name
from promptcli.models import parity
from promptcli.models.entries import MODULES
from promptcli.models.foreign_formats import FLAGS, MODEL_SETTINGS, MODES, MODULE_SETTINGS
from promptcli.recipe import Recipe
from promptcli.storage.tensors import save_tensors


@dataclass(frozen=True)
class Exported:
    """An exported folder."""

    load: str  #: Python that loads it
    use: str = ""  #: Python example for its card
    tool: str | None = None  #: the program whose vectors were compared; None if it is not installed
    cosine: float | None = None  #: the lowest cosine of the program's vectors with the encoder's
    notes: tuple[str, ...] = ()  #: differences, and requirements for loading
    backbone: str | None = None  #: the backbone of the folder's own recipe; None: the encoder's
    base: str | None = None  #: the hub id of the model that an adapter adapts
    target: str = ""
    folder: Path = Path()
    bytes: int = 0  #: of all files


#: The reason: tokenizers normalise the text before and after a special token separately.
TYPED_SPECIAL = (
    "a sentence with a literal special token, e.g. [MASK], gets a different vector there"
)


class InexactError(UsageError):
    """A format cannot hold an encoder exactly; the message is the reason."""


TEMPLATE_TOKEN = "⊢⊢⊢"  #: represents the template in front of every text of a table of words

_PERIOD = r"""(?<=[^.?"'⊢])\z"""  # the end of a text without an end mark; not of an empty text
# patterns that leave TEMPLATE_TOKEN unchanged, which the normalizer also reads
_START = rf"\A(?!{TEMPLATE_TOKEN})"
_END = r"(?<!⊢)\z"

#: Text rule -> pairs of a pattern and the text that replaces it, in order.
_RULES: dict[str, tuple[tuple[str, str], ...]] = {
    "prompteol": (('"', "'"), (r"\?\z", ".")),
    "full-stop": ((r"(?<=[^\p{P}$+<=>^`|~\s⊢])\z", " ."),),
}


def changes_ends(recipe: Recipe) -> bool:
    """Return whether the normalizer of a recipe changes the end of a text."""
    rules = _RULES.get(recipe.text_rule or "", ())
    return bool(recipe.period) or any(pattern.endswith(r"\z") for pattern, _ in rules)


def set_normalizer(encoder: TorchEncoder, definition: dict[str, Any], *, marks: int = 0) -> None:
    """Let a ``tokenizer.json`` normalise a sentence as the encoder does: by text rule and period,
    with the characters of the template that touch [X].

    The normaliser also puts ``TEMPLATE_TOKEN`` in front of every text, ``marks`` times.
    """
    template = encoder.template
    if template.has_blocks or template.copies > 1:
        raise InexactError(
            f"template {template.text!r} has placeholders between the blocks of a text, or two"
            " places for the sentence, and no tokenizer.json repeats a text or sets them"
        )
    name = encoder.recipe.text_rule or ""
    before, after = template.with_touching(["\0"])[0].split("\0")
    steps: list[dict[str, Any]] = []
    if text_rule(encoder.recipe.text_rule).strips:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    if encoder.recipe.period:
        steps.append(_replace(_PERIOD, "."))
    if name == "lower":
        steps.append({"type": "Lowercase"})
    steps += [_replace(pattern, text) for pattern, text in _RULES.get(name, ())]
    if before and not marks:
        steps.append({"type": "Prepend", "prepend": before})
    if after:
        steps.append(_replace(_END, after))
    remove_blanks(definition)  # the template has these spaces
    steps += definition["normalizer"]["normalizers"]
    if marks:  # at the end, because the library panics if it comes before BERT's normalizer
        steps.append(_replace(_START, TEMPLATE_TOKEN * marks + before))
    definition["normalizer"] = {"type": "Sequence", "normalizers": steps}


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _truncation(max_length: int) -> dict[str, Any]:
    """Return how a ``tokenizer.json`` cuts inputs to a number of tokens."""
    return {
        "truncation": {
            "direction": "Right",
            "max_length": max_length,
            "strategy": "LongestFirst",
            "stride": 0,
        }
    }


def write_tokenizer(encoder: TorchEncoder, folder: Path) -> list[str]:
    """Write a tokenizer whose ids are the encoder's inputs: with the template around a sentence,
    cut to its longest input. Return notes about differences.

    Raises:
        InexactError: No ``tokenizer.json`` expresses the prompt.
    """
    definition = tokenizer_definition(encoder.backbone)
    set_normalizer(encoder, definition)
    put_around(definition, encoder.template.prefix, encoder.template.suffix)
    definition |= _truncation(encoder.max_length)
    save_tokenizer(encoder.backbone, folder, definition, encoder.max_length)
    return [TYPED_SPECIAL] if changes_ends(encoder.recipe) else []


def add_tokens(definition: dict[str, Any], names: Sequence[str]) -> list[int]:
    """Add special tokens to a ``tokenizer.json``; return their ids, which follow the highest id."""
    first = count_tokens(definition)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ids = list(range(first, first + len(names)))
    for number, name in zip(ids, names, strict=True):
        token = {"id": number, "content": name, **flags, "special": True}
        definition["added_tokens"].append(token)
    return ids


def count_tokens(definition: dict[str, Any]) -> int:
    """Return the number of tokens of a ``tokenizer.json``, added tokens included; refuse ids with
    gaps.
    """
    ids = token_ids(definition)
    if len(ids) != 1 + max(ids):
        raise InexactError("its token ids have gaps, and other programs number tokens without gaps")
    return len(ids)


IDENTITY = "torch.nn.modules.linear.Identity"
#: Class of an activation after a dense layer -> its function.
_CLASSES = {
    IDENTITY: ACTIVATIONS["identity"],
    **{
        f"torch.nn.modules.activation.{name}": ACTIVATIONS[name.lower()]
        for name in ("Tanh", "GELU", "ReLU", "SiLU", "Sigmoid")
    },
}
_PROBE_VECTORS = 16  # random vectors on which a map is compared with its affine form
# length of the vectors that give the slope: so large that the bias's rounding is negligible
_PROBE_LENGTH = 2.0**14
_TOLERANCE = 1e-4


@dataclass
class Module:
    """A module of sentence-transformers."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def _dense(weight: Tensor, bias: Tensor, activation: str = IDENTITY) -> Module:
    out, width = weight.shape
    config = {"in_features": width, "out_features": out, "bias": True}
    tensors = {"linear.weight": weight.contiguous(), "linear.bias": bias.contiguous()}
    return Module("Dense", config | {"activation_function": activation}, tensors)


def transform_modules(encoder: TorchEncoder) -> list[Module]:
    """Return the transforms of an encoder as modules, in order.

    Raises:
        InexactError: No module expresses a transform.
    """
    modules: list[Module] = []
    width = encoder.backbone.last_width
    for transform in encoder.transforms:
        if isinstance(transform, Normalize):
            modules.append(Module("Normalize", {}))
            continue
        if transform.network is not None:
            layers = _network_layers(transform.network)
        elif isinstance(transform, Dense):
            weight, bias = transform.tensors().values()
            activation = _activation(ACTIVATIONS[transform.activation])
            layers = [_dense(weight, bias, activation)] if activation else []
        else:
            layers = _affine_layer(transform, width)
        if not layers:
            raise InexactError(
                f"transform {transform.spec!r} is neither an affine map nor dense layers"
            )
        modules += layers
        width = len([*layers[-1].tensors.values()][-1])  # the last tensor is a bias
    return modules


def _affine_layer(transform: Transform, width: int) -> list[Module]:
    """Return an affine transform as one layer, or no layer if it is not affine."""

    def function(vectors: Tensor) -> Tensor:
        for _, step in transform.stages:
            vectors = step(vectors)
        return vectors.float().cpu()

    random = torch.randn(_PROBE_VECTORS, width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        bias = function(torch.zeros(1, width))[0]
        slope = (function(torch.eye(width) * _PROBE_LENGTH) - bias) / _PROBE_LENGTH
        exact = function(random)
        affine = random @ slope + bias
    if (exact - affine).abs().max() > _TOLERANCE * exact.abs().max():
        return []
    return [_dense(slope.T, bias.clone())]


def _network_layers(network: nn.Module) -> list[Module]:
    """Return a sequence of linear layers, activations and LayerNorms as modules, or no module if
    the network has other parts.
    """
    layers: list[Module] = []
    for module in network.modules():
        if any(module.children()) or isinstance(module, nn.Identity | nn.Dropout):
            continue
        tensors = {name: tensor.cpu() for name, tensor in module.state_dict().items()}
        if isinstance(module, nn.Linear):
            layers.append(_dense(tensors["weight"], tensors["bias"]))
        elif isinstance(module, nn.LayerNorm):
            named = {f"norm.{name}": tensor for name, tensor in tensors.items()}
            layers.append(Module("LayerNorm", {"dimension": len(module.bias)}, named))
        elif layers and layers[-1].kind == "Dense" and (name := _activation(module)):
            layers[-1].config["activation_function"] = name
        else:
            return []
    return layers


def _activation(function: Callable[[Tensor], Tensor]) -> str | None:
    """Return the class of an activation; None if sentence-transformers has no such class."""
    points = torch.linspace(-6, 6, 101)
    values = function(points)
    equal_classes = (
        name for name, curve in _CLASSES.items() if torch.allclose(curve(points), values, atol=1e-6)
    )
    return next(equal_classes, None)


@dataclass
class StaticTable:
    """A static recipe as a row for every token: a sentence is the mean of its tokens' rows."""

    rows: Tensor  #: (v, d)
    definition: dict[str, Any]  #: the tokenizer's ``tokenizer.json``
    max_length: int  #: tokens of a sentence, marks included
    notes: tuple[str, ...]  #: differences of the vectors in the program that reads the table


def static_table(encoder: TorchEncoder, program: str) -> StaticTable:
    """Return a static recipe as a table for ``program``.

    If k tokens of the template are around a sentence, k marks are in front of it in the table's
    tokenizer; the row of a mark is the mean of the rows of these tokens.
    """
    if encoder.pooling.spec not in ("static/avg", "mlm-head/avg"):
        raise InexactError(
            f"{program} holds a table of words, which pooling {encoder.pooling.spec!r} does not"
            " average; give a static model such as mini-static, or the pooling static/avg"
        )
    if encoder.backbone.is_word_table:
        raise InexactError("word vectors have their own tokenizer, which no tokenizer.json holds")
    if type(encoder.prompt) is not Prompt or encoder.denoising.name != "none":
        raise InexactError("learned prompts and denoising are not rows of words")
    backbone = encoder.backbone
    template = encoder.template
    rows = (
        backbone.word_embeddings
        if encoder.pooling.needs.static
        else backbone.head.output_embeddings
    )
    rows = rows.detach().float().cpu()
    for layer in transform_modules(encoder):
        if layer.config.get("activation_function") != IDENTITY:
            raise InexactError("a table of words can only hold transforms that are affine maps")
        weight, bias = layer.tensors.values()
        rows = rows @ weight.T + bias
    around = [*template.prefix, *template.suffix]
    definition = tokenizer_definition(backbone)
    set_normalizer(encoder, definition, marks=len(around))
    definition["post_processor"] = None
    notes = [f"in {program} an empty sentence gets a zero vector"]
    if len(around) < template.length:
        notes.append(f"in {program} a sentence that is cut loses the mark of the template after it")
    if around:
        notes.append(TYPED_SPECIAL)
        number = add_tokens(definition, [TEMPLATE_TOKEN])[0]
        definition["added_tokens"][-1] |= {"special": False, "normalized": True}
        rows = with_rows(rows, {number: rows[around].mean(0)})
    return StaticTable(rows, definition, encoder.max_length, tuple(notes))


def write_static(table: StaticTable, folder: Path) -> None:
    """Write a table as sentence-transformers' StaticEmbedding."""
    write_json(folder / MODULES, [_row(0, "StaticEmbedding", "")])
    definition = table.definition | _truncation(table.max_length)
    write_json(folder / TOKENIZER, definition, indent=None)
    save_tensors({"embedding.weight": table.rows.contiguous()}, folder / WEIGHTS)


_LAYERS = "WeightedLayerPooling"
_READ_MASK = "[promptcli-mask]"  #: replaces the template's mask; a sentence may contain [MASK]
#: Our weights -> their flag in sentence-transformers, in the order in which several are joined.
_FLAGS = {MODES[mode]: flag for flag, mode in FLAGS.items()}


def write_modules(encoder: TorchEncoder, folder: Path) -> tuple[str, ...]:
    """Write Transformer, pooling and dense layers; return notes about different vectors."""
    if encoder.backbone.is_word_table:
        raise InexactError("a table of words has no layers")
    model_settings = {
        "__version__": {},
        "prompts": dict(encoder.prompts),
        "default_prompt_name": encoder.default_prompt_name,
        "similarity_fn_name": "cosine",
    }
    if encoder.prompts:
        encoder = encoder.with_leading_text("")
    backbone = encoder.backbone
    reads_mask = encoder.recipe.parts.pooling.names == ("mask",)
    modules = [*_pooling_modules(encoder), *transform_modules(encoder)]
    has_layers = modules[0].kind == _LAYERS
    definition, rows = _template_tokens(encoder, reads_mask=reads_mask)
    if reads_mask:
        vocabulary = [""] * max(len(backbone.word_embeddings), max(rows) + 1)
        vocabulary[max(rows)] = _READ_MASK
        config = {
            "vocab": vocabulary,
            "word_weights": {_READ_MASK: 1.0},
            "unknown_word_weight": 0.0,
        }
        modules.insert(1 if has_layers else 0, Module("WordWeights", config))
    save_weights(backbone, folder, rows=rows, output_hidden_states=has_layers)
    save_tokenizer(backbone, folder, definition, encoder.max_length)
    differences = _compare_ids(encoder, folder)
    reading: dict[str, Any] = {"max_seq_length": encoder.max_length, "do_lower_case": False}
    if backbone.family.pooler and backbone.model.pooler is None:
        # otherwise the library makes a pooler with random weights, and warns
        reading["model_args"] = {"add_pooling_layer": False}
    write_json(folder / MODULE_SETTINGS, reading)
    write_json(folder / MODEL_SETTINGS, model_settings)
    rows_of_modules = [_row(0, "Transformer", "")]
    for number, module in enumerate(modules, 1):
        path = f"{number}_{module.kind}"
        rows_of_modules.append(_row(number, module.kind, path))
        (folder / path).mkdir()
        write_json(folder / path / CONFIG, module.config, indent=None)
        if module.tensors:
            save_tensors(module.tensors, folder / path / WEIGHTS)
    write_json(folder / MODULES, rows_of_modules)
    return differences


def _row(number: int, kind: str, path: str) -> dict[str, str | int]:
    """Return a module's row in ``modules.json``."""
    kind = f"sentence_transformers.models.{kind}"
    return {"idx": number, "name": str(number), "path": path, "type": kind}


def _pooling_modules(encoder: TorchEncoder) -> list[Module]:
    """Return Pooling, and before it the module that averages layers, unless only the last layer is
    read.
    """
    pooling = encoder.recipe.parts.pooling
    width = encoder.backbone.width
    last = encoder.backbone.n_layers
    kinds = ["avg" if kind == "mask" else kind for kind in pooling.names]
    in_order = kinds == [kind for kind in _FLAGS if kind in kinds]
    if not in_order or pooling.states.name not in ("last", "last-two", "first-last", "layer"):
        raise InexactError(
            f"pooling {encoder.pooling.spec!r} is not a module of sentence-transformers"
        )
    if encoder.denoising.name != "none":
        raise InexactError("denoising depends on the length of the sentence, which no module has")
    layers = encoder.pooling.states.layers
    modules = []
    if layers != {last}:
        layer_weights = torch.zeros(last + 1)
        layer_weights[sorted(layers)] = 1
        config = {"word_embedding_dimension": width, "layer_start": 0, "num_hidden_layers": last}
        modules.append(Module(_LAYERS, config, {"layer_weights": layer_weights}))
    flags = {flag: kind in kinds for kind, flag in _FLAGS.items()}
    config = {"word_embedding_dimension": width, **flags}
    if not encoder.leading.counted:
        config["include_prompt"] = False
    return [*modules, Module("Pooling", config)]


def _template_tokens(
    encoder: TorchEncoder, *, reads_mask: bool
) -> tuple[dict[str, Any], dict[int, Tensor]]:
    """Return a tokenizer with the template, and the vectors of the tokens that are added to it: for
    each learned vector, and for the mask that is read.
    """
    backbone = encoder.backbone
    template = encoder.template
    prompt = encoder.prompt
    if type(prompt) not in (Prompt, SoftTemplate):
        raise InexactError(
            f"prompt {split_name(prompt.spec)[0]!r} is more than tokens around the sentence"
        )
    places: list[int] = []
    vectors: list[Tensor] = []
    if isinstance(prompt, SoftTemplate):
        places += prompt.positions
        vectors += prompt.tensors()[SOFT]
        if places and template.with_touching(["\0"])[0].strip() != "\0":
            raise InexactError(
                "words of a soft template that touch the sentence have no ids in this vocabulary"
            )
    names = [f"[promptcli-{number}]" for number in range(len(places))]
    if reads_mask:
        places.append(template.masks[(encoder.pooling.needs.slot or 1) - 1])
        vectors.append(backbone.word_embeddings[backbone.tokenizer.mask].detach())
        names.append(_READ_MASK)
    definition = tokenizer_definition(backbone)
    ids = add_tokens(definition, names) if names else []
    tokens = [*template.prefix, *template.suffix]
    for place, token in zip(places, ids, strict=True):
        tokens[place] = token
    prefix_length = len(template.prefix)
    set_normalizer(encoder, definition)
    put_around(definition, tokens[:prefix_length], tokens[prefix_length:])
    return definition, dict(zip(ids, vectors, strict=True))


def _compare_ids(encoder: TorchEncoder, folder: Path) -> tuple[str, ...]:
    """Return notes on how the inputs of a folder's tokenizer differ from the encoder's."""
    probes = [*parity.PROBES, parity.TOO_LONG, parity.BLANK]
    theirs = whole_inputs(folder, probes, encoder.max_length)
    inputs = encoder.inputs(probes)
    inner = slice(len(encoder.template.prefix), -len(encoder.template.suffix) or None)
    is_equal = [
        len(ids) == len(ours) and ids[inner] == ours[inner]
        for ids, ours in zip(theirs, inputs.ids, strict=True)
    ]
    if not all(equal or cut for equal, cut in zip(is_equal[:-1], inputs.truncated, strict=False)):
        raise InexactError("transformers' tokenizer of this family does not give the encoder's ids")
    notes = []
    if changes_ends(encoder.recipe):
        notes.append(TYPED_SPECIAL)
    if not all(is_equal[:-1]):
        notes.append(
            f"a sentence that is cut at {encoder.max_length} tokens loses the mark of the template"
            " after it"
        )
    if not is_equal[-1]:
        notes.append("an empty sentence gets a different vector there")
    return tuple(notes)
