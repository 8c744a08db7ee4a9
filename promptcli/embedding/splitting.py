"""Texts longer than a model's window, split at the ends of paragraphs and sentences."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from semantic_text_splitter import TextSplitter

from promptcli.data.layouts import ID, TEXT
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.data.rows import RowBatch
    from promptcli.encoder.sentence_encoder import Encoder

#: The end of the id of a part: ``7#2`` is the second part of row 7.
PART = r"#[1-9]\d*$"
#: Bytes that a template may add to a text, such as a period.
_ADDED = 8
_ANY = 2**40  # tokens: nothing is cut


def check_whole(ids: Iterable[int | str]) -> None:
    """Refuse row ids that look like ids of parts."""
    for name in ids:
        if isinstance(name, str) and re.search(PART, name):
            raise UsageError(
                f"the id {name!r} looks like a part of a row; give another, or number the rows:"
                " id_field -"
            )


class Splitter:
    """Splits texts so that each part fits an encoder's window, template included.

    A text that fits is one part.
    """

    def __init__(self, encoder: "Encoder") -> None:
        self._encoders = encoder.parts
        self.window = min(each.max_length for each in self._encoders)  #: in tokens

    def parts(self, text: str) -> list[str]:
        """Return the parts of a text, in order."""
        return [part for _, part in self.parts_at(text)]

    def parts_at(self, text: str, begin: str = "") -> list[tuple[int, str]]:
        """Return the parts of a text, in order, and where each starts.

        Each fits the window after the text ``begin``.
        """
        whole = f"{begin}{text}"
        size = len(whole.encode("utf-8", "replace")) + _ADDED
        longest = max(each.template.most_tokens(size) for each in self._encoders)
        # a token has a byte or more
        if longest <= self.window or self._tokens(whole) <= self.window:
            return [(0, text)]
        splitter = TextSplitter.from_callback(
            lambda part: self._tokens(f"{begin}{part}"), self.window
        )
        return splitter.chunk_indices(text)

    def rows(
        self, ids: Sequence[int | str], texts: Sequence[str]
    ) -> tuple[list[str], list[str], list[int]]:
        """Return the ids and texts of all parts, and the row number of each."""
        check_whole(ids)
        names, parts, rows = list[str](), list[str](), list[int]()
        for row, (name, text) in enumerate(zip(map(str, ids), texts, strict=True)):
            split = self.parts(text)
            numbered = [f"{name}#{part}" for part in range(1, len(split) + 1)]
            names += numbered if len(split) > 1 else [name]
            parts += split
            rows += [row] * len(split)
        return names, parts, rows

    def batches(self, batches: "Iterable[RowBatch]") -> "Iterator[RowBatch]":
        """Yield the parts of batches of sentences, whose ids are texts."""
        for batch in batches:
            ids, texts, _ = self.rows(batch[ID], batch[TEXT])
            yield {ID: ids, TEXT: texts}

    def _tokens(self, text: str) -> int:
        counts = (
            each.template.inputs(
                each.prepare([text]), each.piece_tokenizer.encode_ragged, _ANY
            ).ids[0]
            for each in self._encoders
        )
        return max(map(len, counts))
