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
    """Text pieces to token ids."""

    def __init__(self, tokenizer: Any, owner: str) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UsageError(f"the tokenizer of {owner} is not a fast one; a tokenizer.json or vocab.txt is needed")
        for name in ("cls_token_id", "sep_token_id"):
            if getattr(tokenizer, name) is None:
                raise UsageError(
                    f"the tokenizer of {owner} has no {name.removesuffix('_id')}; give one in tokenizer_config.json"
                )
        self.cls: int = tokenizer.cls_token_id
        self.sep: int = tokenizer.sep_token_id
        self.start: tuple[int, ...] = (self.cls,)  #: before every input; word vectors have none
        self.end: tuple[int, ...] = (self.sep,)
        self.pad: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.sep_token_id
        self.unk: int | None = tokenizer.unk_token_id  #: None where there is none (byte-level ones need none)
        self.mask: int | None = tokenizer.mask_token_id  #: None where there is none
        self.mask_text: str | None = tokenizer.mask_token
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
        schemes = _adding_no_blank(definition.get("pre_tokenizer"))
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
        return {token for token in (self.cls, self.sep, self.pad, self.unk, self.mask) if token is not None}

    def knows(self, token: str) -> bool:
        """Return whether the vocabulary itself has a token, not only the list of added ones."""
        return self._tokenizer.model.token_to_id(token) is not None

    def id(self, token: str) -> int | None:
        """Return the id of a vocabulary item, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


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
