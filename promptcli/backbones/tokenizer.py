"""A backbone's tokenizer, made fit for splicing: pieces of text to ids, without specials, each piece on its own.

The blank before a piece decides byte-level and SentencePiece ids, so it is never added by the tokenizer here: whoever
cuts the pieces says it. Knows nothing of templates.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from promptcli.errors import UsageError

_SLICE = 1024  # pieces at a time: the tokenizer's own objects are many times the size of the ids


class PieceTokenizer:
    """Text pieces to token ids.

    Args:
        tokenizer: Of transformers.
        owner: Kind and name, for messages.
        causal: What it puts in front of an input stays ([BOS]), what it adds after it does not ([EOS]): the last token
            is the template's. Else an input stands between [CLS] and [SEP].
    """

    def __init__(self, tokenizer: Any, owner: str, *, causal: bool = False) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UsageError(f"the tokenizer of {owner} is not a fast one; a tokenizer.json or vocab.txt is needed")
        self.causal = causal
        #: Before and after every input: [CLS] and [SEP], or [BOS] and nothing.
        self.start, self.end = _added_in_front(tokenizer) if causal else _cls_and_sep(tokenizer, owner)
        spare = (tokenizer.pad_token_id, tokenizer.sep_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id, 0)
        self.pad: int = next(token for token in spare if token is not None)
        self.unk: int | None = tokenizer.unk_token_id  #: None where there is none (byte-level ones need none)
        self.mask: int | None = None if causal else tokenizer.mask_token_id  #: None where there is none
        self.mask_text: str | None = None if causal else tokenizer.mask_token
        definition = json.loads(backend.to_str())
        #: The mask token swallows the blank before it (byte-level and SentencePiece families).
        self.mask_takes_blank = any(
            token["lstrip"] for token in definition["added_tokens"] if token["content"] == self.mask_text
        )
        items: Any = definition["model"]["vocab"]  # id by text; SentencePiece's: pieces in the order of their ids
        ids = {**items} if isinstance(items, dict) else {piece: number for number, (piece, _) in enumerate(items)}
        ids |= {token["content"]: token["id"] for token in definition["added_tokens"]}
        self.size = len(ids)  #: tokens of the vocabulary, added ones too
        self.highest: int = max(ids.values(), default=-1)  #: id
        self.sha256 = hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
        schemes = _adding_no_blank(definition.get("pre_tokenizer")) | _prepending_no_blank(definition)
        #: The tokenizer itself would put a blank before the first word of an input, and
        #: before the first word after a special token.
        self.start_blank = bool(schemes & {"always", "first", "byte-level"})
        self.segment_blank = bool(schemes & {"always", "byte-level"})
        #: Every punctuation mark is a token of its own, so that pieces never join.
        self.splits_punctuation = "BertPreTokenizer" in json.dumps(definition.get("pre_tokenizer"))
        #: Byte-level BPE, where a word's leading blank is part of its token (``Ġ``).
        self.byte_level = "ByteLevel" in json.dumps(definition.get("pre_tokenizer"))
        self._tokenizer: Tokenizer = Tokenizer.from_str(
            json.dumps({**definition, "post_processor": None, "truncation": None, "padding": None})
        )

    def encode(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the ids of every piece of text, without special tokens, in bulk."""
        ids: list[list[int]] = []
        for start in range(0, len(pieces), _SLICE):
            part = list(pieces[start : start + _SLICE])
            ids += [encoding.ids for encoding in self._tokenizer.encode_batch_fast(part, add_special_tokens=False)]
        return ids

    def text(self, token: int) -> str:
        """Return the vocabulary item of an id, e.g. ``##ing`` or ``Ġthe``."""
        return str(self._tokenizer.id_to_token(token))

    def items(self) -> dict[int, str]:
        """Return the whole vocabulary, added tokens too, by id."""
        found = self._tokenizer.get_vocab(with_added_tokens=True)
        return {token: text for text, token in sorted(found.items(), key=lambda item: item[1])}

    @property
    def specials(self) -> set[int]:
        """The ids of the special tokens, those that it has."""
        return {token for token in (*self.start, *self.end, self.pad, self.unk, self.mask) if token is not None}

    def knows(self, token: str) -> bool:
        """Return whether the vocabulary itself has a token, not only the list of added ones."""
        return self._tokenizer.model.token_to_id(token) is not None

    def id(self, token: str) -> int | None:
        """Return the id of a vocabulary item, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


def _cls_and_sep(tokenizer: Any, owner: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for name in ("cls_token", "sep_token"):
        if getattr(tokenizer, f"{name}_id") is None:
            raise UsageError(f"the tokenizer of {owner} has no {name}; give one in tokenizer_config.json")
    return (tokenizer.cls_token_id,), (tokenizer.sep_token_id,)


def _added_in_front(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what a tokenizer puts before a text, and nothing for after it."""
    plain, whole = (tokenizer("a", add_special_tokens=added)["input_ids"] for added in (False, True))
    places = range(len(whole) - len(plain) + 1)
    return tuple(whole[: next(place for place in places if whole[place : place + len(plain)] == plain)]), ()


def _prepending_no_blank(definition: dict[str, Any]) -> set[str]:
    """Take the normaliser out that sets a blank before every text (Llama's older files); return its scheme."""
    normalizer = definition.get("normalizer") or {}
    members = normalizer.get("normalizers", [])
    kept = [member for member in members if member["type"] != "Prepend"]
    if len(kept) == len(members):
        return set()
    definition["normalizer"] = {**normalizer, "normalizers": kept}
    return {"always"}


def _adding_no_blank(pre_tokenizer: Any) -> set[str]:
    """Rewrite a pre-tokenizer's definition in place so that it adds no blank; return the schemes it had."""
    if not isinstance(pre_tokenizer, dict):
        return set()
    schemes: set[str] = set()
    if pre_tokenizer.get("type") == "Metaspace":
        schemes.add(str(pre_tokenizer.get("prepend_scheme", "always")))
        pre_tokenizer["prepend_scheme"] = "never"
    if pre_tokenizer.get("type") == "ByteLevel" and pre_tokenizer.get("add_prefix_space"):
        schemes.add("byte-level")
        pre_tokenizer["add_prefix_space"] = False
    for member in pre_tokenizer.get("pretokenizers", []):
        schemes |= _adding_no_blank(member)
    return schemes
