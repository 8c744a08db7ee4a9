"""Template: a text with one [X] for the sentence and any number of [MASK]s.

Its ids equal the filled string's.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.text_rules import is_punctuation
from promptcli.errors import UsageError, WrongKindError
from promptcli.recipe import MASK, SLOT

_PROBE = "cat"  # a sentence


@dataclass(frozen=True)
class Inputs:
    """Sentences as a model takes them, in a template."""

    ids: RaggedIds  #: token ids of n inputs, specials included
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens


class Template:
    """A prompt of words (PromptBERT 4.2); ``[X]`` alone is the empty template.

    Where the tokenizer may join a template's character and a sentence's (``."`` is one item of
    byte-level vocabularies), the characters that touch [X] are tokenised with the sentence: the
    ids of both are the sentence's piece. ``placeholder``: a meaningless token precedes the piece.

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
        words, self._added, start, self._after = self._frame(before, after)
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

    def _frame(self, before: str, after: str) -> tuple[str, str, str, str]:
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
        """Return the ids between two pieces, which are to be cut into the same tokens."""
        if MASK in between:
            raise UsageError(
                f"template {self.text!r} has a {MASK} between its two {SLOT}; put it before or"
                " after them"
            )
        _, added, start, end = self._frame(between, after)
        first_end = self._frame(before, between)[3]
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
    def outside(self) -> int:
        """Tokens of an input that are in no piece."""
        return len(self.prefix) + len(self.between) + len(self.suffix)

    @property
    def length(self) -> int:
        """Tokens of the template and the specials, without any sentence."""
        return self.outside + self.copies * (len(self._before_ids) + len(self._after_ids))

    def most_tokens(self, size: int) -> int:
        """Return the most tokens that an input can have whose sentence has this many tokens."""
        return self.length + self.copies * size

    def pieces(self, length: int) -> list[slice]:
        """Return the places of the sentence's pieces in an input of that many tokens."""
        piece = self.room(length)
        step = piece + len(self.between)
        starts = [len(self.prefix) + copy * step for copy in range(self.copies)]
        return [slice(start, start + piece) for start in starts]

    def room(self, max_length: int) -> int:
        """Return the most tokens that a piece may have."""
        return (max_length - self.outside) // self.copies

    @property
    def touching(self) -> tuple[str, str]:
        """The characters before and after [X] that are tokenised with the sentence."""
        return self._before, self._after

    def mask_positions(self, lengths: np.ndarray) -> np.ndarray:
        """Return the positions (n, k) of its k masks in inputs of these lengths (n,).

        A sentence may contain the token, too.
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
            room = (
                f"leaves no room for a sentence in {max_length}; give a shorter one or a larger"
                " max_length"
            )
            raise UsageError(f"template {self.text!r} takes {self.length} tokens, which {room}")

    def inputs(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], RaggedIds],
        max_length: int,
    ) -> Inputs:
        """Return the model inputs of n texts of ``with_touching``: the template's ids around the
        ids of each.

        ``tokenize`` returns the ids of each text that it is given. Sentences are cut, never the
        template.
        """
        self.check_room(max_length)
        pieces = tokenize(texts)
        room = self.room(max_length)
        cut = pieces.lengths > room
        if cut.any():
            pieces = self._shortened(pieces, cut, room)
        ids = pieces
        if self.copies > 1:
            ids = RaggedIds.side_by_side([pieces.between([], self.between), pieces])
        # if neither tokenizer nor template adds a token, an empty sentence has none: it becomes one
        # of padding
        return Inputs(ids.between(self.prefix, self.suffix).filled(self._tokenizer.pad), cut)

    def _shortened(self, pieces: RaggedIds, cut: np.ndarray, room: int) -> RaggedIds:
        """Return the pieces with those that are ``cut`` as long as there is room.

        What touches the sentence stays: the ids before [X] if it loses its first tokens, else those
        after it.
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
        self, text: str, *, starts_input: bool = False, keep_blank: bool = False
    ) -> list[int]:
        """Return the ids of words before or after the sentence."""
        tokenizer = self._tokenizer
        ids: list[int] = []
        adds_blank = starts_input and tokenizer.start_blank
        *before_masks, last = text.split(MASK)
        for segment in before_masks:
            assert tokenizer.mask is not None
            # the space before a mask belongs to the mask token, if it takes one
            words = segment.rstrip() if tokenizer.mask_takes_blank else segment
            ids += [*self._segment(words, adds_blank), tokenizer.mask]
            adds_blank = tokenizer.segment_blank
        # the space before the sentence belongs to it
        return ids + self._segment(last if keep_blank else last.rstrip(), adds_blank)

    def _segment(self, words: str, adds_blank: bool) -> list[int]:
        """Return the ids of words between masks."""
        if not words:
            return []
        blank = " " if adds_blank and not words[0].isspace() else ""
        return self._tokenizer.encode([blank + words])[0]


def check_template(text: str, most: int = 1) -> None:
    """Refuse a template without [X], or with more than ``most`` of them."""
    if not 1 <= text.count(SLOT) <= most:
        raise UsageError(
            f"template {text!r} has {text.count(SLOT) or 'no'} {SLOT}; give one, for the sentence"
        )
