"""A backbone's tokenizer for splicing: pieces of text to ids, without specials, each piece
independently.

The space before a piece determines byte-level and SentencePiece ids, so the tokenizer never adds it
here: the caller writes it.
"""

import contextlib
import hashlib
import json
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import is_normalized

import numpy as np
from tokenizers import Tokenizer
from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer
from tokenizers.processors import TemplateProcessing

from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.errors import PromptcliError, UsageError, one_line

_SPECIALS = {
    "unk_token_id": "[UNK]",
    "sep_token_id": "[SEP]",
    "pad_token_id": "[PAD]",
    "cls_token_id": "[CLS]",
    "mask_token_id": "[MASK]",
}


def read_wordpiece(folder: Path) -> SimpleNamespace:
    """Return the attributes that ``PieceTokenizer`` reads, for the shipped BERT, without
    transformers.
    """
    tokenizer = BertWordPieceTokenizer.from_file(str(folder / "vocab.txt"))._tokenizer
    ids = {name: tokenizer.token_to_id(text) for name, text in _SPECIALS.items()}
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["cls_token_id"]), ("[SEP]", ids["sep_token_id"])],
    )
    return SimpleNamespace(
        backend_tokenizer=tokenizer,
        mask_token=_SPECIALS["mask_token_id"],
        bos_token_id=None,
        eos_token_id=None,
        **ids,
    )


_AT_A_TIME = 1024  # pieces: the tokenizer's objects are many times the size of the ids
_CACHED_CHARACTERS = 1 << 20  #: characters of the words in the cache; beyond, it is emptied
_END = "\n"  # separates pieces joined to one text
_END_ID = -1  # replaces ``_END`` among ids
_MARKS = "|^~`\\_=<>{}*+#@&"  # ASCII punctuation that text seldom has
#: A word whose pieces are counted. In the scripts from Devanagari to Burmese, vowels are not
#: letters.
_A_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|[\u0900-\u109f])*")
_PIECES_OF_UNKNOWN = 3  #: an unknown token counts as three


