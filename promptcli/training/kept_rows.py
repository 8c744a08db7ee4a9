"""The token rows of texts that a run reads again and again."""

from collections.abc import Sequence

from promptcli.backbones.token_rows import TokenRows
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.template import Inputs

_BYTES_A_TEXT = 100  # beside its ids: an entry of the table, and the object that holds them


class KeptRows:
    """The spliced rows of the texts that an encoder has read, packed, by text.

    Further texts are not kept once ``most_bytes`` are held, and are tokenised whenever they come.
    """

    def __init__(self, encoder: TorchEncoder, most_bytes: int) -> None:
        self._encoder = encoder
        self._room = most_bytes
        self._packed: dict[str, bytes] = {}

    def read(self, texts: Sequence[str]) -> Inputs:
        """Return the inputs of texts, and keep their rows."""
        inputs = self._encoder.inputs(texts)
        if self._room > 0:
            known = len(self._packed)
            packed = inputs.rows.packed()
            self._packed.update(zip(texts, packed, strict=True))
            self._room -= sum(map(len, packed)) + _BYTES_A_TEXT * (len(self._packed) - known)
        return inputs

    def rows(self, texts: Sequence[str]) -> TokenRows:
        """Return the rows of texts, of which only those that are not kept are tokenised."""
        new = list(set(texts).difference(self._packed))
        if not new:
            return TokenRows.unpacked(list(map(self._packed.__getitem__, texts)))
        packed = dict(zip(new, self.read(new).rows.packed(), strict=True))
        rows = [packed[text] if text in packed else self._packed[text] for text in texts]
        return TokenRows.unpacked(rows)
