"""A backbone's tokenizer for splicing: it turns pieces of text into ids, without special tokens.

The space before a piece determines byte-level and SentencePiece ids. The tokenizer never adds that
space here; the caller writes it.
"""

import functools
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
from promptcli.errors import PromptcliError, UsageError, join_lines

_SPECIALS = {
    "unk_token_id": "[UNK]",
    "sep_token_id": "[SEP]",
    "pad_token_id": "[PAD]",
    "cls_token_id": "[CLS]",
    "mask_token_id": "[MASK]",
}


def read_wordpiece(folder: Path) -> SimpleNamespace:
    """Return the attributes that ``PieceTokenizer`` reads from a tokenizer of transformers, for the
    shipped BERT; transformers is not imported.
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


_PIECES_AT_ONCE = 1024  # the tokenizer's objects take many times the memory of the ids
_MAX_CACHED_CHARACTERS = 1 << 20  # of the words in the cache, which is then emptied
_WORDS_PER_TEXT = 32
_END = "\n"  # separates pieces that are joined to one text
_END_ID = -1  # replaces ``_END`` among ids
_MARKS = "|^~`\\_=<>{}*+#@&"  # ASCII punctuation that is rare in text
#: A word whose tokens are counted. In the scripts from Devanagari to Burmese, vowels are not
#: letters.
_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|[\u0900-\u109f])*")
_TOKENS_PER_UNKNOWN = 3  # an unknown token counts as three


class PieceTokenizer:
    """Turns pieces of text into token ids; ``owner`` names the tokenizer in messages.

    An input is enclosed in [CLS] and [SEP]. A ``causal`` model's input has [BOS] in front and no
    [EOS].
    """

    causal = False
    #: Ids before and after every input: [CLS] and [SEP], or [BOS] and nothing.
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    pad = 0
    unk: int | None = None  #: id of the unknown token; byte-level vocabularies have none
    mask: int | None = None
    mask_text: str | None = None
    mask_takes_blank = False  #: whether the mask takes the space before it
    cuts_left = False  #: whether an input that is too long loses its first tokens
    #: Whether the tokenizer itself puts a space before the first word of an input.
    start_blank = False
    #: Whether the tokenizer itself puts a space before the first word after a special token.
    segment_blank = False
    #: Whether every punctuation mark is a separate token, so that pieces never join.
    splits_punctuation = True
    #: Whether a word's leading space is part of its token (``Ġ``), as in byte-level BPE.
    byte_level = False
    splits_at_blanks = True  #: whether a word between spaces has the same ids everywhere

    def __init__(self, tokenizer: Any, owner: str, *, causal: bool = False) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UsageError(
                f"the tokenizer of {owner} is not a fast one; it needs a tokenizer.json or a"
                " vocab.txt"
            )
        self.causal = causal
        if causal:
            self.start, _ = added_around(tokenizer)
        else:
            self.start, self.end = _cls_and_sep(tokenizer, owner)
        for name in ("bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
            if getattr(tokenizer, name) is not None:  # the last one that exists serves as padding
                self.pad = getattr(tokenizer, name)
        self.unk = tokenizer.unk_token_id
        if not causal:
            self.mask = tokenizer.mask_token_id
            self.mask_text = tokenizer.mask_token
        self.cuts_left = getattr(tokenizer, "truncation_side", "right") == "left"
        definition = json.loads(backend.to_str())
        self.sha256 = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        self._read_added(definition["added_tokens"])
        schemes = remove_blanks(definition)
        self.start_blank = bool(schemes & {"always", "first", "byte-level"})
        self.segment_blank = bool(schemes & {"always", "byte-level"})
        splitting = json.dumps(definition["pre_tokenizer"])
        self.splits_punctuation = "BertPreTokenizer" in splitting
        self.byte_level = "ByteLevel" in splitting
        self.splits_at_blanks = splits_at_blanks(definition)
        self._ids_of_word: dict[str, bytes] = {}
        self._cached_characters = 0  # of the words in ``_ids_of_word``
        self._tokenizer = _make_tokenizer(definition, backend.model)

    def _read_added(self, tokens: list[dict[str, Any]]) -> None:
        """Read the tokens that the tokenizer finds in a text before it splits it."""
        self._added = {token["content"] for token in tokens}
        self.mask_takes_blank = any(
            token["lstrip"] for token in tokens if token["content"] == self.mask_text
        )
        # found anywhere in a text, without the space that follows; longest first
        anywhere = [
            token["content"] for token in tokens if not (token["single_word"] or token["rstrip"])
        ]
        longest_first = sorted(anywhere, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._added_token = re.compile(pattern)
        #: an added token after which the tokenizer would add a space: not one at the end, before a
        #: space or before another added token
        self._blank_after_added = re.compile(rf"(?:{pattern})(?!{pattern}|\s|\Z)")

    def encode(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the ids of every piece of text, without special tokens."""
        return list(self.encode_ragged(pieces))

    def encode_ragged(self, pieces: Sequence[str]) -> RaggedIds:
        """Return the result of ``encode`` in one array."""
        encode = self._by_words if self.splits_at_blanks else self._whole
        blocks = [
            encode(list(pieces[start : start + _PIECES_AT_ONCE]))
            for start in range(0, len(pieces), _PIECES_AT_ONCE)
        ]
        return RaggedIds.join(blocks)

    def takes_blank(self, text: str) -> bool:
        """Return whether a tokenizer with ``start_blank`` puts a space before a text: not before a
        space or an added token.
        """
        return bool(text) and text[0] != " " and not self._added_token.match(text)

    def _whole(self, pieces: list[str]) -> RaggedIds:
        if self.segment_blank:
            pieces = [self._blank_after_added.sub(r"\g<0> ", piece) for piece in pieces]
        try:
            encodings = self._tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        except TypeError:  # a text has half of a surrogate pair
            raise UsageError("a text is not valid UTF-8") from None
        except BaseException as error:
            # the library panics, e.g. at a pattern that never ends; a panic is not an Exception
            if type(error).__name__ != "PanicException":
                raise
            raise PromptcliError(
                f"the tokenizer of the model fails at a text ({join_lines(error, 100)}); leave the"
                " text out"
            ) from None
        return RaggedIds.of(encoding.ids for encoding in encodings)

    def _by_words(self, pieces: list[str]) -> RaggedIds:
        """Tokenise each distinct word once: text repeats its words, and a look-up is many times
        faster.

        Words end at spaces. They also end at ASCII punctuation, unless a combining mark joins it or
        it may belong to an added token such as ``[MASK]``.
        """
        lines = [piece.replace(_END, " ") for piece in pieces]
        text = f" {_END} ".join([*lines, ""])
        if is_normalized("NFC", text) and not any(map(text.__contains__, self._added)):
            for mark in filter(text.__contains__, string.punctuation):
                text = text.replace(mark, f" {mark} ")
        words = text.split(" ")
        if self._cached_characters > _MAX_CACHED_CHARACTERS:
            self._ids_of_word, self._cached_characters = {}, 0
        ids_of_word = self._ids_of_word  # another thread may replace the attribute
        new_words = list(set(words).difference(ids_of_word))
        if new_words:
            ids_of_word.update(zip(new_words, self._ids_of_words(new_words), strict=True))
            [ids_of_word[_END]] = RaggedIds.of([[_END_ID]]).to_bytes()
            self._cached_characters += sum(map(len, new_words))
        ids = np.frombuffer(b"".join(map(ids_of_word.__getitem__, words)), np.intc)
        return RaggedIds.split_at(_END_ID, ids)

    def _ids_of_words(self, words: list[str]) -> list[bytes]:
        """Return the ids of each word. Many words are one text, with a mark after each, because a
        call for a text costs more than its words.
        """
        joined = "".join(words)
        marks = (mark for mark in _MARKS if self.knows(mark) and mark not in joined)
        mark = next(marks, None)
        if mark is None:
            return self._whole(words).to_bytes()
        texts = []
        for start in range(0, len(words), _WORDS_PER_TEXT):
            texts.append(f" {mark} ".join([*words[start : start + _WORDS_PER_TEXT], ""]))
        ids = self._whole(texts).ids
        rows = RaggedIds.split_at(self.id(mark), ids)
        if len(rows) != len(words):  # a word has the mark as another character, such as ｜
            return self._whole(words).to_bytes()
        return rows.to_bytes()

    def pieces_per_word(self, texts: Sequence[str]) -> float:
        """Return how many tokens a word has on average; an unknown token counts as three."""
        word_count = 0
        token_count = 0
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            word_count += len(_WORD.findall(text))
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if any(map(str.isalpha, text[start:end])):
                    token_count += _TOKENS_PER_UNKNOWN if token == self.unk else 1
        return token_count / max(word_count, 1)

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
        """Return the text of every id, added tokens included."""
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        return {token: text for text, token in sorted(ids.items(), key=lambda item: item[1])}

    @property
    def specials(self) -> set[int]:
        """The ids of its special tokens."""
        tokens = (*self.start, *self.end, self.pad, self.unk, self.mask)
        return {token for token in tokens if token is not None}

    def knows(self, token: str) -> bool:
        """Return whether the vocabulary has a token; added tokens do not count."""
        return self._tokenizer.model.token_to_id(token) is not None

    def id(self, token: str) -> int | None:
        number: int | None = self._tokenizer.token_to_id(token)
        return number


