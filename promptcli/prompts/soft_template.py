"""``soft-template:TEXT``: a template whose words are learned vectors (OptiPrompt, PromptBERT 4.2; SCPCSE, DCPCSE)."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch, SoftTokens
from promptcli.errors import UsageError
from promptcli.prompts.template import Template

#: Name of its one tensor.
TENSOR = "soft-template.vectors"


class SoftTemplate:
    """One vector (m, d) for every word of the template; specials and the mask keep their own.

    Slots are found by position, the intention of the papers; OptiPrompt's published code looks ids up in the whole
    input, so that a sentence's own words may be hit.

    Attributes:
        numbers: The vectors, in the template's order.
        left: Positions of the words before the sentence.
        right: Positions of those behind it, counted from the input's last token, which is -1.
    """

    def __init__(self, numbers: Tensor, left: list[int], right: list[int]) -> None:
        self.numbers = numbers
        self.left, self.right = left, right

    @classmethod
    def of(cls, template: Template, backbone: Backbone, tensors: Mapping[str, Tensor]) -> "SoftTemplate":
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
        return cls(numbers.to(backbone.device), left, right)

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the vectors and where they stand."""
        before = torch.tensor(self.left, dtype=torch.int64, device=batch.ids.device)
        behind = torch.tensor(self.right, dtype=torch.int64, device=batch.ids.device)
        slots = torch.cat(
            [before.expand(batch.ids.size(0), -1), batch.lengths.unsqueeze(1) + behind.unsqueeze(0)], dim=1
        )
        return replace(batch, soft=SoftTokens(self.numbers, slots))

    def tensors(self) -> dict[str, Tensor]:
        """Return the one tensor."""
        return {TENSOR: self.numbers.detach()}


def soft_places(template: Template, backbone: Backbone) -> tuple[list[int], list[int]]:
    """Return where a template's words stand: before the sentence, and behind it counted from the end.

    Raises:
        UsageError: It has no words.
    """
    specials = {backbone.tokens.cls, backbone.tokens.sep, backbone.tokens.mask}
    left = [place for place, token in enumerate(template.left) if token not in specials]
    right = [place - len(template.right) for place, token in enumerate(template.right) if token not in specials]
    if not left and not right:
        raise UsageError(f"template {template.text!r} has no words to learn vectors for")
    return left, right


def start_vectors(template: Template, backbone: Backbone) -> Tensor:
    """Return where the vectors start learning: the word embeddings of the template's own words, (m, d)."""
    left, right = soft_places(template, backbone)
    ids = [template.left[place] for place in left] + [template.right[place] for place in right]
    return backbone.token_rows.detach()[torch.tensor(ids, device=backbone.device)].float().clone()
