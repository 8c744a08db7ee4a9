"""Template: a text with one [X] for the sentence and any number of [MASK]s; BlockTemplate: one
whose sentence is cut into blocks.

Its ids equal the filled string's.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.text_rules import END_MARKS, is_punctuation
from promptcli.errors import UsageError, WrongKindError
from promptcli.recipe import MASK, SLOT

_PROBE = "cat"  # a sentence
#: A block's two placeholders: the one in front of the block, the one in front of the whole text.
OF_BLOCK, OF_TEXT = -1, -2
_CLOSING = "\"'”’»)\\]」』】〟"  # noqa: RUF001
_UNSPACED = "。．｡！？"  # noqa: RUF001 - end marks of scripts without spaces
#: The end of a sentence before the next one.
_END = re.compile(
    rf"[{re.escape(''.join(END_MARKS))}…][{_CLOSING}]*(?=\s)|[{_UNSPACED}][{_CLOSING}]*(?=[^\s{_CLOSING}])"
)


@dataclass(frozen=True)
class ModelInputs:
    """Sentences as a model takes them, in a template."""

    ids: RaggedIds  #: token ids of n inputs, specials included
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens


class Template:
    """A prompt of words (PromptBERT 4.2); ``[X]`` alone is the empty template.

    The tokenizer may merge a template character with a neighbouring sentence character (``."`` is
    one item of byte-level vocabularies). The characters next to [X] are therefore tokenised
    together with the sentence; we call the result the piece. With ``placeholder`` a meaningless
    token precedes it.

    A text with two [X] has the sentence in both (Echo embeddings), cut to the same length: in a
    causal model a token of the second copy has seen the whole sentence. Poolings that read the
    sentence alone read that copy.
    """

    has_blocks = False  #: whether the sentence is cut into blocks, with placeholders between them

    def __init__(self, text: str, tokenizer: PieceTokenizer, *, placeholder: bool = False) -> None:
        check_template(text, most=1 if placeholder else 2)
        self._check_mask(text, tokenizer)
        self.text = text
        self._tokenizer = tokenizer
        before, *between, after = text.split(SLOT)
        self.copies = 1 + len(between)  #: how often it contains the sentence
        after = after.rstrip()
        words, self._added, start, self._after = self._split_touching(before, after)
        self._before = self._added + start
        #: Ids before the sentence's piece, first special token included.
        self.prefix = [
            *tokenizer.start,
            *self._side(words, starts_input=True, keep_blank=placeholder),
        ]
        self.placeholder: int | None = None  #: its position
        if placeholder:
            self.placeholder = len(self.prefix)
            self.prefix.append(tokenizer.pad)
        #: Ids between the two pieces.
        self.between = self._between(before, between[0], after) if between else []
        #: Ids after the sentence's piece, last special token included.
        self.suffix = [*self._side(after.removeprefix(self._after)), *tokenizer.end]
        self._before_ids = tokenizer.encode([self._before])[0] if start.strip() else []
        self._after_ids = tokenizer.encode([self._after])[0] if self._after else []
        self.left = [*self.prefix, *self._before_ids]  #: ids before [X], without any sentence
        self.right = [*self._after_ids, *self.suffix]  #: ids after [X]
        #: Positions of the masks, in order: those before [X] from the start, those after it from
        #: the end (-1 the last).
        around = [*enumerate(self.prefix), *enumerate(self.suffix, -len(self.suffix))]
        self.masks = [place for place, token in around if token == tokenizer.mask]

    @staticmethod
    def _check_mask(text: str, tokenizer: PieceTokenizer) -> None:
        if MASK in text and tokenizer.mask is None:
            has = f"template {text!r} has a {MASK}, but the backbone"
            if tokenizer.causal:
                raise WrongKindError(
                    f"{has} is causal and read at its last token: take the model prompteol"
                )
            raise UsageError(f"{has}'s tokenizer has no mask token")
        own = tokenizer.mask_text
        if own is not None and own != MASK and own in text:
            raise UsageError(
                f"template {text!r} has {own}, the tokenizer's own mask; write {MASK} in its place"
            )

    def _split_touching(self, before: str, after: str) -> tuple[str, str, str, str]:
        """Return the words before a sentence's piece, the space that the tokenizer adds to a piece
        without one, and the characters of the piece before and after the sentence.
        """
        tokenizer = self._tokenizer
        touching = re.split(r"\s", before.split(MASK)[-1])[-1]
        end = re.split(r"\s", after.split(MASK)[0])[0]
        if tokenizer.splits_punctuation:  # only letters join
            touching = "" if is_punctuation(touching[-1:]) else touching
            end = "" if is_punctuation(end[:1]) else end
        words = before.removesuffix(touching)
        white = words[len(words.rstrip()) :]
        if words.endswith(MASK):
            adds_blank = tokenizer.segment_blank
        else:
            adds_blank = tokenizer.start_blank and not words.strip()
        added = " " if adds_blank and white[:1] != " " else ""
        return words, added, white + touching, end

    def _between(self, before: str, between: str, after: str) -> list[int]:
        """Return the ids between two pieces; both pieces must give the same tokens."""
        if MASK in between:
            raise UsageError(
                f"template {self.text!r} has a {MASK} between its two {SLOT}; put it before or"
                " after them"
            )
        _, added, start, end = self._split_touching(between, after)
        first_end = self._split_touching(before, between)[3]
        own, *others = self._tokenizer.encode(
            [
                f"{self._before}{_PROBE}{self._after}",
                f"{self._before}{_PROBE}{first_end}",
                f"{added}{start}{_PROBE}{end}",
            ]
        )
        if not between or any(ids != own for ids in others):
            raise UsageError(
                f"template {self.text!r} has different characters right around its two {SLOT}; give"
                " both the same"
            )
        return self._side(between.removeprefix(first_end).rstrip().removesuffix(start.lstrip()))

    @property
    def tokens_outside_pieces(self) -> int:
        """Tokens of an input that are in no piece."""
        return len(self.prefix) + len(self.between) + len(self.suffix)

    @property
    def length(self) -> int:
        """Tokens of the template and the specials, without any sentence."""
        return self.tokens_outside_pieces + self.copies * (
            len(self._before_ids) + len(self._after_ids)
        )

    def most_tokens(self, size: int) -> int:
        """Return the largest length of an input with a sentence of this many tokens."""
        return self.length + self.copies * size

    def pieces(self, length: int) -> list[slice]:
        """Return the places of the sentence's pieces in an input of that many tokens."""
        piece = self.piece_capacity(length)
        step = piece + len(self.between)
        starts = [len(self.prefix) + copy * step for copy in range(self.copies)]
        return [slice(start, start + piece) for start in starts]

    def piece_capacity(self, max_length: int) -> int:
        """Return the most tokens that a piece may have."""
        return (max_length - self.tokens_outside_pieces) // self.copies

    @property
    def touching(self) -> tuple[str, str]:
        """The characters before and after [X] that are tokenised with the sentence."""
        return self._before, self._after

    def mask_positions(self, lengths: np.ndarray) -> np.ndarray:
        """Return the positions (n, k) of its k masks in inputs of these lengths (n,).

        A sentence may also contain the mask token.
        """
        masks = np.array(self.masks, np.int64)
        return np.where(masks < 0, lengths[:, None] + masks, masks)

    def with_touching(self, texts: Sequence[str]) -> list[str]:
        """Return n texts with the template's characters that touch [X], since these are tokenised
        together; the tokenizer sees nothing else of the template.
        """
        pieces = [text + self._after for text in texts]
        if self._added and self._before == self._added:
            takes_blank = self._tokenizer.takes_blank
            return [self._added + piece if takes_blank(piece) else piece for piece in pieces]
        return [self._before + piece for piece in pieces]

    def check_room(self, max_length: int) -> None:
        if self.length >= max_length:
            raise UsageError(
                f"template {self.text!r} takes {self.length} tokens, which leaves no room for a"
                f" sentence in {max_length}; give a shorter one or a larger max_length"
            )

    def inputs(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], RaggedIds],
        max_length: int,
    ) -> ModelInputs:
        """Return the model inputs of n texts of ``with_touching``: the template's ids around the
        ids of each.

        ``tokenize`` returns the ids of each text that it is given. Sentences are cut, never the
        template.
        """
        self.check_room(max_length)
        pieces = tokenize(texts)
        room = self.piece_capacity(max_length)
        cut = pieces.lengths > room
        if cut.any():
            pieces = self._shortened(pieces, cut, room)
        ids = pieces
        if self.copies > 1:
            ids = RaggedIds.side_by_side([pieces.between([], self.between), pieces])
        # an empty sentence has no token if neither tokenizer nor template adds one: it gets padding
        return ModelInputs(ids.between(self.prefix, self.suffix).filled(self._tokenizer.pad), cut)

    def _shortened(self, pieces: RaggedIds, cut: np.ndarray, room: int) -> RaggedIds:
        """Return the pieces, with every ``cut`` piece as long as the room allows.

        The ids touching the sentence stay: those before [X] if the sentence loses its first tokens,
        else those after it.
        """
        touching = self._after_ids
        if self._tokenizer.cuts_left:
            touching = self._before_ids
        kept = np.where(cut, room - len(touching), pieces.lengths)
        of_template = RaggedIds.repeated(touching, cut.astype(np.int64))
        if self._tokenizer.cuts_left:
            return RaggedIds.side_by_side(
                [of_template, pieces.ranges(pieces.starts + pieces.lengths - kept, kept)]
            )
        return RaggedIds.side_by_side([pieces.ranges(pieces.starts, kept), of_template])

    def _side(
        self, words: str, *, starts_input: bool = False, keep_blank: bool = False
    ) -> list[int]:
        """Return the ids of words and masks before or after the sentence."""
        tokenizer = self._tokenizer
        if not keep_blank:  # the space before the sentence belongs to it
            words = words.rstrip()
        words = words.replace(MASK, tokenizer.mask_text or MASK)
        if starts_input and tokenizer.start_blank and tokenizer.takes_blank(words):
            words = " " + words
        return tokenizer.encode([words])[0] if words else []


