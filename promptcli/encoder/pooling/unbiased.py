"""``unbiased``: static embeddings without the biases of frequency, subword, case and punctuation
(PromptBERT, table 3).

For the published figures a sentence's tokens are filtered, lower-cased and tokenised again.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.components import BuildContext
from promptcli.encoder.pooling.weights import Mean
from promptcli.errors import unknown_name_error

#: The rows of table 3: each row adds a switch to the row before.
SWITCHES = ("freq", "sub", "case", "pun")

_FREQUENT_WORDPIECES = frozenset(
    ". a the in , is to of and ' on man - s with for \" at ##s woman are it two that you dog said"
    " playing i an as was from : by white".split()
)
# The published list has the comma with a stray space ("Ġ, "), which matches no token: punctuation
# goes anyway.
_FREQUENT_BYTE_PIECES = frozenset(
    "Ġ. Ġa Ġthe Ġin a Ġis Ġto Ġof Ġand Ġon Ġ' s . the Ġman - Ġwith Ġfor Ġat Ġwoman Ġare Ġ\" Ġthat"
    " Ġit Ġdog Ġsaid Ġplaying Ġwas Ġas Ġfrom Ġ: Ġyou Ġan i Ġby".split()
)
# ASCII punctuation without the closing brace, 15 typographic marks, and the unknown token: 47.
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|~´’…‚¿–»€‘•”£“™—") | {"[UNK]"}  # noqa: RUF001 - the published list


@dataclass(frozen=True)
class _Convention:
    """The published code for one kind of vocabulary."""

    drops: dict[str, Callable[[str], bool]]  #: switch -> whether it drops a token
    join: Callable[[list[str]], str]  #: the remaining tokens as a lower-case sentence
    lead: str = ""  #: put in front of a sentence before it is tokenised


_WORDPIECE = _Convention(
    {
        "freq": _FREQUENT_WORDPIECES.__contains__,
        "sub": lambda token: "##" in token,
        "pun": _PUNCTUATION.__contains__,
    },
    # The published code averages the literal [PAD] for a sentence without remaining tokens.
    lambda words: " ".join(words).lower() or "[PAD]",
)
_BYTE_LEVEL = _Convention(
    {
        "freq": _FREQUENT_BYTE_PIECES.__contains__,
        "sub": lambda token: "Ġ" not in token,
        "pun": lambda token: re.search("[a-zA-Z0-9]", token) is None,
    },
    # A space after every word: the stray last "Ġ" is averaged in, as in the published code.
    lambda words: " " + "".join(word.replace("Ġ", "") + " " for word in words).lower(),
    lead=" ",
)


class Unbiased(Mean):
    """Mean of the tokens that remain, without specials.

    ``unbiased:sub`` applies the switches up to ``sub``.
    """

    averaged: slice

    def __init__(self, context: BuildContext) -> None:
        last_switch = context.argument or SWITCHES[-1]
        if last_switch not in SWITCHES:
            raise unknown_name_error("switch of 'unbiased'", last_switch, SWITCHES)
        tokens = context.backbone.tokenizer
        active = SWITCHES[: SWITCHES.index(last_switch) + 1]
        self._lowers = "case" in active
        self._convention = _BYTE_LEVEL if tokens.byte_level else _WORDPIECE
        drops = self._convention.drops
        self._drops = [drops[switch] for switch in active if switch in drops]
        self.averaged = slice(len(tokens.start), -len(tokens.end) or None)
        self.spec = self.rewriting = f"unbiased:{last_switch}"
        self._rewritten: RaggedIds | None = None

    def weigh(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        places = torch.arange(batch.ids.size(1), device=batch.ids.device)
        start: int = self.averaged.start
        stop: int = self.averaged.stop or 0
        return (places >= start) & (places < (batch.lengths + stop).unsqueeze(1))

    def token_ids(self, texts: Sequence[str], backbone: Backbone) -> RaggedIds:
        """Return the ids that remain of each sentence; never empty."""
        tokens = backbone.tokenizer
        if tokens.splits_at_blanks:
            if self._rewritten is None:
                self._rewritten = self._rewrite_vocabulary(tokens)
            return tokens.encode_ragged(texts).replace_by(self._rewritten).fill_empty(tokens.pad)
        texts_with_lead = [self._convention.lead + text.lstrip() for text in texts]
        remaining = [self._filter(sentence, tokens) for sentence in tokens.encode(texts_with_lead)]
        if self._lowers:
            words_of_sentences = [
                [tokens.text(token) for token in sentence] for sentence in remaining
            ]
            ids = tokens.encode_ragged(
                [self._convention.join(words) for words in words_of_sentences]
            )
        else:
            ids = RaggedIds.of(remaining)
        return ids.fill_empty(tokens.pad)

    def _rewrite_vocabulary(self, tokens: PieceTokenizer) -> RaggedIds:
        """Return the ids that replace each token, by its id; each word is rewritten by itself."""
        remaining = self._filter(list(tokens.items()), tokens)
        rewritten = [[token] for token in remaining]
        if self._lowers:
            rewritten = tokens.encode([tokens.text(token).lower() for token in remaining])
        rows: list[list[int]] = [[] for _ in range(tokens.highest + 1)]
        for token, ids in zip(remaining, rewritten, strict=True):
            rows[token] = ids
        return RaggedIds.of(rows)

    def _filter(self, ids: list[int], tokens: PieceTokenizer) -> list[int]:
        return [token for token in ids if not any(drop(tokens.text(token)) for drop in self._drops)]
