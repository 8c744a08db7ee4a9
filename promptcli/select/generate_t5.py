"""Candidate templates written by T5 (PromptBERT 4.2, after LM-BFF): the text between a definition
and its word.

One beam is shared by all (word, definition) pairs, so that the template fits every sentence.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from promptcli.backbones.t5 import T5
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.data.layouts import DEFINITIONS
from promptcli.data.sources import read_examples
from promptcli.errors import UsageError
from promptcli.notes import Advance, stage
from promptcli.recipe import MASK, SLOT

_LONGEST_OUTPUT = 20  # tokens that T5 writes, its start and the sentinels included (LM-BFF)
_MOST_PAIRS = 200
_LONGEST_INPUT = 256  # tokens of a T5 input (LM-BFF)


class Definition(NamedTuple):
    """A word and its meaning."""

    word: str
    meaning: str


@dataclass(frozen=True)
class _Beam:
    """One hypothesis: the ids written, and the ends of its finished parts, before and after the
    word.
    """

    written: tuple[int, ...]
    ends: tuple[int, ...] = ()
    score: float = 0.0

    @property
    def finished(self) -> bool:
        return len(self.ends) == 2


#: LM-BFF's two forms: whether the sentence comes before the gaps, or after them.
FORMS = (True, False)


def read_definitions(path: Path) -> list[Definition]:
    """Read a table of words and definitions, or lines of ``word<TAB>definition``."""
    meanings, words = read_examples(path, (DEFINITIONS,)).columns
    return [
        Definition(word.strip(), meaning.strip())
        for word, meaning in zip(words, meanings, strict=True)
    ]


def choose_definitions(
    definitions: Sequence[Definition], tokens: PieceTokenizer
) -> list[Definition]:
    """Return at most 200 pairs whose word is one token, as a mask is, evenly spaced over the
    list.
    """
    rows = tokens.encode([f" {pair.word}" for pair in definitions])
    fitting = []
    for pair, ids in zip(definitions, rows, strict=True):
        if len(ids) != 1:
            continue
        spelled = tokens.text(ids[0]).lstrip("Ġ▁").lower()
        if spelled == pair.word.lower():  # an unknown word is one token that does not spell it
            fitting.append(pair)
    if not fitting:
        raise UsageError(
            f"none of the {len(definitions)} words is a single token of the backbone; give other"
            " pairs"
        )
    count = min(_MOST_PAIRS, len(fitting))
    return [fitting[number * len(fitting) // count] for number in range(count)]


def generate_templates(t5: T5, definitions: Sequence[Definition], *, beam: int) -> list[str]:
    """Return distinct templates with one [X] and one [MASK], the best of each form in turn.

    A definition takes the place of the sentence, its word that of the mask. ``beam`` hypotheses
    stay at each step.
    """
    by_form: list[list[str]] = []
    with stage("generate", len(FORMS) * (_LONGEST_OUTPUT - 2)) as advance:
        for sentence_first in FORMS:
            examples = t5.read([_input(t5, sentence_first, pair) for pair in definitions])
            finished = _search(t5, examples, beam, advance)
            texts = dict.fromkeys(_template(t5, sentence_first, item) for item in finished)
            # T5 may have written a slot itself
            formed = [text for text in texts if text.count(SLOT) == text.count(MASK) == 1]
            by_form.append(list(filter(str.isprintable, formed))[: beam // len(FORMS)])
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_form))
    templates = list(dict.fromkeys(filter(None, in_turn)))
    if not templates:
        raise UsageError(
            f"the T5 finished no template within {_LONGEST_OUTPUT} tokens at beam {beam}; give a"
            " larger beam"
        )
    return templates


def _input(t5: T5, sentence_first: bool, pair: Definition) -> list[int]:
    """Return T5's input, a sentinel for each gap, cut at the end away from them (LM-BFF's single
    sentences).
    """
    sentence = t5.encode(pair.meaning[0].upper() + pair.meaning[1:])
    gaps = [t5.sentinels[0], *t5.encode(f" {pair.word}"), t5.sentinels[1]]
    if sentence_first:
        return [*sentence, *gaps, t5.end][-_LONGEST_INPUT:]
    return [*t5.encode("."), *gaps, *sentence][:_LONGEST_INPUT]  # the leading "." is T5's alone


def _search(
    t5: T5, examples: list[tuple[Tensor, Tensor]], beam: int, advance: Advance
) -> list[_Beam]:
    """Return the finished hypotheses of one shared beam, best first.

    A token's score is one log-softmax of the averaged logits, as in LM-BFF's code (the paper sums
    log-likelihoods). Words and the end of a part may follow; no lone space or run of periods, and
    no period after a period.
    """
    texts = {number: text.strip() for number, text in t5.words().items()}
    periods = [number for number, text in texts.items() if text == "."]
    words = [number for number, text in texts.items() if text.strip(".")]
    after_a_period = torch.tensor(words, dtype=torch.long)
    after_a_word = torch.tensor(sorted([*words, *periods]), dtype=torch.long)
    beams = [_Beam((t5.sentinels[0],))]
    for step in range(_LONGEST_OUTPUT - 2):
        grown = [item for item in beams if item.finished]
        for item in beams:
            if item.finished:
                continue
            ids = after_a_period if item.written[-1] in periods else after_a_word
            closing = (t5.sentinels[len(item.ends) + 1], t5.end)
            allowed = torch.cat([ids, torch.tensor(closing)])
            scores = t5.next_logits(examples, item.written).mean(0).log_softmax(-1).cpu()
            best, places = scores[allowed].topk(min(beam, len(allowed)))
            for score, token in zip(best.tolist(), allowed[places].tolist(), strict=True):
                ends = item.ends
                if token in closing:
                    ends = (*ends, len(item.written))
                grown.append(_Beam((*item.written, token), ends, item.score + score))
        beams = sorted(grown, key=lambda item: -item.score)[:beam]
        advance(1)
        if all(item.finished for item in beams):
            advance(_LONGEST_OUTPUT - 3 - step)
            break
    return [item for item in beams if item.finished]


def _template(t5: T5, sentence_first: bool, item: _Beam) -> str:
    first, second = item.ends
    middle = f"{t5.text(item.written[1:first])} {MASK}{t5.text(item.written[first + 1 : second])}"
    if sentence_first:
        return f"{SLOT}{middle}"
    return f"{middle} {SLOT}".strip()
