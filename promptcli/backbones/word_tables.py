"""Tables of word vectors from a folder or a file, as numpy arrays with their tokenizers.

A folder holds a ``tokenizer.json`` and a row for each of its tokens: a StaticEmbedding of
sentence-transformers, or a model of model2vec. With a file of word vectors (``WORD_FILES``) a
sentence is lower-cased and split at spaces, because the tasks' texts are already tokenised.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from promptcli.backbones.checking import check_growth, read_definition
from promptcli.backbones.model_folder import (
    CONFIG,
    PACKED_ROWS,
    PACKED_SCALES,
    SHIPPED_BACKBONES,
    TABLE,
    TABLE_MATRICES,
    TOKENIZER,
    WEIGHTS,
    WORD_FILES,
    ModelFolder,
    Provenance,
    is_word_file,
    locate,
    shipped_digest,
)
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.tokenizer import (
    PieceTokenizer,
    shipped_tokenizer,
    splits_at_blanks,
)
from promptcli.backbones.transformers_loading import opening
from promptcli.errors import look_up
from promptcli.storage.files import sha256
from promptcli.storage.tensors import load_arrays

_NO_WORD = 0  # id of a sentence without known words; its row is a vector of zeros


class WordTokenizer(PieceTokenizer):
    """Turns sentences into the ids of their known words, without special tokens."""

    pad = _NO_WORD

    def __init__(self, row_of: dict[str, int]) -> None:
        self.sha256 = hashlib.sha256(b"lower-cased, split at blanks").hexdigest()
        self._row_of = row_of

    def encode_ragged(self, pieces: Sequence[str]) -> RaggedIds:
        """Return the ids of every sentence's known words; ``[0]`` if a sentence has none."""
        rows = []
        for piece in pieces:
            words = piece.lower().split()
            ids = [self._row_of[word] for word in words if word in self._row_of]
            rows.append(ids or [_NO_WORD])
        return RaggedIds.of(rows)

    def pieces_per_word(self, texts: Sequence[str]) -> float:
        """Return 1, because a table of words has no pieces of words."""
        return 1.0


class TableTokenizer(PieceTokenizer):
    """Turns sentences into the tokens of a ``tokenizer.json``, without special tokens.

    A sentence without tokens gets the row of zeros. A model of model2vec has a ``max_length`` in
    tokens and leaves out unknown tokens.
    """

    def __init__(
        self, path: Path, definition: dict[str, Any], rows: int, *, max_length: int | None
    ) -> None:
        content = path.read_bytes()
        self.sha256 = hashlib.sha256(content).hexdigest()
        self.pad = rows
        self._tokenizer = Tokenizer.from_str(content.decode())
        self._tokenizer.no_padding()
        self._max_characters: int | None = None
        if max_length is not None:
            self._tokenizer.enable_truncation(max_length)
            # model2vec also cuts a text before it tokenises it
            lengths = [len(text) for text in self._tokenizer.get_vocab()]
            self._max_characters = max_length * int(np.median(lengths))
            # a Unigram model gives the id of its unknown token, another model its text
            model = definition["model"]
            self.unk = model.get("unk_id")
            if model.get("unk_token") is not None:
                self.unk = self.id(model["unk_token"])
        cuts = max_length is not None or definition.get("truncation") is not None
        self.splits_at_blanks = not cuts and splits_at_blanks(definition)
        self._added: set[str] = set()
        self._ids_of_word: dict[str, bytes] = {}
        self._cached_characters = 0

    def encode_ragged(self, pieces: Sequence[str]) -> RaggedIds:
        """Return the ids of every sentence's tokens, except tokens without a row in the table."""
        starts = [piece[: self._max_characters] for piece in pieces]
        return super().encode_ragged(starts).fill_empty(self.pad)

    def pieces_per_word(self, texts: Sequence[str]) -> float:
        """Return 1, because a table of words has no pieces of words."""
        return 1.0

    def _whole(self, pieces: list[str]) -> RaggedIds:
        rows = super()._whole(pieces)
        return rows if self.unk is None else rows.remove(self.unk)


_BLOCK_SIZE = 32  # numbers of a packed row that share a scale
_ZERO_CODE = 8  # the code of zero in 4 bits


