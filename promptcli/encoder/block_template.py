"""BlockTemplate: a template whose sentence is cut into blocks, with a placeholder for each block
in front of it and in front of the whole text (Hierarchical Token Prepending).

The input is ``[words] B..B P block P block ... P block [words]``. The ids of the placeholders are
negative, which no text's are.
"""

import itertools
import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.template import Inputs, Template
from promptcli.encoder.text_rules import END_MARKS

#: The placeholder in front of a block, and that of a block in front of the whole text.
OF_BLOCK, OF_TEXT = -1, -2
_CLOSING = "\"'”’»)\\]」』】〟"  # noqa: RUF001
_UNSPACED = "。．｡！？"  # noqa: RUF001 - end marks of scripts without spaces
#: The end of a sentence before the next one.
_END = re.compile(
    rf"[{re.escape(''.join(END_MARKS))}…][{_CLOSING}]*(?=\s)|[{_UNSPACED}][{_CLOSING}]*(?=[^\s{_CLOSING}])"
)


class BlockTemplate(Template):
    """A template with one [X], whose text is cut into its sentences, or every ``size`` tokens."""

    has_blocks = True

    def __init__(self, text: str, tokenizer: PieceTokenizer, size: int | None) -> None:
        super().__init__(text, tokenizer, placeholder=True)
        self._size = size  # tokens of a block; None: sentences
        self.prefix.pop()  # the placeholder of the whole text
        self.placeholder = None
        self.left = [*self.prefix, *self._before_ids]

    @property
    def length(self) -> int:
        return super().length + 2  # the placeholders of one block

    def inputs(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], RaggedIds],
        max_length: int,
    ) -> Inputs:
        self.check_room(max_length)
        split = [sentences_of(text) if self._size is None else [text] for text in texts]
        tokenized = iter(tokenize(list(itertools.chain(*split))))
        inputs = []
        truncated = []
        for sentences in split:
            blocks = [next(tokenized) for _ in sentences]
            if self._size is not None:
                [ids] = blocks
                starts = range(0, len(ids), self._size)
                blocks = [ids[start : start + self._size] for start in starts]
            kept, is_cut = self._cut([block for block in blocks if block], max_length)
            inputs.append(self._with_placeholders(kept) or [self._tokenizer.pad])
            truncated.append(is_cut)
        return Inputs(RaggedIds.of(inputs), np.array(truncated))

    def most_tokens(self, size: int) -> int:
        return self.length + 3 * size  # a block has a token or more, and two placeholders

    def placeholders(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions (n, k) of the placeholders in padded inputs (n, t) of these lengths
        (n,), and those of their sources, the tokens whose states they get.

        The source of a block's placeholders is the block's last token; of the last block's it is
        the first token after the text, if there is one. An input with fewer than k repeats its last
        one; one without any has its last token in its own place.
        """
        found = [self._of_input(one, int(length)) for one, length in zip(ids, lengths, strict=True)]
        most = max(len(of_one) for of_one in found)
        filled = np.array([[*of_one, *of_one[-1:] * (most - len(of_one))] for of_one in found])
        return filled[:, :, 0], filled[:, :, 1]

    def _of_input(self, ids: NDArray[np.int64], length: int) -> list[tuple[int, int]]:
        """Return position and source of each placeholder of an input."""
        last = length - 1
        of_block = np.flatnonzero(ids == OF_BLOCK)
        if not len(of_block):
            return [(last, last)]
        after_text = min(length - len(self.suffix), last)
        sources = np.append(of_block[1:] - 1, after_text).tolist()
        # inputs that were changed by hand may have none
        of_text = np.flatnonzero(ids == OF_TEXT)
        return [
            *zip(of_block.tolist(), sources, strict=True),
            *zip(of_text.tolist(), sources, strict=False),
        ]

    def _cut(self, blocks: list[list[int]], max_length: int) -> tuple[list[list[int]], bool]:
        """Return the blocks that fit with their placeholders, and whether tokens were lost.

        The characters that touch [X] are kept.
        """
        room = self.room(max_length)
        if sum(len(block) + 2 for block in blocks) <= room:
            return blocks, False
        touching = self._after_ids
        if self._tokenizer.cuts_left:  # the same in the mirror
            touching = self._before_ids[::-1]
            blocks = [block[::-1] for block in reversed(blocks)]
        room -= len(touching)
        kept: list[list[int]] = []
        for block in blocks:
            count = min(len(block), room - 2)
            if count < 1:
                break
            kept.append(block[:count])
            room -= count + 2
        kept[-1] += touching
        if self._tokenizer.cuts_left:
            kept = [block[::-1] for block in reversed(kept)]
        return kept, True

    def _with_placeholders(self, blocks: Sequence[list[int]]) -> list[int]:
        text = itertools.chain(*([OF_BLOCK, *block] for block in blocks))
        return [*self.prefix, *[OF_TEXT] * len(blocks), *text, *self.suffix]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, each with the white space before it; together they are the
    text.
    """
    ends = [end.end() for end in _END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
