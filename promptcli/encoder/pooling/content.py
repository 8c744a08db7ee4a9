"""``content-avg``, ``content-max``: only the tokens of the sentence are read, not the words of the
prompt and the special tokens. Nothing is learned.
"""

import torch
from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.components import BuildContext, Weights
from promptcli.encoder.pooling.attention import kept_or_all
from promptcli.encoder.pooling.weights import Maximum, Mean
from promptcli.encoder.template import Template


class _Content(Weights):
    """Weights on the tokens of the sentence; in a template with two [X], of the second copy.

    The input of an empty sentence is read at all its tokens.
    """

    reads_content_only = True

    def __init__(self, context: BuildContext) -> None:
        super().__init__(context)
        self._content = ContentTokens(context.own_template(), context.backbone.tokenizer)

    def read(self, batch: Batch) -> Tensor:
        """Return the mask (n, t) of the tokens that are read."""
        return kept_or_all(self._content.mask(batch), batch)


class ContentAverage(_Content, Mean):
    """``content-avg``: w_t = 1/c over the c tokens of the sentence."""

    spec = "content-avg"

    def weigh(self, batch: Batch, hidden: HiddenStates) -> Tensor:
        return self.read(batch)


class ContentMaximum(_Content, Maximum):
    """``content-max``: max_t x_t over the tokens of the sentence, dimension by dimension."""

    spec = "content-max"


class ContentTokens:
    """Finds the tokens of the sentence in inputs of a template.

    The characters of the template that touch [X], and the space before them, are tokenised with the
    sentence. A token that consists of such characters is left out. A token that also has a
    character of the sentence is read.
    """

    def __init__(self, template: Template, tokenizer: PieceTokenizer) -> None:
        self._template = template
        before, after = template.touching
        self._first = _Spelling(before, tokenizer, step=1)
        self._last = _Spelling(after, tokenizer, step=-1)

    def mask(self, batch: Batch) -> Tensor:
        """Return the mask (n, t) of the sentences' tokens, without placeholders of blocks."""
        if not self._template.has_blocks or batch.prepending is None:
            return self._mask_in(batch.ids, batch.lengths)
        positions = batch.prepending.positions
        is_placeholder = torch.zeros_like(batch.ids, dtype=torch.bool)
        # in an input without placeholders, the only position is its own source
        is_placeholder = is_placeholder.scatter(1, positions, positions != batch.prepending.sources)
        # the same inputs with the placeholders after all other tokens
        order = is_placeholder.int().argsort(dim=1, stable=True)
        content = self._mask_in(batch.ids.gather(1, order), batch.lengths - is_placeholder.sum(1))
        return torch.zeros_like(is_placeholder).scatter(1, order, content)

    def _mask_in(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the mask (n, t) of the sentences in inputs (n, t) without placeholders."""
        template = self._template
        places = torch.arange(ids.size(1), device=ids.device)
        piece = (lengths - template.tokens_outside_pieces) // template.copies
        end = lengths - len(template.suffix)
        first = end - piece  # of the last copy
        first = first + self._first.count(ids, first)
        last = end - 1
        last = last - self._last.count(ids, last)
        return (places >= first.unsqueeze(1)) & (places <= last.unsqueeze(1))


class _Spelling:
    """Counts the tokens that spell given characters, whichever way the characters are tokenised."""

    def __init__(self, characters: str, tokenizer: PieceTokenizer, *, step: int) -> None:
        self._step = step  # 1 forwards, -1 backwards
        ids = tokenizer.encode([characters])[0] if characters else []
        text = "".join(_letters(tokenizer.text(token)) for token in ids)[::step]
        self._length = len(text)
        #: [characters still to spell, token] -> characters still to spell after the token, or -1 if
        #: the token does not match.
        self._left = torch.full((len(text) + 1, tokenizer.highest + 1), -1)
        for token in tokenizer.items() if text else ():
            letters = _letters(tokenizer.text(token))[::step]
            if not letters or letters not in text:
                continue
            for left in range(len(letters), len(text) + 1):
                if text.startswith(letters, len(text) - left):
                    self._left[left, token] = left - len(letters)

    def count(self, ids: Tensor, start: Tensor) -> Tensor:
        """Return how many of the tokens (n, t) spell the characters, from the places ``start`` (n,)
        on, (n,); 0 if the tokens spell other characters.
        """
        counts = torch.zeros_like(start)
        left = torch.full_like(start, self._length)
        table = self._left.to(ids.device)
        place = start
        for _ in range(self._length):
            inside = (left > 0) & (place >= 0) & (place < ids.size(1))
            token = ids.gather(1, place.clamp(0, ids.size(1) - 1).unsqueeze(1)).squeeze(1)
            left = torch.where(inside, table[left.clamp(min=0), token], left)
            counts = counts + inside
            place = place + self._step
        return torch.where(left == 0, counts, 0)


def _letters(token: str) -> str:
    """Return the characters of a token; WordPiece marks a token that continues a word."""
    return token.removeprefix("##") or token
