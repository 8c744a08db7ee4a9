"""``soft-template:TEXT``: a template whose words are learned vectors (OptiPrompt, PromptBERT 4.2;
SCPCSE, DCPCSE).

``soft-template-lookup:TEXT`` puts them at the positions of OptiPrompt's published code.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, SoftTokens
from promptcli.encoder.components import BuildContext, Prompt
from promptcli.encoder.template import Template
from promptcli.errors import UsageError

TENSOR = "soft-template.vectors"  #: name of its one tensor


class SoftTemplate(Prompt):
    """A learned vector for each of the template's m words, (m, d), which replaces the word's own
    vector at the word's position.

    Special tokens and masks keep their own vectors.
    """

    def __init__(self, context: BuildContext) -> None:
        super().__init__(context)
        self.shared = ()
        self.spec = f"{context.spec.name}:{self.template.text}"
        self._backbone = context.backbone
        device = context.backbone.device
        words = word_ids(self.template, context.backbone)
        #: Positions of the words in an input: counted from its start, after the sentence from its
        #: end (-1 the last).
        self.positions = list(words)
        shape = [len(words), context.backbone.word_embeddings.size(1)]
        owner = f"prompt 'soft-template:{self.template.text}' (`train optiprompt`)"
        learned = context.tensors_of("", {TENSOR: shape}, owner, "train it first")
        self.vectors = learned[TENSOR].to(device)
        self._offsets = torch.tensor(self.positions, device=device)
        self._words = torch.tensor(list(words.values()), device=device)

    @classmethod
    def initial_tensors(
        cls, context: BuildContext, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the word embeddings of the template's own words, (m, d)."""
        backbone = context.backbone
        ids = list(word_ids(cls.read_template(context), backbone).values())
        return {TENSOR: backbone.word_embeddings.detach()[ids].float().clone()}

    def attach(self, batch: Batch) -> Batch:
        from_the_end = batch.lengths.unsqueeze(1) + self._offsets
        positions = torch.where(self._offsets < 0, from_the_end, self._offsets)  # (n, m)
        return replace(batch, soft=SoftTokens(self.vectors, positions))

    def tensors(self) -> dict[str, Tensor]:
        return {TENSOR: self.vectors.detach()}

    def nearest_words(self, count: int) -> list[tuple[str, list[str]]]:
        embeddings = functional.normalize(self._backbone.word_embeddings.detach().float(), dim=1)
        vectors = functional.normalize(self.vectors.detach().float(), dim=1)
        nearest = (vectors @ embeddings.T).topk(count).indices.tolist()
        text = self._backbone.tokenizer.text
        return [
            (text(word), list(map(text, tokens)))
            for word, tokens in zip(self._words.tolist(), nearest, strict=True)
        ]


class LookedUpSoftTemplate(SoftTemplate):
    """The same vectors at the positions of OptiPrompt's published code, by which the published
    figures were measured.

    That code looks up each word's id in the complete input and takes the last occurrence. So a
    vector may replace a word of the sentence, and of two equal words (the quotation marks) the
    first vector is unused. The papers mean the words' own positions.
    """

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the vectors at the last occurrence of each word.

        If several words share a position, the last vector is taken.
        """
        is_word = batch.ids.unsqueeze(1) == self._words.unsqueeze(1)  # (n, m, t)
        positions = _last_true(is_word & batch.real().unsqueeze(1))
        # the last of the words that share a position
        last_word = _last_true(positions.unsqueeze(2) == positions.unsqueeze(1))
        words = torch.arange(len(self._words), device=positions.device)
        # a position is written once for each of its words; only the last word gets the gradient
        is_last = (last_word == words).unsqueeze(2)
        vectors = torch.where(is_last, self.vectors, self.vectors.detach()[last_word])
        return replace(batch, soft=SoftTokens(vectors, positions))


def _last_true(values: Tensor) -> Tensor:
    """Return the last index of True in the last dimension, or -1."""
    indices = torch.arange(values.size(-1), device=values.device)
    return torch.where(values, indices, -1).amax(-1)


def word_ids(template: Template, backbone: Backbone) -> dict[int, int]:
    """Return the id of each of a template's m words by its position, in the template's order.

    A position is counted from the start of the input, after [X] from its end (-1 the last).
    """
    specials = {*backbone.tokenizer.start, *backbone.tokenizer.end, backbone.tokenizer.mask}
    around = [*enumerate(template.left), *enumerate(template.right, -len(template.right))]
    words = {place: token for place, token in around if token not in specials}
    if not words:
        raise UsageError(f"template {template.text!r} has no words to learn vectors for")
    return words
