"""Sentences as model inputs: a text rule changes the sentence, and a template surrounds it.

An example, for a tokenizer that may join letters and punctuation marks (RoBERTa's):

    template:  Sentence : "[X]" means <mask>.
    sentence:  Hi.
    input:     <s> Sentence :  |  "Hi."  |  means <mask>. </s>
               prefix             piece     suffix

The tokenizer could join the sentence's ``.`` with the template's ``"`` to a single token. So the
characters of the template that touch [X], up to the next white space or mask, are tokenised
together with the sentence, as the piece; the white space before the piece belongs to it, too.
Prefix and suffix are tokenised once. The ids are those of the template with the sentence filled in.
"""

import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.errors import UsageError, WrongKindError, look_up
from promptcli.recipe import MASK, SLOT

#: Marks that end a text in PromptBERT's published code: a text with another end gets a period.
_PUBLISHED = (".", "?", '"', "'")
#: Marks that end sentences of other scripts, whatever the script of the last word is: it may be a
#: name or a number.
_STOPS = tuple("。．｡！？।॥؟۔։።፧៕។။།༎᠃")  # noqa: RUF001 - the full-width ones are meant
_CLOSING = ("!", "…", "”", "’", "»")  # noqa: RUF001
END_MARKS = (".", "?", "!", *_STOPS)  #: that end a sentence in any script


