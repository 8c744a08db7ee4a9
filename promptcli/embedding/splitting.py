"""Texts longer than a model's window, split at the ends of paragraphs and sentences."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from semantic_text_splitter import TextSplitter

from promptcli.data.layouts import ID, TEXT
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.rows import RowBatch
    from promptcli.encoder.sentence_encoder import Encoder

#: The end of the id of a part: ``7#2`` is the second part of row 7.
PART_NUMBER = r"#[1-9]\d*$"
#: Bytes that a template may add to a text, such as a period.
_ADDED_BYTES = 8
#: A window in which every text fits.
_ANY_TOKENS = 2**40


def check_whole(ids: Iterable[int | str]) -> None:
    """Refuse row ids that look like the ids of parts."""
    for name in ids:
        if isinstance(name, str) and re.search(PART_NUMBER, name):
            raise UsageError(
                f"the id {name!r} looks like a part of a row; give another, or number the rows:"
                " id_field -"
            )


class Splitter:
    """Splits texts into parts that fit an encoder's window together with the template.

    A text that fits is a single part.
    """

    def __init__(self, encoder: "Encoder") -> None:
        self._encoders = encoder.prompt_encoders
        self.window = min(encoder.max_length for encoder in self._encoders)  #: in tokens

    def parts(self, text: str) -> list[str]:
        """Return the parts of a text, in order."""
        return [part for _, part in self.parts_at(text)]

    def parts_at(self, text: str, begin: str = "") -> list[tuple[int, str]]:
        """Return the parts of a text with their offsets, in order.

        Each part fits the window if the text ``begin`` is put in front.
        """
        joined = f"{begin}{text}"
        size = len(joined.encode("utf-8", "replace")) + _ADDED_BYTES
        longest = max(encoder.template.longest_input(size) for encoder in self._encoders)
        # a token has at least one byte
        if longest <= self.window or self._tokens(joined) <= self.window:
            return [(0, text)]
        splitter = TextSplitter.from_callback(
            lambda part: self._tokens(f"{begin}{part}"), self.window
        )
        return splitter.chunk_indices(text)

    def batches(self, batches: "Iterable[RowBatch]") -> "Iterator[RowBatch]":
        """Yield the parts of batches of sentences; the second part of row 7 has the id ``7#2``."""
        for batch in batches:
            check_whole(batch[ID])
            ids, texts = list[str](), list[str]()
            for name, text in zip(map(str, batch[ID]), batch[TEXT], strict=True):
                parts = self.parts(text)
                numbered = [f"{name}#{number}" for number in range(1, len(parts) + 1)]
                ids += numbered if len(parts) > 1 else [name]
                texts += parts
            yield {ID: ids, TEXT: texts}

    def _tokens(self, text: str) -> int:
        counts = (
            encoder.template.inputs(
                encoder.prepare([text]), encoder.piece_tokenizer.encode_ragged, _ANY_TOKENS
            ).ids[0]
            for encoder in self._encoders
        )
        return max(map(len, counts))
