"""Template: a text with one [X] for the sentence and any number of [MASK]s.

Its ids equal the filled string's.
"""

import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.errors import UsageError, WrongKindError, look_up
from promptcli.recipe import MASK, SLOT


@dataclass(frozen=True)
class Inputs:
    """Spliced sentences."""

    ids: RaggedIds  #: token ids of n inputs, specials included
    truncated: np.ndarray  #: (n,) bool: the sentence lost tokens


class Template:
    """A prompt of words (PromptBERT 4.2); ``[X]`` alone is the empty template.

    Where the tokenizer may join a template's character and a sentence's (``."`` is one item of
    byte-level vocabularies), the characters that touch [X] are tokenised with the sentence.
    ``placeholder``: a meaningless token precedes the sentence and the text that touches it.

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
        touching = _last_word(before.split(MASK)[-1])
        end = _first_word(after.split(MASK)[0])
        if tokenizer.splits_punctuation:  # only letters join
            touching = "" if _is_punctuation(touching[-1:]) else touching
            end = "" if _is_punctuation(end[:1]) else end
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
    def length(self) -> int:
        """Tokens of the template and the specials, without any sentence."""
        return self.input_length(len(self._before_ids) + len(self._after_ids))

    def input_length(self, piece: int) -> int:
        """Return the tokens of an input whose sentence, with the characters that touch it, has that
        many.
        """
        words = len(self.prefix) + len(self.between) + len(self.suffix)
        return words + self.copies * piece

    def most_tokens(self, size: int) -> int:
        """Return the most tokens that an input can have whose sentence has this many tokens."""
        return self.length + self.copies * size

    def pieces(self, length: int) -> list[slice]:
        """Return the places of the sentence, with what touches it, in an input of that many
        tokens.
        """
        piece = self.room(length)
        step = piece + len(self.between)
        starts = [len(self.prefix) + copy * step for copy in range(self.copies)]
        return [slice(start, start + piece) for start in starts]

    def room(self, max_length: int) -> int:
        """Return the tokens that the sentence may have, with the characters that touch it."""
        return (max_length - self.input_length(0)) // self.copies

    @property
    def touching(self) -> tuple[str, str]:
        """The characters before and after [X] that are tokenised with the sentence."""
        return self._before, self._after

    def mask_slots(self, input_length: int) -> list[int]:
        """Return the masks' positions in an input of that many tokens.

        A sentence may contain the token, too.
        """
        slots: list[int] = self.slots_of(np.array([input_length]))[0].tolist()
        return slots

    def slots_of(self, lengths: np.ndarray) -> np.ndarray:
        """Return the positions (n, k) of the k masks in inputs of these lengths (n,)."""
        masks = np.array(self.masks, np.int64)
        return np.where(masks < 0, lengths[:, None] + masks, masks)

    def prepare(
        self, sentences: Sequence[str], period: bool, rule: "TextRule | None" = None
    ) -> list[str]:
        """Return n sentences as they go to the tokenizer, which sees them without the template.

        They have the rule's changes, and the template's characters that adjoin [X] without a space,
        since these are tokenised together. White space around them goes unless the rule keeps it.

        ``period`` appends "." if the last character is not one of . ? " ' (PromptBERT's evaluation
        code; worth about 5 points without training), or another script's mark (``STOPS``); an empty
        sentence stays empty.
        """
        rule = rule or PLAIN_TEXT
        texts = []
        for sentence in sentences:
            text = sentence
            if rule.strips:
                text = text.strip()
            if period:
                text = with_period(text)
            text = rule.change(text) + self._after
            if not self._needs_no_blank(text):
                text = self._before + text
            texts.append(text)
        return texts

    def _needs_no_blank(self, text: str) -> bool:
        """Return whether a text begins the input and is one to which the tokenizer itself would add
        no space.
        """
        if not self._added or self._before != self._added:
            return False
        return not text or text.startswith(" ") or self._tokenizer.begins_with_added(text)

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
        """Return the model inputs of n prepared sentences.

        ``tokenize`` returns the ids of each text that it is given.
        """
        return self.splice(tokenize(texts), max_length)

    def splice(self, pieces: RaggedIds, max_length: int) -> Inputs:
        """Put the template's ids around each piece's ids.

        Cut the sentence, never the template.
        """
        self.check_room(max_length)
        room = self.room(max_length)
        cut = pieces.lengths > room
        if cut.any():
            pieces = self._shortened(pieces, cut, room)
        # if neither tokenizer nor template adds a token, an empty sentence has none: it becomes one
        # of padding
        rows = pieces
        if self.copies > 1:
            rows = RaggedIds.side_by_side([pieces.between([], self.between), pieces])
        return Inputs(rows.between(self.prefix, self.suffix).filled(self._tokenizer.pad), cut)

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
            return RaggedIds.side_by_side([of_template, pieces.last(kept)])
        return RaggedIds.side_by_side([pieces.first(kept), of_template])

    def _side(
        self, text: str, *, starts_input: bool = False, keep_blank: bool = False
    ) -> list[int]:
        """Return the ids of words before or after the sentence."""
        tokenizer = self._tokenizer

        def encode(segment: str, adds_blank: bool, keeps_blank: bool) -> list[int]:
            words = segment if keeps_blank else segment.rstrip()
            if not words:
                return []
            blank = " " if adds_blank and not words[0].isspace() else ""
            return tokenizer.encode([blank + words])[0]

        ids: list[int] = []
        adds_blank = starts_input and tokenizer.start_blank
        *before_masks, last = text.split(MASK)
        for segment in before_masks:
            assert tokenizer.mask is not None
            # the space before a mask belongs to the mask token, if it takes one
            ids += encode(segment, adds_blank, not tokenizer.mask_takes_blank)
            ids.append(tokenizer.mask)
            adds_blank = tokenizer.segment_blank
        # the space before the sentence belongs to it
        return ids + encode(last, adds_blank, keep_blank)


def _is_punctuation(sign: str) -> bool:
    return sign in string.punctuation or unicodedata.category(sign).startswith("P")


def check_template(text: str, most: int = 1) -> None:
    """Refuse a template without [X], or with more than ``most`` of them."""
    if not 1 <= text.count(SLOT) <= most:
        raise UsageError(
            f"template {text!r} has {text.count(SLOT) or 'no'} {SLOT}; give one, for the sentence"
        )


_PROBE = "cat"
_PUBLISHED = (".", "?", '"', "'")
#: Marks that end sentences of other scripts, whatever script the last word is written in (a name, a
#: number).
_STOPS = tuple("。．｡！？।॥؟۔։።፧។៕။།༎᠃")  # noqa: RUF001 - the full-width ones are meant
_CLOSING = ("!", "…", "”", "’", "»")  # noqa: RUF001
END_MARKS = (".", "?", "!", *_STOPS)  #: that end a sentence in any script


#: Script, as the first word of its letters' Unicode names, -> the stop that its sentences get, none
#: or one.
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
#: Stop or script -> its further end marks, beside ``_CLOSING``.
_FURTHER = {"。": ("」", "』", "】", "〟"), "ARMENIAN": (":", "՞", "՜"), "GREEK": (";", "\u037e")}


def with_period(text: str) -> str:
    """Return a text with an end mark after it, unless it is empty or has one.

    The script is that of its last letter.
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