def check_template(text: str, most: int = 1) -> None:
    """Refuse a template without [X], or with more than ``most`` of them."""
    if not 1 <= text.count(SLOT) <= most:
        raise UsageError(
            f"template {text!r} has {text.count(SLOT) or 'no'} {SLOT}; give one, for the sentence"
        )


class BlockTemplate(Template):
    """A template with one [X], whose text is cut into its sentences, or every ``size`` tokens.

    A placeholder for each block is in front of it, and one in front of the whole text (Hierarchical
    Token Prepending).

    The input is ``[words] B..B P block P block ... P block [words]``. The ids of the placeholders
    are negative, unlike those of texts.
    """

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
    ) -> ModelInputs:
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
        return ModelInputs(RaggedIds.of(inputs), np.array(truncated))

    def most_tokens(self, size: int) -> int:
        return self.length + 3 * size  # a block has a token or more, and two placeholders

    def placeholders(
        self, ids: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions (n, k) of the placeholders in padded inputs (n, t) of these lengths
        (n,), and those of their sources, the tokens whose states they get.

        The source of a block's placeholders is the block's last token; of the last block's it is
        the first token after the text, if there is one. An input with fewer than k placeholders
        repeats the last one; in an input without any the last token replaces itself.
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
        room = self.piece_capacity(max_length)
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
