"""Search for the best attention head, layer or template of a backbone, and show how a backbone
tokenises a template.

The functions import heavy libraries when they are called.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptcli.errors import UsageError
from promptcli.recipe import MASK
from promptcli.settings import BUILT_IN

if TYPE_CHECKING:
    from promptcli.models.loading import Model
    from promptcli.named_templates import NamedTemplate


@dataclass(frozen=True)
class Token:
    """One token of the model input."""

    position: int
    id: int
    text: str  #: the vocabulary item
    #: ``template``, ``sentence`` or ``mask``. Characters of the template that touch the sentence
    #: are tokenised together with it and count as the sentence's.
    part: str


@dataclass(frozen=True)
class CheckedTemplate:
    """A template as one backbone reads it."""

    named: "NamedTemplate | None"  #: None if it was given as text
    backbone: str
    family: str
    template: str
    template_tokens: int  #: tokens of the template, special tokens included
    max_tokens: int
    room: int  #: tokens left for the sentence
    sentence: str  #: the sentence, with the period that the papers' evaluation adds
    tokens: list[Token]
    mask_position: int | None  #: of the first mask; None in causal models
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
    text: str, model: "Model" = BUILT_IN.backbone, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone tokenises it.

    Args:
        text: Name of a template, or text with [X] and [MASK].
        model: Backbone: ``mini-bert``, a folder, a hub id, or that of one of your models.
        sentence: Sentence to fill in.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    from promptcli.encoder.template import PLAIN_TEXT, Template, check_template
    from promptcli.models.loading import backbone_model, open_torch_encoder
    from promptcli.named_templates import named_templates, template_text

    filled = template_text(text)
    check_template(filled, max_slots=2)  # before anything is loaded
    backbone = open_torch_encoder(backbone_model(model), dtype="stored").backbone
    tokens = backbone.tokenizer
    limit = backbone.max_tokens
    if not tokens.causal and MASK not in filled:
        raise UsageError(f"template {filled!r} has no {MASK}; put one at the position to be read")
    if not sentence.strip():
        raise UsageError("is empty; give one", parameter="sentence")
    template = Template(filled, tokens)
    pieces = template.with_touching([PLAIN_TEXT.apply(sentence, period=True)])
    inputs = template.inputs(pieces, tokens.encode_ragged, limit)
    ids = inputs.ids[0]
    masks = template.mask_positions(inputs.ids.lengths)[0].tolist()
    parts = ["template"] * len(ids)
    for inside in template.pieces(len(ids)):
        parts[inside] = ["sentence"] * len(parts[inside])
    for position in masks:
        parts[position] = "mask"
    return CheckedTemplate(
        named=named_templates().get(text),
        backbone=backbone.name,
        family=backbone.provenance.family,
        template=filled,
        template_tokens=template.length,
        max_tokens=limit,
        room=(limit - template.length) // template.copies,
        sentence=pieces[0].strip(),
        tokens=[
            Token(place, token, tokens.text(token), part)
            for place, (token, part) in enumerate(zip(ids, parts, strict=True))
        ],
        mask_position=next(iter(masks), None),
        truncated=bool(inputs.truncated[0]),
    )
