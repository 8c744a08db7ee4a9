"""BERT's own tokenizer from its files, without transformers; whatever is unusual in them is left to it.

What comes out is what transformers makes of the same files, to the letter of its definition.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from promptcli.storage.documents import parse_json

_UNK, _SEP, _PAD, _CLS, _MASK = "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"
_SPECIALS = {"unk_token": _UNK, "sep_token": _SEP, "pad_token": _PAD, "cls_token": _CLS, "mask_token": _MASK}
_FLAGS = ("lstrip", "rstrip", "normalized", "single_word")
_CLASS = "tokenizer_class"
_CLASSES = ("BertTokenizer", "BertTokenizerFast")
#: Settings of tokenizer_config.json -> their defaults.
_SETTINGS = {"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None}
#: Its other fields, on which no id depends.
_IDLE = ("model_max_length", "do_basic_tokenize", "never_split", "clean_up_tokenization_spaces")


@dataclass(frozen=True)
class WordPieceTokenizer:
    """What ``PieceTokenizer`` reads of a tokenizer."""

    backend_tokenizer: Tokenizer
    unk_token_id: int
    sep_token_id: int
    pad_token_id: int
    cls_token_id: int
    mask_token_id: int
    mask_token: str = _MASK
    bos_token_id: None = None
    eos_token_id: None = None


def read_wordpiece(folder: Path, config: Mapping[str, Any]) -> WordPieceTokenizer | None:
    """Return the tokenizer of a BERT; None where its files ask for anything but its usual settings.

    Args:
        folder: With ``vocab.txt`` or ``tokenizer.json``.
        config: Content of its ``config.json``.
    """
    if (folder / "added_tokens.json").exists():
        return None
    try:
        about, whole = _object(folder / "tokenizer_config.json"), _object(folder / "tokenizer.json")
        tokens = [{**token, "id": None} for token in whole.get("added_tokens", ())]
        tokens += [{"id": None, **token} for token in about.pop("added_tokens_decoder", {}).values()]
        named = _object(folder / "special_tokens_map.json")
        tokens += [{"id": None, "special": True, **token} for token in named.values() if isinstance(token, dict)]
        texts = {name: token["content"] if isinstance(token, dict) else token for name, token in named.items()}
        fields = [*about.items(), *texts.items(), (_CLASS, config.get(_CLASS))]
        if whole.get("truncation") or whole.get("padding"):
            return None
        if not all(_usual_token(token) for token in tokens) or not all(_usual(*field) for field in fields):
            return None
        vocabulary = whole["model"]["vocab"] if whole else _lines(folder / "vocab.txt")
        tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=_UNK))
        ids: dict[str, Any] = {f"{name}_id": vocabulary[text] for name, text in _SPECIALS.items()}
    except (ValueError, LookupError, TypeError, AttributeError, OSError, OverflowError):
        return None
    chosen: dict[str, Any] = {name: about.get(name, default) for name, default in _SETTINGS.items()}
    tokenizer.normalizer = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chosen["tokenize_chinese_chars"],
        strip_accents=chosen["strip_accents"],
        lowercase=chosen["do_lower_case"],
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder(prefix="##")
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in _SPECIALS.values()])
    tokenizer.post_processor = TemplateProcessing(
        single=f"{_CLS}:0 $A:0 {_SEP}:0",
        pair=f"{_CLS}:0 $A:0 {_SEP}:0 $B:1 {_SEP}:1",
        special_tokens=[(_CLS, ids["cls_token_id"]), (_SEP, ids["sep_token_id"])],
    )
    return WordPieceTokenizer(tokenizer, **ids)


def _object(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, empty where there is none; ValueError where it is no object."""
    content = parse_json(path.read_bytes()) if path.exists() else {}
    if not isinstance(content, dict):
        raise ValueError(path)
    return content


def _lines(path: Path) -> dict[str, int]:
    path.read_text(encoding="utf-8")  # else the library raises a nameless exception
    vocabulary: dict[str, int] = WordPiece.read_file(str(path))
    return vocabulary


def _usual_token(token: Mapping[str, Any]) -> bool:
    usual = {"id": None, "content": token["content"], "special": True, **dict.fromkeys(_FLAGS, False)}
    return token["content"] in _SPECIALS.values() and token == usual


def _usual(name: str, value: Any) -> bool:
    """Return whether a field of the tokenizer's files is one that this file knows what to do with."""
    if name == _CLASS:
        return value in (None, *_CLASSES)
    if name in _SPECIALS:
        return bool(value == _SPECIALS[name])
    return name in _IDLE or (name in _SETTINGS and (isinstance(value, bool) or value is _SETTINGS[name]))
