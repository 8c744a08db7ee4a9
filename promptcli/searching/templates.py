"""The named templates, and a template token by token on a backbone: ids, mask position, room."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptcli.errors import UsageError
from promptcli.recipe import MASK
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.models.loading import Model
    from promptcli.named_templates import NamedTemplate


@dataclass(frozen=True)
class Token:
    """One token of the model input."""

    position: int
    id: int
    text: str  #: the vocabulary item
    #: ``template``, ``sentence`` or ``mask``; characters of the template that touch the sentence
    #: are cut into tokens together with it and count as the sentence's.
    part: str


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
    truncated: bool  #: whether the sentence was cut


def templates() -> "dict[str, NamedTemplate]":
    """Return the named templates.

    Example:
        >>> import promptcli as pc
        >>> pc.templates()["manual"].text
        'This sentence : "[X]" means [MASK] .'
    """
    from promptcli.named_templates import named_templates

    return dict(named_templates())


def check_template(
    text: str, model: "Model | None" = None, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone reads it.

    Args:
        text: A template's name, or text with [X] and [MASK].
        model: Whose backbone: `mini-bert` (default), a folder, a hub id, or one of your models.
        sentence: Sentence to fill in.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    from promptcli.encoder.prompts import template as texts
    from promptcli.models.loading import backbone_model, open_model
    from promptcli.named_templates import named_templates, template_text

    filled = template_text(text)
    texts.check_template(filled)  # before anything is loaded
    backbone = open_model(backbone_model(model or BARE.backbone)).backbone
    tokens = backbone.tokenizer
    limit = backbone.max_tokens
    if not tokens.causal and MASK not in filled:
        raise UsageError(f"template {filled!r} has no {MASK}; put one at the position to be read")
    if not sentence.strip():
        raise UsageError("the sentence is empty; give one with `sentence`")
    template = texts.Template(filled, tokens)

    inputs = template.splice(tokens.packed(template.pieces([sentence], True)), limit)
    ids = inputs.rows[0]
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
        tokens=[
            Token(place, token, tokens.text(token), origins[place])
            for place, token in enumerate(ids)
        ],
        mask_position=next(iter(template.mask_slots(len(ids))), None),
        truncated=inputs.truncated[0],
    )