class PackedRows:
    """Rows (v, d) in 4 bits, read as float32.

    A number is (q - 8) times the scale of its block of 32. The first 16 numbers of a block are the
    low four bits of its 16 bytes, the others the high four bits, as in GGUF's Q4_0.
    """

    def __init__(self, halves: np.ndarray, scales: np.ndarray) -> None:
        self._halves = halves
        self._scales = scales
        self.shape = len(scales), scales.shape[1] * _BLOCK_SIZE

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selected: "np.ndarray | slice") -> np.ndarray:
        """Return the selected rows (k, d), float32."""
        scales = self._scales[selected].astype(np.float32)
        blocks = self._halves[selected].reshape(*scales.shape, _BLOCK_SIZE // 2)
        numbers = np.empty((*scales.shape, _BLOCK_SIZE), np.float32)
        numbers[..., : _BLOCK_SIZE // 2] = blocks & 15
        numbers[..., _BLOCK_SIZE // 2 :] = blocks >> 4
        numbers -= _ZERO_CODE
        numbers *= scales[..., None]
        return numbers.reshape(len(scales), -1)


def _packed_rows(folder: ModelFolder, stored: Mapping[str, np.ndarray]) -> PackedRows:
    """Return the packed rows of a file's tensors, whose types and shapes must fit each other, and a
    row of zeros.
    """
    halves, scales = stored[PACKED_ROWS], stored[PACKED_SCALES]
    shapes_fit = (
        halves.ndim == scales.ndim == 2
        and 0 < scales.size
        and halves.shape == (len(scales), scales.shape[1] * _BLOCK_SIZE // 2)
    )
    types_fit = halves.dtype == np.uint8 and scales.dtype == np.float16
    if not types_fit or not shapes_fit:
        raise folder.error(
            f"holds {PACKED_ROWS} {halves.dtype} {halves.shape} and {PACKED_SCALES}"
            f" {scales.dtype} {scales.shape}; for rows of d numbers they are uint8 (v, d / 2) and"
            f" float16 (v, d / {_BLOCK_SIZE})"
        )
    zeros = np.full((1, halves.shape[1]), _ZERO_CODE * 17, np.uint8)  # a byte has the code twice
    no_scales = np.zeros((1, scales.shape[1]), np.float16)
    return PackedRows(np.concatenate([halves, zeros]), np.concatenate([scales, no_scales]))


def _plain_rows(stored: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the rows (v + 1, d) float32 of a file's tensors, each multiplied by its token's
    weight, and a row of zeros.
    """
    rows = next(stored[matrix] for matrix in TABLE_MATRICES if matrix in stored)
    if "mapping" in stored:
        rows = rows[stored["mapping"].astype(np.int64)]
    rows = rows.astype(np.float32)
    if "weights" in stored:
        rows = rows * stored["weights"].astype(np.float32)[:, None]
    return np.concatenate([rows, np.zeros((1, rows.shape[1]), np.float32)])


#: Name of a BERT's word embeddings in the model; in its file the name has a prefix.
TUNED_ROWS = "embeddings.word_embeddings.weight"
_SHIPPED_ROWS = f"bert.{TUNED_ROWS}"


@dataclass(frozen=True)
class WordTable:
    """The vectors of words, and the tokenizer that finds the words of a sentence."""

    tokenizer: PieceTokenizer
    rows: np.ndarray | PackedRows  #: (v, d)
    provenance: Provenance
    folder: Path  #: where its files are
    max_tokens: int = 1 << 30  #: longest input; a table of words has no limit
    of_language_model: bool = False  #: the rows are rounded to the requested ``dtype``


def open_table(name: str, tuned: np.ndarray | None) -> WordTable | None:
    """Return the table of a backbone's word vectors if it can be read without torch, else None.

    Word vectors can, and a shipped language model can, because its files need no checks. ``tuned``
    rows replace the language model's own.
    """
    if is_word_file(name):
        return read_words(name)
    if name in SHIPPED_BACKBONES:
        return _open_shipped(locate(name), tuned)
    if tuned is not None:
        return None
    folder = locate(name)
    if folder.is_shipped:
        return _read_shipped_table(folder)
    return read_table(folder) if folder.is_table else None


def _open_shipped(folder: ModelFolder, tuned: np.ndarray | None) -> WordTable | None:
    """Return the word embeddings of a shipped BERT; None if the tuned ones do not fit it."""
    config = folder.config
    tokenizer = shipped_tokenizer(folder.path)
    rows = tuned
    if rows is None:
        rows = load_arrays(folder.path / WEIGHTS, [_SHIPPED_ROWS])[_SHIPPED_ROWS]
    if rows.shape != (config["vocab_size"], config["hidden_size"]):
        return None
    max_length = config["max_position_embeddings"]
    digest = shipped_digest(folder.path)
    provenance = Provenance(folder.name, config["model_type"], None, digest, tokenizer.sha256)
    return WordTable(tokenizer, rows, provenance, folder.path, max_length, of_language_model=True)


def read_words(name: str) -> WordTable:
    """Read a file of word vectors: its format, a colon, and its path."""
    prefix = name.partition(":")[0]
    table: WordTable = look_up("word vectors", prefix, WORD_FILES)(name)
    return table


def read_table(folder: ModelFolder) -> WordTable:
    """Return the table of words in a folder."""
    max_length = None
    config = folder.optional(CONFIG)
    if config.get("model_type") == "model2vec":
        max_length = config.get("max_length") or 512
    with opening(folder):
        stored = load_arrays(folder.path / WEIGHTS)
        rows: np.ndarray | PackedRows
        if PACKED_ROWS in stored:
            rows = _packed_rows(folder, stored)
        else:
            rows = _plain_rows(stored)
        count = len(rows) - 1
        path = folder.path / TOKENIZER
        definition = read_definition(path)
        if not folder.is_shipped:
            check_growth(folder.path.name, definition)
        tokenizer = TableTokenizer(path, definition, count, max_length=max_length)
        if not folder.is_shipped and tokenizer.highest >= count:
            raise folder.error(
                f"has {count} rows, and its vocabulary goes to id {tokenizer.highest}: they"
                " belong to different models"
            )
    digest = sha256(folder.path / WEIGHTS)
    provenance = Provenance(folder.name, TABLE, folder.revision, digest, tokenizer.sha256)
    return WordTable(tokenizer, rows, provenance, folder.path)


#: The table of a shipped encoder, which is read once to choose a model and again to use it.
_read_shipped_table = functools.lru_cache(maxsize=1)(read_table)
