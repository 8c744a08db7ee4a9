"""The named templates, and a template token by token on a backbone: ids, mask position, the cut of a long sentence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptcli.errors import UsageError
from promptcli.recipe import MASK
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone
    from promptcli.encoder.prompts.named import NamedTemplate
    from promptcli.models.loading import Model


@dataclass(frozen=True)
class Token:
    """One token of the model input."""

    position: int
    id: int
    text: str  #: the vocabulary item
    #: ``template``, ``sentence`` or ``mask``; characters of the template that touch the sentence are cut into tokens
    #: together with it and count as the sentence's.
    part: str


@dataclass(frozen=True)
class Truncation:
    """What becomes of a sentence that is too long."""

    sentence_tokens: int  #: tokens of such a sentence
    kept: int  #: tokens that stay, its first ones
    last_kept: str  #: the last of them, as the vocabulary item
    mask_position: int | None  #: mask position of the filled template
    input_tokens: int  #: length of the input then: the longest there is


@dataclass(frozen=True)
class CheckedTemplate:
    """A template as one backbone reads it."""

    named: "NamedTemplate | None"  #: if it was given by its name
    backbone: str
    family: str
    template: str
    template_tokens: int  #: tokens of the template, special tokens included
    max_tokens: int
    room: int  #: tokens left for the sentence
    sentence: str  #: the sentence with the period that the papers' evaluation adds
    tokens: list[Token]
    mask_position: int | None  #: of the (first) mask; None in causal models, read at the last token
    truncated: bool  #: whether this sentence already is cut
    truncation: Truncation  #: the same for the sentence repeated until it is too long
    notes: list[str]  #: its limits on this backbone


def templates() -> "dict[str, NamedTemplate]":
    """Return the named templates.

    Example:
        >>> import promptcli as pc
        >>> pc.templates()["manual"].text
        'This sentence : "[X]" means [MASK] .'
    """
    from promptcli.encoder.prompts.named import named_templates

    return dict(named_templates())


def check_template(
    text: str, model: "Model | None" = None, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone reads it.

    Args:
        text: A template's name, or text with [X] and [MASK].
        model: Whose backbone: `mini-bert` (default), a folder, a hub id, or a model of yours.
        sentence: Sentence to fill in.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    from promptcli.encoder.prompts import template as texts
    from promptcli.encoder.prompts.named import named_templates, template_text
    from promptcli.models.loading import backbone_model, open_model

    filled = template_text(text)
    texts.check_template(filled)  # before anything is loaded
    backbone = open_model(backbone_model(model or BARE.backbone)).backbone
    tokens, limit = backbone.tokenizer, backbone.max_tokens
    if not tokens.causal and MASK not in filled:
        raise UsageError(f"template {filled!r} has no {MASK}; put one at the position to be read")
    if not sentence.strip():
        raise UsageError("the sentence is empty; give one with `sentence`")
    template = texts.Template(filled, tokens)

    def fill(sentence: str) -> tuple[list[int], int | None, bool]:
        """Return the ids, the first mask's position, and whether the sentence was cut."""
        inputs = template.splice(tokens.packed(template.pieces([sentence], True)), limit)
        row = inputs.rows[0]
        return row, next(iter(template.mask_slots(len(row))), None), inputs.truncated[0]

    ids, position, truncated = fill(sentence)
    longer = sentence.strip()
    while not fill(longer)[2]:
        longer = f"{longer} {longer}"
    cut, cut_position, _ = fill(longer)
    count = len(tokens.encode(template.pieces([longer], True))[0])
    kept = len(cut) - template.length
    last = tokens.text(cut[len(template.left) + kept - 1])
    origins = ["template"] * len(ids)
    inside = slice(len(template.prefix), len(ids) - len(template.suffix))
    origins[inside] = ["sentence"] * len(origins[inside])
    for slot in template.mask_slots(len(ids)):
        origins[slot] = "mask"
    return CheckedTemplate(
        named=named_templates().get(text),
        backbone=backbone.name,
        family=backbone.provenance.family,
        template=filled,
        template_tokens=template.length,
        max_tokens=limit,
        room=limit - template.length,
        sentence=template.pieces([sentence], True)[0].strip(),
        tokens=[Token(place, token, tokens.text(token), origins[place]) for place, token in enumerate(ids)],
        mask_position=position,
        truncated=truncated,
        truncation=Truncation(count, kept, last, cut_position, len(cut)),
        notes=_notes(backbone),
    )


def _notes(backbone: "Backbone") -> list[str]:
    try:
        _ = backbone.head
        return []
    except UsageError:
        why = {"electra": ": an ELECTRA discriminator, which has the mask token but is not a masked LM at inference"}
        lacks = f"backbone {backbone.name!r} has no masked-LM head{why.get(backbone.provenance.family, '')}"
        return [f"{lacks}; the vector at the mask works, predicting tokens (topk-tokens) does not"]
