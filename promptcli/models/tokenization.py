"""The template inside ``tokenizer.json``: whoever loads the file gets the ids that the encoder makes."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from promptcli.backbones.saving import tokenizer_definition
from promptcli.backbones.tokenizer import adding_no_blank
from promptcli.encoder.encoder import Encoder
from promptcli.models.target import InexactError

#: Put in front of every text by exports that have no other place for the template; no sentence contains it.
AROUND = "⊢⊢⊢"

_PERIOD = r"""(?<=[^.?"'⊢])\z"""  # the end of a text that has no end mark; no text has no end
_START, _END = rf"\A(?!{AROUND})", r"(?<!⊢)\z"  # AROUND itself is normalised too, and stays unchanged

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
    normalizer adds the period and the template's part of the sentence's piece (a space, characters that touch [X]).

    Args:
        encoder: Whose template, period and text rule it is.
        definition: The backbone's, changed; None: unchanged.
        left: Ids before the sentence; None: the template's.
        right: Ids after it.
        marked: ``AROUND`` is put in front of every text.
    """
    changed = tokenizer_definition(encoder.backbone) if definition is None else copy.deepcopy(dict(definition))
    template, rule = encoder.template, encoder.recipe.text_rule
    before, after = template.pieces(["\0"], False)[0].split("\0")
    steps: list[dict[str, Any]] = [{"type": "Strip", "strip_left": True, "strip_right": True}]
    if encoder.recipe.period:
        steps.append({"type": "Replace", "pattern": {"Regex": _PERIOD}, "content": "."})
    if rule == "lower":
        steps.append({"type": "Lowercase"})
    elif rule is not None and rule not in _RULES:
        raise InexactError(f"text rule {rule!r} cannot be expressed in a tokenizer.json")
    steps += [{"type": "Replace", "pattern": {"Regex": old}, "content": new} for old, new in _RULES.get(rule or "", ())]
    if before and not marked:
        steps.append({"type": "Prepend", "prepend": before})
    if after:
        steps.append({"type": "Replace", "pattern": {"Regex": _END}, "content": after})
    normalizer = changed.get("normalizer") or {}
    members = normalizer.get("normalizers", [normalizer] if normalizer else [])
    steps += [member for member in members if member["type"] != "Prepend"]  # a space that the template sets itself
    if marked:  # last: the tokenizers library panics if it comes before BERT's normalizer
        steps.append({"type": "Replace", "pattern": {"Regex": _START}, "content": AROUND + before})
    changed["normalizer"] = {"type": "Sequence", "normalizers": steps}
    adding_no_blank(changed.get("pre_tokenizer"))  # the template has the spaces
    sides = {
        "<left>": template.prefix if left is None else left,
        "<right>": template.suffix if right is None else right,
    }
    texts = {token["id"]: token["content"] for token in changed["added_tokens"]}

    def around(*sequences: str) -> list[dict[str, Any]]:
        slots: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": 0}} for name in sequences]
        ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in sides]
        return [ends[0], *slots, ends[1]]

    changed["post_processor"] = {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A", "B"),
        "special_tokens": {
            name: {"id": name, "ids": list(ids), "tokens": [texts.get(token, str(token)) for token in ids]}
            for name, ids in sides.items()
        },
    }
    return changed


def add_tokens(definition: dict[str, Any], names: Sequence[str]) -> list[int]:
    """Add special tokens to a ``tokenizer.json``; return their ids, which follow the highest id."""
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
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    return {*ids, *(token["id"] for token in definition["added_tokens"])}
