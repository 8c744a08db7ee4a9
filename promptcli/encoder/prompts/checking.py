"""A template with one backbone's tokenizer: ids, mask position, and the cut of a long sentence."""

from dataclasses import dataclass

from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.prompts.template import Template, check_template
from promptcli.errors import UsageError
from promptcli.recipe import MASK


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
class Checked:
    """A template as one backbone sees it."""

    template: str
    template_tokens: int  #: tokens of the template, special tokens included
    max_tokens: int
    room: int  #: tokens left for the sentence
    sentence: str  #: the sentence with the period that the papers' evaluation adds
    tokens: list[Token]
    mask_position: int | None  #: of the (first) mask; None in causal models, read at the last token
    truncated: bool  #: whether this sentence already is cut
    truncation: Truncation  #: the same for the sentence repeated until it is too long


def check(text: str, tokens: PieceTokenizer, max_tokens: int, sentence: str) -> Checked:
    """Return what a template becomes, with one sentence in it; ``max_tokens`` is the longest input."""
    check_template(text)
    if not tokens.causal and MASK not in text:
        raise UsageError(f"template {text!r} has no {MASK}; put one at the position to be read")
    template = Template(text, tokens)
    if not sentence.strip():
        raise UsageError("the sentence is empty; give one with `sentence`")
    ids, position, truncated = _input(template, tokens, max_tokens, sentence)
    longer = sentence.strip()
    while not _input(template, tokens, max_tokens, longer)[2]:
        longer = f"{longer} {longer}"
    enough = template.length + len(tokens.encode(template.pieces([longer], True))[0])
    full, _, _ = _input(template, tokens, enough, longer)
    cut, cut_mask, _ = _input(template, tokens, max_tokens, longer)
    room = len(cut) - template.length
    return Checked(
        template=text,
        template_tokens=template.length,
        max_tokens=max_tokens,
        room=max_tokens - template.length,
        sentence=template.pieces([sentence], True)[0].strip(),
        tokens=_named(template, tokens, ids),
        mask_position=position,
        truncated=truncated,
        truncation=Truncation(
            sentence_tokens=len(full) - template.length,
            kept=room,
            last_kept=tokens.text(cut[len(template.left) + room - 1]),
            mask_position=cut_mask,
            input_tokens=len(cut),
        ),
    )


def _input(
    template: Template, tokens: PieceTokenizer, max_tokens: int, sentence: str
) -> tuple[list[int], int | None, bool]:
    """Return the ids of a filled template, its first mask's position, and whether the sentence was cut."""
    inputs = template.splice(tokens.encode(template.pieces([sentence], True)), max_tokens)
    row = inputs.rows[0]
    return row, next(iter(template.mask_slots(len(row))), None), inputs.truncated[0]


def _named(template: Template, tokens: PieceTokenizer, ids: list[int]) -> list[Token]:
    origins = ["template"] * len(ids)
    sentence = slice(len(template.prefix), len(ids) - len(template.suffix))
    origins[sentence] = ["sentence"] * len(origins[sentence])
    for slot in template.mask_slots(len(ids)):
        origins[slot] = "mask"
    return [Token(place, token, tokens.text(token), origins[place]) for place, token in enumerate(ids)]