#: Script, as the first word of its letters' Unicode names, -> the stop that its sentences get; an
#: empty one if they get none.
STOPS = {
    **dict.fromkeys(
        ("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "BOPOMOFO"), "。"
    ),
    **dict.fromkeys(("DEVANAGARI", "BENGALI", "GURMUKHI", "ORIYA"), "।"),
    "ARABIC": ".",
    "ARMENIAN": "։",  # noqa: RUF001
    "ETHIOPIC": "።",
    "KHMER": "។",
    "MYANMAR": "။",
    "TIBETAN": "།",
    "MONGOLIAN": "᠃",  # noqa: RUF001
    "GREEK": ".",
    "THAI": "",
    "LAO": "",
}
#: Stop or script -> its end marks that are not in ``_CLOSING``.
_FURTHER = {"。": ("」", "』", "】", "〟"), "ARMENIAN": (":", "՞", "՜"), "GREEK": (";", "\u037e")}


def with_period(text: str) -> str:
    """Return a text with an end mark after it, unless it is empty or has one.

    The script of its last letter decides which mark is appended.
    """
    if not text or text.endswith(_PUBLISHED):
        return text
    if text.isascii():
        return text + "."
    if text.endswith(_STOPS):
        return text
    letter = next((sign for sign in reversed(text) if sign.isalpha()), None)
    if letter is None:
        return text + "."
    script = unicodedata.name(letter, "").partition(" ")[0]
    if script not in STOPS:
        return text + "."
    closing = (*_CLOSING, *_FURTHER.get(script, ()), *_FURTHER.get(STOPS[script], ()))
    if text.endswith(closing):
        return text
    return text + STOPS[script]


def is_punctuation(sign: str) -> bool:
    """Return whether a character is a punctuation mark of any script."""
    return sign in string.punctuation or unicodedata.category(sign).startswith("P")


def _prompteol(text: str) -> str:
    """Return a text with single quotes for double ones and a full stop for a final question mark
    (PromptEOL's evaluation code).
    """
    quoted = text.replace('"', "'")
    if quoted.endswith("?"):
        return quoted[:-1] + "."
    return quoted


def _with_full_stop(text: str) -> str:
    """Return a text with " ." after it, unless punctuation ends it or it is empty (SNCSE's code).

    In other scripts the text gets the same end mark as by ``with_period``.
    """
    ended = text.rstrip()
    if not ended or is_punctuation(ended[-1]):
        return text
    marked = with_period(ended)
    if marked != f"{ended}.":
        return marked
    return f"{text} ."


_TYPED_SPECIAL = re.compile(r"(\[(?:CLS|SEP|PAD|UNK|MASK)\])")


def lower(text: str) -> str:
    """Return the text in lower case.

    A typed special token, e.g. [SEP], stays unchanged, as with a tokenizer that lower-cases.
    """
    sections = _TYPED_SPECIAL.split(text)
    sections[::2] = map(str.lower, sections[::2])  # the others are the special tokens
    return "".join(sections)


@dataclass(frozen=True)
class TextRule:
    """A rule that changes a sentence's characters before it is tokenised."""

    change: Callable[[str], str]
    strips: bool = True  #: whether white space around the sentence is dropped first

    def apply(self, sentence: str, *, period: bool) -> str:
        """Return a sentence as the prompt takes it.

        ``period`` appends "." if the last character is not one of . ? " ' (PromptBERT's evaluation
        code; worth about 5 points without training), or another script's mark (``STOPS``); an empty
        sentence stays empty.
        """
        text = sentence.strip() if self.strips else sentence
        if period:
            text = with_period(text)
        return self.change(text)


PLAIN_TEXT = TextRule(str)  #: rule of a recipe without one
#: The last two are sentence-transformers' rules.
TEXT_RULES = {
    "prompteol": TextRule(_prompteol),
    "full-stop": TextRule(_with_full_stop),
    "lower": TextRule(lower, strips=False),
    "as-typed": TextRule(str, strips=False),
}


def text_rule(name: str | None) -> TextRule:
    """Return the rule of a recipe."""
    if name is None:
        return PLAIN_TEXT
    return look_up("text rule", name, TEXT_RULES)


@dataclass(frozen=True)
class ModelInputs:
    """Sentences as a model takes them, in a template."""

    ids: RaggedIds  #: token ids of n inputs, specials included
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens


class _Surroundings(NamedTuple):
    """The text around one [X] of a template, divided where the piece begins and ends.

    In the example the words are ``Sentence : `` and the blank is empty; the start is a space and a
    quotation mark, and the end is a quotation mark.
    """

    words: str  #: all text before the characters that touch [X]
    blank: str  #: a space that the tokenizer would add in front of the piece, or nothing
    start: str  #: the white space before the characters that touch [X], and these characters
    end: str  #: the characters directly after [X]


class Template:
    """A text with one [X] for the sentence and any number of [MASK]s (PromptBERT 4.2).

    ``[X]`` alone is the empty template.

    A text with two [X] has the sentence in both (Echo embeddings), cut to the same length: in a
    causal model a token of the second copy has seen the whole sentence. Poolings that read the
    sentence alone read that copy.
    """

    #: whether a meaningless token precedes the piece, or precedes each block of a sentence
    has_placeholders = False
    has_blocks = False  #: whether the sentence is cut into blocks

    def __init__(self, text: str, tokenizer: PieceTokenizer) -> None:
        check_template(text, max_slots=1 if self.has_placeholders else 2)
        _check_mask(text, tokenizer)
        self.text = text
        self._tokenizer = tokenizer
        before, *between, after = text.split(SLOT)
        self.copies = 1 + len(between)  #: how often it contains the sentence
        after = after.rstrip()
        words, self._blank, start, self._after = self._surroundings(before, after)
        self._before = self._blank + start
        #: Ids before the sentence's piece, first special token included.
        self.prefix = [
            *tokenizer.start,
            *self._ids_of(words, starts_input=True, keep_blank=self.has_placeholders),
        ]
        #: Ids between the two pieces.
        self.between = self._ids_between(before, between[0], after) if between else []
        #: Ids after the sentence's piece, last special token included.
        self.suffix = [*self._ids_of(after.removeprefix(self._after)), *tokenizer.end]
        self._before_ids = tokenizer.encode([self._before])[0] if start.strip() else []
        self._after_ids = tokenizer.encode([self._after])[0] if self._after else []
        self.left = [*self.prefix, *self._before_ids]  #: ids before [X], without any sentence
        self.right = [*self._after_ids, *self.suffix]  #: ids after [X]
        #: The characters before and after [X] that are tokenised with the sentence.
        self.touching = (self._before, self._after)
        #: Positions of the masks, in order: before [X] counted from the start, after it from the
        #: end (-1 the last).
        around = [*enumerate(self.prefix), *enumerate(self.suffix, -len(self.suffix))]
        self.masks = [place for place, token in around if token == tokenizer.mask]

    def _surroundings(self, before: str, after: str) -> _Surroundings:
        """Divide the text before and after one [X]."""
        tokenizer = self._tokenizer
        touching = re.split(r"\s", before.split(MASK)[-1])[-1]
        end = re.split(r"\s", after.split(MASK)[0])[0]
        if tokenizer.splits_punctuation:  # then only letters join
            touching = "" if is_punctuation(touching[-1:]) else touching
            end = "" if is_punctuation(end[:1]) else end
        words = before.removesuffix(touching)
        white = words[len(words.rstrip()) :]
        if words.endswith(MASK):
            adds_blank = tokenizer.segment_blank
        else:
            adds_blank = tokenizer.start_blank and not words.strip()
        blank = " " if adds_blank and not white.startswith(" ") else ""
        return _Surroundings(words, blank, white + touching, end)

    def _ids_of(
        self, words: str, *, starts_input: bool = False, keep_blank: bool = False
    ) -> list[int]:
        """Return the ids of words and masks outside of the pieces."""
        tokenizer = self._tokenizer
        if not keep_blank:  # the space before a piece belongs to the piece
            words = words.rstrip()
        words = words.replace(MASK, tokenizer.mask_text or MASK)
        if starts_input and tokenizer.start_blank and tokenizer.takes_blank(words):
            words = " " + words
        return tokenizer.encode([words])[0] if words else []

    def _ids_between(self, before: str, between: str, after: str) -> list[int]:
        """Return the ids between two pieces; refuse the template if the same sentence gets other
        ids in the second piece than in the first.
        """
        if MASK in between:
            raise UsageError(
                f"template {self.text!r} has a {MASK} between its two {SLOT}; put it before or"
                " after them"
            )
        first = self._surroundings(before, between)
        second = self._surroundings(between, after)
        sentence = "cat"
        in_template, in_first, in_second = self._tokenizer.encode(
            [
                f"{self._before}{sentence}{self._after}",
                f"{self._before}{sentence}{first.end}",
                f"{second.blank}{second.start}{sentence}{second.end}",
            ]
        )
        if not between or not in_template == in_first == in_second:
            raise UsageError(
                f"template {self.text!r} has different characters right around its two {SLOT}; give"
                " both the same"
            )
        words = between.removeprefix(first.end).rstrip().removesuffix(second.start.lstrip())
        return self._ids_of(words)

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

    def longest_input(self, size: int) -> int:
        """Return the largest length of an input whose sentence has ``size`` tokens."""
        return self.length + self.copies * size

    def pieces(self, length: int) -> list[slice]:
        """Return the places of the sentence's pieces in an input of that many tokens."""
        piece = self.piece_capacity(length)
        step = piece + len(self.between)
        starts = [len(self.prefix) + copy * step for copy in range(self.copies)]
        return [slice(start, start + piece) for start in starts]

    def piece_capacity(self, max_length: int) -> int:
        """Return the largest number of tokens that a piece may have."""
        return (max_length - self.tokens_outside_pieces) // self.copies

    def mask_positions(self, lengths: np.ndarray) -> np.ndarray:
        """Return the positions (n, k) of its k masks in inputs of these lengths (n,).

        They are not searched for: a sentence may also contain the mask token.
        """
        masks = np.array(self.masks, np.int64)
        return np.where(masks < 0, lengths[:, None] + masks, masks)

    def with_touching(self, texts: Sequence[str]) -> list[str]:
        """Return n texts with the template's characters that touch [X]: the pieces."""
        pieces = [text + self._after for text in texts]
        if self._blank and self._before == self._blank:
            takes_blank = self._tokenizer.takes_blank
            return [self._blank + piece if takes_blank(piece) else piece for piece in pieces]
        return [self._before + piece for piece in pieces]

    def check_room(self, max_length: int) -> None:
        """Refuse a limit that leaves no token for a sentence."""
        if self.length >= max_length:
            raise UsageError(
                f"template {self.text!r} takes {self.length} tokens, which leaves no room for a"
                f" sentence in {max_length}; shorten the template or raise max_length"
            )

    def inputs(
        self,
        texts: Sequence[str],
        tokenize: Callable[[Sequence[str]], RaggedIds],
        max_length: int,
    ) -> ModelInputs:
        """Return the model inputs of n texts of ``with_touching``: the template's ids around the
        ids of each text, at most ``max_length`` of them.

        ``tokenize`` returns the ids of each text. A sentence is cut, a template never.
        """
        self.check_room(max_length)
        pieces = tokenize(texts)
        capacity = self.piece_capacity(max_length)
        is_cut = pieces.lengths > capacity
        if is_cut.any():
            pieces = self._cut(pieces, is_cut, capacity)
        ids = pieces
        if self.copies > 1:
            ids = RaggedIds.join_rows([pieces.surround([], self.between), pieces])
        # an empty sentence has no token if neither tokenizer nor template adds one: it gets padding
        ids = ids.surround(self.prefix, self.suffix).fill_empty(self._tokenizer.pad)
        return ModelInputs(ids, is_cut)

    def _cut(self, pieces: RaggedIds, is_cut: np.ndarray, capacity: int) -> RaggedIds:
        """Return the pieces; those marked in ``is_cut`` are shortened to ``capacity`` tokens.

        The template's ids on the side that is cut stay: those before [X] if the sentence loses its
        first tokens, else those after it.
        """
        cuts_left = self._tokenizer.cuts_left
        touching = self._before_ids if cuts_left else self._after_ids
        lengths = np.where(is_cut, capacity - len(touching), pieces.lengths)
        of_template = RaggedIds.repeat(touching, is_cut.astype(np.int64))
        if cuts_left:
            ends = pieces.starts + pieces.lengths
            return RaggedIds.join_rows([of_template, pieces.take_ranges(ends - lengths, lengths)])
        return RaggedIds.join_rows([pieces.take_ranges(pieces.starts, lengths), of_template])


def check_template(text: str, max_slots: int = 1) -> None:
    """Refuse a template without [X], or with more than ``max_slots`` of them."""
    if not 1 <= text.count(SLOT) <= max_slots:
        raise UsageError(
            f"template {text!r} has {text.count(SLOT) or 'no'} {SLOT}; write it once, in the place"
            " of the sentence"
        )


def _check_mask(text: str, tokenizer: PieceTokenizer) -> None:
    """Refuse a mask that the tokenizer does not have, or that is written in its own way."""
    if MASK in text and tokenizer.mask is None:
        problem = f"template {text!r} has a {MASK}, but the backbone"
        if tokenizer.causal:
            raise WrongKindError(
                f"{problem} is causal and read at its last token; use the recipe prompteol"
            )
        raise UsageError(f"{problem}'s tokenizer has no mask token")
    mask_text = tokenizer.mask_text
    if mask_text is not None and mask_text != MASK and mask_text in text:
        raise UsageError(
            f"template {text!r} has {mask_text}, the tokenizer's own mask; write {MASK} in its"
            " place"
        )