def _prompteol(sentence: str) -> str:
    """Return the text with single quotes for double ones, a full stop for a final ? (PromptEOL's
    evaluation code).
    """
    quoted = sentence.replace('"', "'")
    if quoted.endswith("?"):
        return quoted[:-1] + "."
    return quoted


def _with_full_stop(text: str) -> str:
    """Return a text with " ." after it, unless punctuation ends it or it is empty (SNCSE's code).

    In scripts with their own end mark it is that mark, as by ``with_period``.
    """
    ended = text.rstrip()
    if not ended or _is_punctuation(ended[-1]):
        return text
    marked = with_period(ended)
    if marked != f"{ended}.":
        return marked
    return f"{text} ."


def _last_word(text: str) -> str:
    """Return the characters after the last white space."""
    if not text or text[-1].isspace():
        return ""
    return text.split()[-1]


def _first_word(text: str) -> str:
    """Return the characters before the first white space."""
    if not text or text[0].isspace():
        return ""
    return text.split(maxsplit=1)[0]


_TYPED_SPECIAL = re.compile(r"(\[(?:CLS|SEP|PAD|UNK|MASK)\])")


def lower(text: str) -> str:
    """Return the text in lower case.

    A typed special token stays one, as with a tokenizer that lower-cases.
    """
    parts = _TYPED_SPECIAL.split(text)
    for number in range(0, len(parts), 2):  # the others are the special tokens
        parts[number] = parts[number].lower()
    return "".join(parts)


@dataclass(frozen=True)
class TextRule:
    """What becomes of a sentence's own characters."""

    change: Callable[[str], str]
    strips: bool = True  #: whether white space around the sentence is dropped before


PLAIN_TEXT = TextRule(str)  #: that of a recipe without one
#: The last two are those of sentence-transformers.
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