@contextlib.contextmanager
def tokenizing() -> Iterator[None]:
    """Turn a panic of the library, which is not an ``Exception``, into one line.

    For example, a pattern may never end.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = one_line(error, 100)
        raise PromptcliError(
            f"the tokenizer of the model fails at a text ({reason}); leave the text out"
        ) from None


class PieceTokenizer:
    """Text pieces to token ids; ``owner`` is kind and name, for messages.

    An input is enclosed in [CLS] and [SEP]; if ``causal``, [BOS] in front of it stays and [EOS]
    after it does not.
    """

    causal = False
    #: Ids before and after every input: [CLS] and [SEP], or [BOS] and nothing.
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    pad = 0
    unk: int | None = None  #: None if it has none (byte-level vocabularies need none)
    mask: int | None = None  #: None if it has none
    mask_text: str | None = None
    mask_takes_blank = False  #: the mask takes the space before it
    cuts_left = False  #: an input that is too long loses its first tokens
    #: The tokenizer itself would put a space before the first word of an input, and before the
    #: first word after a special token.
    start_blank = False
    segment_blank = False
    #: Every punctuation mark is a separate token, so that pieces never join.
    splits_punctuation = True
    #: Byte-level BPE: a word's leading space is part of its token (``Ġ``).
    byte_level = False
    splits_at_blanks = True  #: a word between spaces has the same ids everywhere

    def __init__(self, tokenizer: Any, owner: str, *, causal: bool = False) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UsageError(
                f"the tokenizer of {owner} is not a fast one; a tokenizer.json or vocab.txt is"
                " needed"
            )
        self.causal = causal
        if causal:
            self.start, _ = added_around(tokenizer)
        else:
            self.start, self.end = _cls_and_sep(tokenizer, owner)
        spare = ("pad_token_id", "sep_token_id", "eos_token_id", "bos_token_id")
        tokens = (getattr(tokenizer, name) for name in spare)
        self.pad = next((token for token in tokens if token is not None), 0)
        self.unk = tokenizer.unk_token_id
        if not causal:
            self.mask = tokenizer.mask_token_id
            self.mask_text = tokenizer.mask_token
        self.cuts_left = getattr(tokenizer, "truncation_side", "right") == "left"
        definition = json.loads(backend.to_str())
        self.sha256 = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        self._read_added(definition["added_tokens"])
        self._read_blanks(definition)
        self._ids_of_word: dict[str, bytes] = {}
        self._cached_characters = 0  # of the words in ``_ids_of_word``
        self._tokenizer = _make_tokenizer(definition, backend.model)

    def _read_added(self, tokens: list[dict[str, Any]]) -> None:
        """Read the tokens that are found in a text before it is split."""
        self._added = {token["content"] for token in tokens}
        self.mask_takes_blank = any(
            token["lstrip"] for token in tokens if token["content"] == self.mask_text
        )
        #: the tokens that are found anywhere in a text and take nothing that follows, longest first
        typed = [
            token["content"] for token in tokens if not (token["single_word"] or token["rstrip"])
        ]
        added = "|".join(map(re.escape, sorted(typed, key=len, reverse=True))) or "(?!)"
        self._added_token = re.compile(added)
        #: The places after which the tokenizer would add a space: not at the end, before a space or
        #: before an added token.
        self._blank_after_added = re.compile(rf"(?:{added})(?!{added}|\s|\Z)")

    def _read_blanks(self, definition: dict[str, Any]) -> None:
        """Rewrite a definition so that it adds no space, and record how it treated spaces."""
        schemes = remove_blanks(definition)
        self.start_blank = bool(schemes & {"always", "first", "byte-level"})
        self.segment_blank = bool(schemes & {"always", "byte-level"})
        splitting = json.dumps(definition["pre_tokenizer"])
        self.splits_punctuation = "BertPreTokenizer" in splitting
        self.byte_level = "ByteLevel" in splitting
        self.splits_at_blanks = splits_at_blanks(definition)

    def encode(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the ids of every piece of text, without special tokens, in bulk."""
        return list(self.encode_ragged(pieces))

    def encode_ragged(self, pieces: Sequence[str]) -> RaggedIds:
        """Return ``encode`` in one array."""
        encode = self._by_words if self.splits_at_blanks else self._whole
        encoded = []
        for start in range(0, len(pieces), _AT_A_TIME):
            encoded.append(encode(list(pieces[start : start + _AT_A_TIME])))
        return RaggedIds.joined(encoded)

    def takes_blank(self, text: str) -> bool:
        """Return whether the tokenizer itself would put a space in front of a text: not before a
        space or an added token.
        """
        return bool(text) and text[0] != " " and not self._added_token.match(text)

    def _whole(self, pieces: list[str]) -> RaggedIds:
        if self.segment_blank:
            pieces = [self._blank_after_added.sub(r"\g<0> ", piece) for piece in pieces]
        try:
            with tokenizing():
                encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        except TypeError:  # the library refuses half of a surrogate pair in this way
            raise UsageError("a text is not text: not all of it is UTF-8") from None
        return RaggedIds.of(encoding.ids for encoding in encodings)

    def _by_words(self, pieces: list[str]) -> RaggedIds:
        """Tokenise each word once: text repeats its words, and looking one up is many times
        faster.

        Words end at spaces, and at ASCII punctuation unless a mark joins it or it may spell an
        added token such as ``[MASK]``.
        """
        text = f" {_END} ".join([*(piece.replace(_END, " ") for piece in pieces), ""])
        if is_normalized("NFC", text) and not any(map(text.__contains__, self._added)):
            for mark in filter(text.__contains__, string.punctuation):
                text = text.replace(mark, f" {mark} ")
        words = text.split(" ")
        if self._cached_characters > _CACHED_CHARACTERS:
            self._ids_of_word, self._cached_characters = {}, 0
        known = self._ids_of_word  # another thread may replace it
        if new := list(set(words).difference(known)):
            known.update(zip(new, self._ids_of_words(new), strict=True))
            [known[_END]] = RaggedIds.of([[_END_ID]]).packed()
            self._cached_characters += sum(map(len, new))
        ids = np.frombuffer(b"".join(map(known.__getitem__, words)), np.intc)
        return RaggedIds.ended_by(_END_ID, ids)

    def _ids_of_words(self, words: list[str]) -> list[bytes]:
        """Return the ids of each word, many in one text with a mark between them: a text costs more
        than its words.
        """
        text = "".join(words)
        mark = next((mark for mark in _MARKS if self.knows(mark) and mark not in text), None)
        if mark is None:
            return self._whole(words).packed()
        groups = [words[start : start + 32] for start in range(0, len(words), 32)]
        rows = self._whole([f" {mark} ".join([*group, ""]) for group in groups])
        packed = RaggedIds.ended_by(self.id(mark), rows.ids).packed()
        if len(packed) != len(words):  # a word holds the mark as another character, such as ｜
            return self._whole(words).packed()
        return packed

    def pieces_per_word(self, texts: Sequence[str]) -> float:
        """Return how many tokens a word has on average; an unknown token counts as three."""
        words = 0
        pieces = 0
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            words += len(_A_WORD.findall(text))
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if any(map(str.isalpha, text[start:end])):
                    pieces += _PIECES_OF_UNKNOWN if token == self.unk else 1
        return pieces / max(words, 1)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ids_of_word": {}, "_cached_characters": 0}

    def text(self, token: int) -> str:
        """Return the vocabulary item of an id, e.g. ``##ing`` or ``Ġthe``."""
        return str(self._tokenizer.id_to_token(token))

    @property
    def highest(self) -> int:
        """The highest id of the vocabulary, added tokens included; -1 if it is empty."""
        return max(self._tokenizer.get_vocab().values(), default=-1)

    def items(self) -> dict[int, str]:
        """Return the whole vocabulary, added tokens included, by id."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        return {token: text for text, token in sorted(ids.items(), key=lambda item: item[1])}

    @property
    def specials(self) -> set[int]:
        """The ids of its special tokens."""
        tokens = (*self.start, *self.end, self.pad, self.unk, self.mask)
        return {token for token in tokens if token is not None}

    def knows(self, token: str) -> bool:
        """Return whether the vocabulary itself has a token, not only the list of added tokens."""
        return self._tokenizer.model.token_to_id(token) is not None

    def id(self, token: str) -> int | None:
        number: int | None = self._tokenizer.token_to_id(token)
        return number


def _make_tokenizer(definition: dict[str, Any], model: Any) -> Tokenizer:
    """Return the tokenizer of a definition with an existing model: reading the vocabulary again is
    slowest.
    """
    added = {token["content"]: token["id"] for token in definition["added_tokens"]}
    # added tokens keep their ids by this model
    model_of_added = {"type": "WordLevel", "vocab": added, "unk_token": ""}
    left_out = dict.fromkeys(("post_processor", "truncation", "padding"))
    text = json.dumps({**definition, **left_out, "model": model_of_added})
    tokenizer: Tokenizer = Tokenizer.from_str(text)
    tokenizer.model = model
    return tokenizer


def _cls_and_sep(tokenizer: Any, owner: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if tokenizer.cls_token_id is not None and tokenizer.sep_token_id is not None:
        return (tokenizer.cls_token_id,), (tokenizer.sep_token_id,)
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    if tokenizer.cls_token_id is tokenizer.sep_token_id is None:
        start, end = added_around(tokenizer)
    if not start or not end:
        missing = "cls_token" if tokenizer.cls_token_id is None else "sep_token"
        raise UsageError(
            f"the tokenizer of {owner} has no {missing}; give one in tokenizer_config.json"
        )
    return start, end


def added_around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a tokenizer of transformers puts before a text and after it."""
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a", add_special_tokens=True)["input_ids"]
    places = range(len(full) - len(plain) + 1)
    start = next(place for place in places if full[place : place + len(plain)] == plain)
    return tuple(full[:start]), tuple(full[start + len(plain) :])


