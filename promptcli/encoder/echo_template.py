"""EchoTemplate: a template with two [X], both filled with the sentence (Echo embeddings).

In a causal model a token of the second copy has seen the whole sentence. Poolings that read the
sentence alone read that copy.
"""

from promptcli.backbones.token_rows import TokenRows
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import MASK, SLOT


def make_template(text: str, tokenizer: PieceTokenizer) -> Template:
    """Return the template of a text with one [X] or two."""
    if text.count(SLOT) == 2:
        return EchoTemplate(text, tokenizer)
    return Template(text, tokenizer)


class EchoTemplate(Template):
    """A template with two [X]; a long sentence is cut to the same length in both places."""

    copies = 2

    def __init__(self, text: str, tokenizer: PieceTokenizer) -> None:
        before, between, after = text.split(SLOT)
        if MASK in between:
            raise UsageError(
                f"template {text!r} has a {MASK} between its two {SLOT}; put it before or after"
                " them"
            )
        super().__init__(f"{before}{SLOT}{after}", tokenizer)
        self.text = text
        first = Template(f"{before}{SLOT}{between}", tokenizer).touching
        second = Template(f"{between}{SLOT}{after}", tokenizer).touching
        pieces = [f"{start}{_PROBE}{end}" for start, end in (first, second, self.touching)]
        own, *others = tokenizer.encode(pieces)
        if not between or any(ids != own for ids in others):
            raise UsageError(
                f"template {text!r} has different characters right around its two {SLOT}; give both"
                " the same"
            )
        words = between[len(first[1]) :].rstrip()
        start = second[0].lstrip()
        #: Ids between the two pieces.
        self.between = self._side(words.removesuffix(start), starts_input=False)

    def input_length(self, piece: int) -> int:
        return len(self.prefix) + piece + len(self.between) + piece + len(self.suffix)

    def pieces(self, length: int) -> list[slice]:
        piece = self.room(length)
        end = length - len(self.suffix)
        return [slice(len(self.prefix), len(self.prefix) + piece), slice(end - piece, end)]

    def room(self, max_length: int) -> int:
        return (max_length - self.input_length(0)) // self.copies

    def _filled(self, pieces: TokenRows) -> TokenRows:
        first = pieces.between([], self.between)
        return super()._filled(TokenRows.side_by_side([first, pieces]))


_PROBE = "cat"