@functools.lru_cache(maxsize=1)
def shipped_tokenizer(folder: Path) -> PieceTokenizer:
    """Return the tokenizer of a shipped BERT; cached, because it is read once to choose a model and
    again to use it.
    """
    return PieceTokenizer(read_wordpiece(folder), f"backbone {folder.name!r}")


def _make_tokenizer(definition: dict[str, Any], model: Any) -> Tokenizer:
    """Return the tokenizer of a definition with an existing model, because reading the vocabulary
    again is slow.
    """
    added = {token["content"]: token["id"] for token in definition["added_tokens"]}
    # with this model in its place, the added tokens keep their ids
    placeholder = {"type": "WordLevel", "vocab": added, "unk_token": ""}
    unset = dict.fromkeys(("post_processor", "truncation", "padding"))
    text = json.dumps({**definition, **unset, "model": placeholder})
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
            f"the tokenizer of {owner} has no {missing}; name it in tokenizer_config.json"
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


#: Normalizers that look at a character and the marks on it only.
_LOCAL_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer")
#: A pattern of one character: a class of characters that contains no other class.
_CLASS_OF_CHARACTERS = re.compile(r"\[\^?(?:[^\[\]\\&]|\\.)+\]", re.DOTALL)


def splits_at_blanks(definition: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer treats each word between spaces alone, like BERT's."""
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
    if step["type"] != "Replace":
        return step["type"] in _LOCAL_NORMALIZERS
    pattern = step.get("pattern") or {}
    is_class = _CLASS_OF_CHARACTERS.fullmatch(pattern.get("Regex", "")) is not None
    return is_class or len(pattern.get("String", "")) == 1


def remove_blanks(definition: dict[str, Any]) -> set[str]:
    """Rewrite a definition in place so that it adds no space; return the schemes by which it added
    spaces.

    XLM-R's pre-tokenizer drops all spaces and adds one before every word. Rewritten, it keeps them,
    so that a piece may begin with or without one; runs of spaces become one, and trailing spaces
    go, as before.
    """
    normalizers = [*steps_of(definition.get("normalizer"))]
    splitters = [*steps_of(definition.get("pre_tokenizer"))]
    if {"WhitespaceSplit", "Metaspace"} <= {step["type"] for step in splitters}:
        splitters = [step for step in splitters if step["type"] != "WhitespaceSplit"]
        for regex, content in ((r"\s+$", ""), (r"\s+", " ")):
            pattern = {"Regex": regex}
            normalizers.append({"type": "Replace", "pattern": pattern, "content": content})
    schemes = set[str]()
    if any(step["type"] == "Prepend" for step in normalizers):
        # Llama's older files put a space in front of every text
        schemes.add("always")
        normalizers = [step for step in normalizers if step["type"] != "Prepend"]
    for step in splitters:
        if step["type"] == "Metaspace":
            schemes.add(str(step.get("prepend_scheme", "always")))
            step["prepend_scheme"] = "never"
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            schemes.add("byte-level")
            step["add_prefix_space"] = False
    definition["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splitters}
    return schemes
