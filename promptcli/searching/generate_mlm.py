"""Candidate templates written by the backbone's own masked-LM head: words for the blanks around [X] and [MASK].

Ours, beyond the papers: what PromptBERT asks of a T5 (section 4.2) is asked of the model that will read the template.
A layout is a template with blanks to fill; one beam fills them from left to right over many sentences at once. Gives
texts; scoring them is not done here.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.batching import make_batch, plan_batches
from promptcli.encoder.encoded import Progress, silent
from promptcli.encoder.pooling import build_pooling
from promptcli.encoder.prompts.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import MASK, SLOT

#: A token to fill.
BLANK = "_"

#: Where words may stand; each starts a beam of its own.
LAYOUTS = (
    "[X] _ [MASK] .",
    "[X] _ _ [MASK] .",
    "_ [X] _ [MASK] .",
    "_ _ [X] _ [MASK] .",
    '_ "[X]" _ [MASK] .',
    '_ _ _ "[X]" _ [MASK] .',
    '_ _ _ "[X]" _ _ [MASK] .',
    "_ [MASK] . [X]",
    "_ _ [MASK] _ [X]",
    '[MASK] _ _ "[X]" .',
)

_BEAM = 16
_SENTENCES = 32
_LONGEST_SENTENCE = 64  # tokens: what comes after changes no guess about the template's words
_ELEMENT = re.compile(rf"({re.escape(SLOT)}|{re.escape(MASK)}|{BLANK})")


class _Element(NamedTuple):
    """A piece of a layout: a slot or words, and whether white space stands before it."""

    text: str
    blank: bool


class _Filled(NamedTuple):
    """One hypothesis: the ids chosen for the first blanks, and their mean log-probabilities, added up."""

    ids: tuple[int, ...] = ()
    score: float = 0.0


def generate_templates(
    backbone: Backbone,
    sentences: Sequence[str],
    *,
    count: int = 100,
    layouts: Sequence[str] = LAYOUTS,
    progress: Progress = silent,
) -> list[str]:
    """Return at most ``count`` distinct templates with one [X] and one [MASK], the best of each layout in turn.

    Args:
        backbone: Needs its masked-LM head.
        sentences: Stand at [X]; at most 32, evenly spaced, are used.
        count: Templates wanted.
        layouts: Templates with ``_`` for each token to fill.
        progress: Called with the number of blanks newly filled, of ``steps(layouts)``.
    """
    tokens = backbone.tokenizer
    if tokens.mask is None:
        raise UsageError(f"backbone {backbone.name!r} has no mask token, so its own head can fill no blanks")
    if count < 1:
        raise UsageError(f"{count} templates are not allowed; give at least 1")
    distinct = [text for text in dict.fromkeys(sentence.strip() for sentence in sentences) if text]
    if not distinct:
        raise UsageError("no sentences to generate templates from")
    wanted = min(_SENTENCES, len(distinct))
    chosen = [distinct[number * len(distinct) // wanted] for number in range(wanted)]
    words = _Words(backbone)
    ranked = []
    with torch.inference_mode():
        for layout in layouts:
            made = _Layout(layout, backbone, chosen)
            beam = _fill(made, words, max(_BEAM, -(-count // len(layouts))), progress)
            ranked.append([made.text(filled.ids, words) for filled in beam])
    in_turn = (row[place] for place in range(max(map(len, ranked))) for row in ranked if place < len(row))
    return _distinct(in_turn, tokens)[:count]


def steps(layouts: Sequence[str] = LAYOUTS) -> int:
    """Return the number of blanks to fill, for a progress bar."""
    return sum(layout.split().count(BLANK) for layout in layouts)


class _Words:
    """The vocabulary items that may fill a blank: whole words and punctuation, as their own tokenizer cuts them."""

    def __init__(self, backbone: Backbone) -> None:
        tokens = backbone.tokenizer
        size = len(backbone.token_rows)
        items = [tokens.text(number) for number in range(size)]
        texts = [item.replace("\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}", " ").replace("▁", " ") for item in items]
        bare = [text.strip() for text in texts]
        whole = [number for number in range(size) if _is_plain(bare[number])]
        self._after_blank = _cut_as(tokens, {number: f" {bare[number]}" for number in whole})
        self._touching = _cut_as(tokens, {number: bare[number] for number in whole})
        self._marks = {number: text for number, text in self._touching.items() if not any(map(str.isalnum, text))}

    def texts(self, blank: bool, *, first: bool) -> dict[int, str]:
        """Return the text of every id allowed at a blank: words where white space goes before, else punctuation."""
        if blank:
            return {**self._marks, **self._after_blank}
        return self._touching if first else self._marks


def _is_plain(text: str) -> bool:
    """Whether a text is a word or punctuation marks, and neither a slot nor a special token."""
    if not text.isprintable() or any(mark in text for mark in "[]<>_"):
        return False
    return bool(text) and (text.isalpha() or not any(map(str.isalnum, text)))


def _cut_as(tokens: PieceTokenizer, texts: dict[int, str]) -> dict[int, str]:
    """Return those ids whose text is cut into just that id."""
    ids = tokens.encode(list(texts.values()))
    return {number: text for (number, text), row in zip(texts.items(), ids, strict=True) if row == [number]}


def _elements(layout: str, tokens: PieceTokenizer) -> list[_Element]:
    """Cut a layout at its slots; white space belongs to what follows it."""
    elements: list[_Element] = []
    pending = tokens.start_blank
    for part in _ELEMENT.split(layout):
        bare = part.strip()
        if bare:
            elements.append(_Element(bare, pending or part[0].isspace()))
        pending = part[-1:].isspace() if bare else pending or part[:1].isspace()
    return elements


class _Layout:
    """A layout as ids around the ids of every sentence, all tokenised once.

    Attributes:
        blanks: Number of the element of each blank, in order.
    """

    def __init__(self, layout: str, backbone: Backbone, sentences: Sequence[str]) -> None:
        tokens = backbone.tokenizer
        assert tokens.mask is not None
        self._backbone = backbone
        self._pooling = build_pooling("last/mask", backbone, {})
        self.elements = _elements(layout, tokens)
        self.blanks = [number for number, element in enumerate(self.elements) if element.text == BLANK]
        self._ids: list[int] = [*tokens.start]
        self._slots: list[int] = []  # of the blanks, in ``_ids``
        blank_before_sentence = False
        for element in self.elements:
            if element.text == SLOT:
                self._sentence_at, blank_before_sentence = len(self._ids), element.blank
                continue
            if element.text == BLANK:
                self._slots.append(len(self._ids))
            words = f" {element.text}" if element.blank else element.text
            self._ids += [tokens.mask] if element.text in (BLANK, MASK) else tokens.encode([words])[0]
        self._ids += tokens.end
        pieces = Template(SLOT, tokens).pieces(sentences, period=True)
        room = min(_LONGEST_SENTENCE, backbone.max_tokens - len(self._ids))
        cut = tokens.encode([(" " if blank_before_sentence else "") + piece.strip() for piece in pieces])
        self._sentences = [ids[:room] for ids in cut]

    def log_probabilities(self, chosen: Sequence[int]) -> Tensor:
        """Return the mean log-probability of every token at the first open blank, (v,).

        Args:
            chosen: Ids of the blanks before it; the later ones and the mask stay masked.
        """
        backbone, at = self._backbone, self._sentence_at
        ids = list(self._ids)
        for slot, token in zip(self._slots, chosen, strict=False):
            ids[slot] = token
        slot = self._slots[len(chosen)]
        rows = [[*ids[:at], *sentence, *ids[at:]] for sentence in self._sentences]
        slots = [slot + (len(sentence) if slot >= at else 0) for sentence in self._sentences]
        total = torch.zeros(len(backbone.token_rows), device=backbone.device)
        for part in plan_batches(np.array([len(row) for row in rows])):
            chosen_rows, at_slots = [rows[row] for row in part], [[slots[row]] for row in part]
            batch = make_batch(chosen_rows, at_slots, backbone.tokenizer.pad, backbone.device, backbone.max_tokens)
            states = self._pooling.pool(batch, backbone.run(batch, self._pooling.needs))
            total += backbone.head.to_logits(backbone.head.to_hidden(states)).log_softmax(-1).sum(0)
        return total / len(rows)

    def text(self, ids: Sequence[int], words: _Words) -> str:
        """Return the filled template: each blank's own text, white space as the layout has it elsewhere."""
        filling = iter(ids)
        text = ""
        for place, element in enumerate(self.elements):
            if element.text == BLANK:
                text += words.texts(element.blank, first=place == 0)[next(filling)]
            else:
                text += (" " if element.blank else "") + element.text
        return text.strip()


def _fill(layout: _Layout, words: _Words, width: int, progress: Progress) -> list[_Filled]:
    """Return the hypotheses of one beam over the blanks of a layout, best first."""
    beam = [_Filled()]
    for place in layout.blanks:
        texts = words.texts(layout.elements[place].blank, first=place == 0)
        allowed = torch.tensor(list(texts))
        grown: list[_Filled] = []
        for filled in beam:
            scores = layout.log_probabilities(filled.ids).cpu()[allowed]
            best, found = scores.topk(min(width + 1, len(allowed)))
            grown += [
                _Filled((*filled.ids, token), filled.score + value)
                for value, token in zip(best.tolist(), allowed[found].tolist(), strict=True)
                if filled.ids[-1:] != (token,)  # "the the", ": :"
            ]
        beam = sorted(grown, key=lambda filled: -filled.score)[:width]
        progress(1)
    return beam


def _distinct(templates: Iterable[str], tokens: PieceTokenizer) -> list[str]:
    """Return the templates in order, one of those that are the same to the backbone: blanks mean nothing to some."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
    for text in templates:
        template = Template(text, tokens)
        found.setdefault((tuple(template.left), tuple(template.right)), text)
    return list(found.values())
