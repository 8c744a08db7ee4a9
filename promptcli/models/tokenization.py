"""The template inside ``tokenizer.json``: whoever loads the file gets the ids that the encoder makes."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from promptcli.backbones.saving import tokenizer_definition
from promptcli.backbones.tokenizer import adding_no_blank
from promptcli.encoder.encoder import Encoder
from promptcli.models.target import InexactError

#: Stands in front of every text for all that is around it, where an export has no other place; no sentence holds it.
AROUND = "⊢⊢⊢"

_PERIOD = r"""(?<=[^.?"'⊢])\z"""  # the end of a text that has no end mark; no text has no end
_START, _END = rf"\A(?!{AROUND})", r"(?<!⊢)\z"  # AROUND itself, whose text is normalised too, stays as it is

#: Text rules as replacements of a pattern by a text, in order.
_RULES: dict[str, tuple[tuple[str, str], ...]] = {"prompteol": (('"', "'"), (r"\?\z", "."))}


def with_template(
    encoder: Encoder,
    definition: Mapping[str, Any] | None = None,
    *,
    left: Sequence[int] | None = None,
    right: Sequence[int] | None = None,
    marked: bool = False,
) -> dict[str, Any]:
    """Return a ``tokenizer.json`` that puts the template around a sentence.

    A post-processor sets the template's ids around the sentence's, so that truncation cuts the sentence only. The
    normalizer adds the period and what the template adds to the sentence's own piece (a blank; characters that touch
    [X] where the vocabulary may join them).

    Args:
        encoder: Whose template, period and text rule it is.
        definition: The backbone's own, changed.
        left: Ids in the place of the template's own before the sentence.
        right: Ids in the place of those after it.
        marked: ``AROUND`` is put in front of every text.

    Raises:
        InexactError: A rule that is no replacement.
    """
    made = tokenizer_definition(encoder.backbone) if definition is None else copy.deepcopy(dict(definition))
    template, rule = encoder.template, encoder.recipe.text_rule
    before, after = template.pieces(["\0"], False)[0].split("\0")
    steps: list[dict[str, Any]] = [{"type": "Strip", "strip_left": True, "strip_right": True}]
    if encoder.recipe.period:
        steps.append({"type": "Replace", "pattern": {"Regex": _PERIOD}, "content": "."})
    if rule == "lower":
        steps.append({"type": "Lowercase"})
    elif rule is not None and rule not in _RULES:
        raise InexactError(f"text rule {rule!r} is no replacement that a tokenizer.json can hold")
    steps += [{"type": "Replace", "pattern": {"Regex": old}, "content": new} for old, new in _RULES.get(rule or "", ())]
    if before and not marked:
        steps.append({"type": "Prepend", "prepend": before})
    if after:
        steps.append({"type": "Replace", "pattern": {"Regex": _END}, "content": after})
    own = made.get("normalizer") or {}
    members = own.get("normalizers", [own] if own else [])
    steps += [member for member in members if member["type"] != "Prepend"]  # a blank that the template sets itself
    if marked:  # at the end: what is put in front of a text makes the tokenizers library panic in BERT's normalizer
        steps.append({"type": "Replace", "pattern": {"Regex": _START}, "content": AROUND + before})
    made["normalizer"] = {"type": "Sequence", "normalizers": steps}
    adding_no_blank(made.get("pre_tokenizer"))  # the template says where one belongs
    sides = {
        "<left>": template.prefix if left is None else left,
        "<right>": template.suffix if right is None else right,
    }
    texts = {token["id"]: token["content"] for token in made["added_tokens"]}

    def around(*sequences: str) -> list[dict[str, Any]]:
        slots: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": 0}} for name in sequences]
        ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in sides]
        return [ends[0], *slots, ends[1]]

    made["post_processor"] = {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A", "B"),
        "special_tokens": {
            name: {"id": name, "ids": list(ids), "tokens": [texts.get(token, str(token)) for token in ids]}
            for name, ids in sides.items()
        },
    }
    return made


def add_tokens(definition: dict[str, Any], names: Sequence[str]) -> list[int]:
    """Add special tokens to a ``tokenizer.json``; return their ids, which follow the highest there is.

    Raises:
        InexactError: The vocabulary has holes, which the tokenizers library would fill.
    """
    ids = token_ids(definition)
    first = max(ids) + 1
    if len(ids) < first:
        raise InexactError("the numbers of its vocabulary have gaps, so no token can be added at the end")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    definition["added_tokens"] += [{"id": first + n, "content": name, **flags} for n, name in enumerate(names)]
    return list(range(first, first + len(names)))


def token_ids(definition: Mapping[str, Any]) -> set[int]:
    """Return the ids of all tokens of a ``tokenizer.json``."""
    vocabulary = definition["model"]["vocab"]
    own = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    return {*own, *(token["id"] for token in definition["added_tokens"])}
