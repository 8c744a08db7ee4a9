"""``soft-template:TEXT``: a template whose words are learned vectors (OptiPrompt, PromptBERT 4.2; SCPCSE, DCPCSE).

``soft-template-lookup:TEXT`` puts them where OptiPrompt's published code does.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, SoftTokens
from promptcli.encoder.prompts.template import Template
from promptcli.errors import UsageError

#: Name of its one tensor.
TENSOR = "soft-template.vectors"


class SoftTemplate:
    """One vector (m, d) for every word of the template; specials and the mask keep their own.

    Slots are found by position, the intention of the papers. OptiPrompt's published code looks each word's id up in
    the whole input and takes the last occurrence: a sentence's own words may be hit, and of two equal words (the
    quotes) the first vector is dead. The printed figures come from it.

    Attributes:
        numbers: The vectors, in the template's order.
        left: Positions of the words before the sentence.
        right: Positions of those behind it, counted from the input's last token, which is -1.
        words: (m,) ids to look up, or None where slots are found by position.
    """

    def __init__(self, numbers: Tensor, left: list[int], right: list[int], words: Tensor | None = None) -> None:
        self.numbers = numbers
        self.left, self.right = left, right
        self.words = words

    @classmethod
    def of(
        cls, template: Template, backbone: Backbone, tensors: Mapping[str, Tensor], *, lookup: bool = False
    ) -> "SoftTemplate":
        """Return the learned vectors of a template.

        Raises:
            UsageError: They were not learned, or do not fit.
        """
        left, right = soft_places(template, backbone)
        if TENSOR not in tensors:
            raise UsageError(
                f"prompt 'soft-template:{template.text}' is learned and no numbers for it are there; train it first:"
                " `promptcli optiprompt`"
            )
        numbers, shape = tensors[TENSOR], (len(left) + len(right), backbone.token_rows.size(1))
        if tuple(numbers.shape) != shape:
            raise UsageError(f"the soft template has shape {tuple(numbers.shape)}, this template takes {shape}")
        words = torch.tensor(soft_words(template, backbone), device=backbone.device) if lookup else None
        return cls(numbers.to(backbone.device), left, right, words)

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the vectors and where they stand."""
        if self.words is not None:
            return replace(batch, soft=self._looked_up(batch))
        before = torch.tensor(self.left, dtype=torch.int64, device=batch.ids.device)
        behind = torch.tensor(self.right, dtype=torch.int64, device=batch.ids.device)
        slots = torch.cat(
            [before.expand(batch.ids.size(0), -1), batch.lengths.unsqueeze(1) + behind.unsqueeze(0)], dim=1
        )
        return replace(batch, soft=SoftTokens(self.numbers, slots))

    def _looked_up(self, batch: Batch) -> SoftTokens:
        """Return the vectors at the last occurrence of each word; of several in one place the last one stands."""
        assert self.words is not None
        steps = torch.arange(batch.ids.size(1), device=batch.ids.device)
        hits = (batch.ids.unsqueeze(1) == self.words.unsqueeze(1)) & batch.real().unsqueeze(1)  # (n, m, t)
        slots = torch.where(hits, steps, -1).amax(-1)
        together = slots.unsqueeze(2) == slots.unsqueeze(1)  # (n, m, m)
        winner = torch.where(together, torch.arange(len(self.words), device=slots.device), -1).amax(-1)
        return SoftTokens(self.numbers[winner], slots)

    def tensors(self) -> dict[str, Tensor]:
        """Return the one tensor."""
        return {TENSOR: self.numbers.detach()}


def soft_places(template: Template, backbone: Backbone) -> tuple[list[int], list[int]]:
    """Return where a template's words stand: before the sentence, and behind it counted from the end.

    Raises:
        UsageError: It has no words.
    """
    specials = {backbone.tokenizer.cls, backbone.tokenizer.sep, backbone.tokenizer.mask}
    left = [place for place, token in enumerate(template.left) if token not in specials]
    right = [place - len(template.right) for place, token in enumerate(template.right) if token not in specials]
    if not left and not right:
        raise UsageError(f"template {template.text!r} has no words to learn vectors for")
    return left, right


def soft_words(template: Template, backbone: Backbone) -> list[int]:
    """Return the ids of a template's words, in its order, (m,)."""
    left, right = soft_places(template, backbone)
    return [template.left[place] for place in left] + [template.right[place] for place in right]


def nearest_words(vectors: Tensor, backbone: Backbone, count: int) -> list[list[str]]:
    """Return, for each learned vector (m, d), the tokens whose word embeddings have the highest cosine to it."""
    rows = functional.normalize(backbone.token_rows.detach().float(), dim=1)
    cosines = functional.normalize(vectors.float(), dim=1) @ rows.T
    return [[backbone.tokenizer.text(token) for token in best] for best in cosines.topk(count).indices.tolist()]


def start_vectors(template: Template, backbone: Backbone) -> Tensor:
    """Return where the vectors start learning: the word embeddings of the template's own words, (m, d)."""
    ids = torch.tensor(soft_words(template, backbone), device=backbone.device)
    return backbone.token_rows.detach()[ids].float().clone()