#: Keys under which a step of a definition lists the steps that it consists of.
_STEP_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")


def steps_of(section: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a section of a definition, such as its normalizer, in order."""
    waiting = [section]
    while waiting:
        step = waiting.pop(0)
        if not isinstance(step, dict):
            continue
        lists = (step[name] for name in _STEP_LISTS if isinstance(step.get(name), list))
        steps = next(lists, None)
        if steps is None:
            yield step
        else:
            waiting[:0] = steps


#: Normalizers that look at one character, or at one with the marks on it.
_LOCAL = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer")
#: A pattern of one character: a class of characters that contains no other class.
_CLASS_OF_CHARACTERS = re.compile(r"\[\^?(?:[^\[\]\\&]|\\.)+\]", re.DOTALL)


def splits_at_blanks(definition: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer treats each word between spaces independently, like BERT's."""
    splitters = [step["type"] for step in steps_of(definition.get("pre_tokenizer"))]
    return (
        splitters == ["BertPreTokenizer"]
        and definition["model"].get("type") in ("WordPiece", "Unigram")
        and all(map(_is_local, steps_of(definition.get("normalizer"))))
        and not any(
            " " in token["content"] or token["normalized"] for token in definition["added_tokens"]
        )
    )


def _is_local(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern") or {}
    single = len(pattern.get("String", "")) == 1
    of_class = _CLASS_OF_CHARACTERS.fullmatch(pattern.get("Regex", "")) is not None
    return step["type"] in _LOCAL or (step["type"] == "Replace" and (single or of_class))


def remove_blanks(definition: dict[str, Any]) -> set[str]:
    """Rewrite a definition in place so that it adds no space; return the schemes that it had.

    XLM-R's pre-tokenizer drops spaces, and adds one before every word; rewritten, it keeps them, so
    that a piece can begin with or without one. Runs of spaces become one, trailing ones go, as
    before.
    """
    normalizers = [*steps_of(definition.get("normalizer"))]
    splitters = [*steps_of(definition.get("pre_tokenizer"))]
    if {"WhitespaceSplit", "Metaspace"} <= {step["type"] for step in splitters}:
        splitters = [step for step in splitters if step["type"] != "WhitespaceSplit"]
        for old, new in ((r"\s+$", ""), (r"\s+", " ")):
            normalizers.append({"type": "Replace", "pattern": {"Regex": old}, "content": new})
    # Llama's older files put a space in front of every text
    kept = [step for step in normalizers if step["type"] != "Prepend"]
    schemes = {"always"} if len(kept) < len(normalizers) else set()
    for step in splitters:
        if step["type"] == "Metaspace":
            schemes.add(str(step.get("prepend_scheme", "always")))
            step["prepend_scheme"] = "never"
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            schemes.add("byte-level")
            step["add_prefix_space"] = False
    definition["normalizer"] = {"type": "Sequence", "normalizers": kept}
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splitters}
    return schemes
