"""``reversed:PROMPT``: the words of the sentence in reverse order (ReverseEOL)."""

from collections.abc import Sequence

from promptcli.backbones.states import Batch
from promptcli.encoder.context import BuildContext
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.template import Template
from promptcli.encoder.text_rules import END_MARKS
from promptcli.notes import note


class ReversedWords(Prompt):
    """A prompt of words, or ``token-prepending``, around the reversed sentence.

    It is half of a mean, ``mean:PROMPT || reversed:PROMPT``. In a causal model a token has seen
    those before it; in the reversed sentence it has seen the others. Nothing is learned.
    """

    def __init__(self, context: BuildContext) -> None:
        [inner] = context.parts
        self.template: Template = inner.template
        self.shared = inner.shared
        self.spec = f"reversed:{inner.spec}"
        self._inner: Prompt = inner
        if not context.backbone.causal:
            note("prompt 'reversed' is for causal models; no paper has tried it on others")

    def sentences(self, sentences: Sequence[str]) -> list[str]:
        return [reversed_words(sentence) for sentence in sentences]

    def attach(self, batch: Batch) -> Batch:
        return self._inner.attach(batch)


def reversed_words(sentence: str) -> str:
    """Return the words in reverse order; a mark at the end stays there."""
    text = sentence.strip()
    end = ""
    if text.endswith(END_MARKS):
        text, end = text[:-1], text[-1]
    return " ".join(reversed(text.split())) + end
