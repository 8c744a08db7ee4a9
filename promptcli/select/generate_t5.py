"""Candidate templates that a T5 generates (PromptBERT 4.2, after LM-BFF): the text between a
definition and its word.

All (word, definition) pairs share one beam, so that the template fits every sentence.
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
from promptcli.data.training_data import read_examples
from promptcli.errors import UsageError
from promptcli.notes import Advance, stage
from promptcli.recipe import MASK, SLOT

_MAX_OUTPUT_TOKENS = 20  # tokens that T5 generates, start and sentinels included (LM-BFF)
_MAX_PAIRS = 200
_MAX_INPUT_TOKENS = 256  # tokens of a T5 input (LM-BFF)


class Definition(NamedTuple):
    """A word and its meaning."""

    word: str
    meaning: str


@dataclass(frozen=True)
class _Hypothesis:
    """The generated tokens, and the places in them at which the two gaps around the word end."""

    tokens: tuple[int, ...]
    ends: tuple[int, ...] = ()
    score: float = 0.0

    @property
    def finished(self) -> bool:
        return len(self.ends) == 2


#: LM-BFF's two forms: whether the sentence comes before the gaps.
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
    """Return at most 200 pairs whose word is a single token, as the mask is, evenly spaced over the
    list.
    """
    rows = tokens.encode([f" {pair.word}" for pair in definitions])
    usable_pairs = []
    for pair, ids in zip(definitions, rows, strict=True):
        if len(ids) != 1:
            continue
        spelling = tokens.text(ids[0]).lstrip("Ġ▁").lower()
        if spelling == pair.word.lower():  # an unknown word's token does not spell the word
            usable_pairs.append(pair)
    if not usable_pairs:
        raise UsageError(
            f"none of the {len(definitions)} words is a single token of the backbone; give other"
            " pairs"
        )
    total = len(usable_pairs)
    count = min(_MAX_PAIRS, total)
    return [usable_pairs[number * total // count] for number in range(count)]


def generate_templates(t5: T5, definitions: Sequence[Definition], *, beam: int) -> list[str]:
    """Return distinct templates with one [X] and one [MASK], alternating between the best of each
    form.

    The definition takes the place of the sentence, and its word that of the mask. Each step keeps
    ``beam`` hypotheses.
    """
    by_form: list[list[str]] = []
    with stage("generate", len(FORMS) * (_MAX_OUTPUT_TOKENS - 2)) as advance:
        for sentence_first in FORMS:
            examples = t5.read([_input(t5, sentence_first, pair) for pair in definitions])
            finished = _search(t5, examples, beam, advance)
            texts = dict.fromkeys(_template(t5, sentence_first, item) for item in finished)
            # T5 itself may have generated a slot
            templates = [text for text in texts if text.count(SLOT) == text.count(MASK) == 1]
            by_form.append(list(filter(str.isprintable, templates))[: beam // len(FORMS)])
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*by_form))
    templates = list(dict.fromkeys(filter(None, in_turn)))
    if not templates:
        raise UsageError(
            f"the T5 finished no template within {_MAX_OUTPUT_TOKENS} tokens with beam {beam}; set"
            " a larger beam"
        )
    return templates


def _input(t5: T5, sentence_first: bool, pair: Definition) -> list[int]:
    """Return T5's input, with a sentinel for each gap; a long sentence is cut at the end that is
    far from the gaps, as in LM-BFF.
    """
    sentence = t5.encode(pair.meaning[0].upper() + pair.meaning[1:])
    gaps = [t5.sentinels[0], *t5.encode(f" {pair.word}"), t5.sentinels[1]]
    if sentence_first:
        return [*sentence, *gaps, t5.end][-_MAX_INPUT_TOKENS:]
    return [*t5.encode("."), *gaps, *sentence][:_MAX_INPUT_TOKENS]  # only T5 reads the leading "."


def _search(
    t5: T5, examples: list[tuple[Tensor, Tensor]], beam: int, advance: Advance
) -> list[_Hypothesis]:
    """Return the finished hypotheses of one shared beam, best first.

    A token's score is the log-softmax of the averaged logits, as in LM-BFF's code; the paper sums
    log-likelihoods. The next token is a word or the end of a gap. Single spaces, runs of periods
    and a period after a period are excluded.
    """
    texts = {token: text.strip() for token, text in t5.words().items()}
    periods = [token for token, text in texts.items() if text == "."]
    words = [token for token, text in texts.items() if text.strip(".")]
    after_a_period = torch.tensor(words, dtype=torch.long)
    after_a_word = torch.tensor(sorted([*words, *periods]), dtype=torch.long)
    hypotheses = [_Hypothesis((t5.sentinels[0],))]
    for step in range(_MAX_OUTPUT_TOKENS - 2):
        extended = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
        for hypothesis in hypotheses:
            if hypothesis.finished:
                continue
            ids = after_a_period if hypothesis.tokens[-1] in periods else after_a_word
            closing = (t5.sentinels[len(hypothesis.ends) + 1], t5.end)
            candidates = torch.cat([ids, torch.tensor(closing)])
            scores = t5.next_logits(examples, hypothesis.tokens).mean(0).log_softmax(-1).cpu()
            best, places = scores[candidates].topk(min(beam, len(candidates)))
            for score, token in zip(best.tolist(), candidates[places].tolist(), strict=True):
                ends = hypothesis.ends
                if token in closing:
                    ends = (*ends, len(hypothesis.tokens))
                tokens = (*hypothesis.tokens, token)
                extended.append(_Hypothesis(tokens, ends, hypothesis.score + score))
        hypotheses = sorted(extended, key=lambda hypothesis: -hypothesis.score)[:beam]
        advance(1)
        if all(hypothesis.finished for hypothesis in hypotheses):
            advance(_MAX_OUTPUT_TOKENS - 3 - step)
            break
    return [hypothesis for hypothesis in hypotheses if hypothesis.finished]


def _template(t5: T5, sentence_first: bool, hypothesis: _Hypothesis) -> str:
    tokens = hypothesis.tokens
    first, second = hypothesis.ends
    middle = f"{t5.text(tokens[1:first])} {MASK}{t5.text(tokens[first + 1 : second])}"
    if sentence_first:
        return f"{SLOT}{middle}"
    return f"{middle} {SLOT}".strip()
