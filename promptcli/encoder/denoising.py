"""Template denoising: the bias h_hat of a template alone, per sentence length (PromptBERT, section
4.3).

The bias input is the template with the sentence removed; its tokens after [X] keep the positions
they would have after a sentence of k tokens. No dropout, no gradient here.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch
from promptcli.backbones.token_rows import TokenRows
from promptcli.encoder.batching import BatchSplitter, make_batch, to_device
from promptcli.encoder.pooling import Pooling
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.template import Template
from promptcli.encoder.transforms.transform import Stage
from promptcli.errors import UsageError
from promptcli.grammar import Spec
from promptcli.recipe import SLOT


def padded_bias_batch(template: Template, lengths: Sequence[int], backbone: Backbone) -> Batch:
    """Return the template with k times [PAD], attended to, in place of a sentence, one row for each
    k (CoT-BERT).
    """
    pad = backbone.tokenizer.pad
    rows = TokenRows.of([*template.left, *[pad] * length, *template.right] for length in lengths)
    slots = template.slots_of(rows.lengths)
    return make_batch(rows, slots, pad, backbone.device, backbone.max_tokens)


def bias_batch(
    template: Template, lengths: Sequence[int], backbone: Backbone, *, raw_positions: bool
) -> Batch:
    """Return the bias inputs for sentence lengths k, one row each, (K, t) with t the template's
    length.
    """
    if template.text == SLOT:
        raise UsageError(f"denoising needs a template with words around [X], not {template.text!r}")
    if template.has_blocks:
        raise UsageError(
            f"denoising takes the words around one {SLOT}, and prompt 'token-prepending' cuts the"
            " text into blocks; leave one of them out"
        )
    if template.copies > 1:
        raise UsageError(
            f"denoising takes the words around one {SLOT}, and {template.text!r} has"
            f" {template.copies}"
        )
    batch = make_batch(
        [[*template.left, *template.right]] * len(lengths),
        template.slots_of(np.full(len(lengths), template.length)),
        backbone.tokenizer.pad,
        backbone.device,
        template.length,
    )
    places = np.arange(template.length)
    shift = np.asarray(lengths, dtype=np.int64)[:, None] * (places >= len(template.left))
    return replace(
        batch, positions=to_device(places + shift, backbone.device), raw_positions=raw_positions
    )


class Biases:
    """h_hat of one encoder's template by sentence length, taken where its denoising is.

    Each is computed once.
    """

    def __init__(
        self,
        template: Template,
        backbone: Backbone,
        prompt: Prompt,
        pooling: Pooling,
        stages: Sequence[Stage],
        denoising: Spec,
    ) -> None:
        self._parts = (template, backbone, prompt, pooling, stages, denoising)
        self._by_length: dict[int, Tensor] = {}

    def empty_copy(self) -> "Biases":
        """Return the biases of the same encoder, none of them computed yet."""
        return Biases(*self._parts)

    def at(self, lengths: np.ndarray) -> Tensor:
        """Return h_hat (n, d) for sentences of these lengths (n,)."""
        template, backbone, *_ = self._parts
        distinct, places = np.unique(lengths, return_inverse=True)
        missing = np.array(
            [length for length in distinct.tolist() if length not in self._by_length], np.int64
        )
        if len(missing):
            splitter = BatchSplitter(np.full(len(missing), template.length), backbone.device)
            computed = splitter.run(
                lambda rows: self._compute(missing[rows]), np.arange(len(missing))
            )
            for rows, biases in computed:
                self._by_length.update(zip(missing[rows].tolist(), biases, strict=True))
        table = torch.stack([self._by_length[length] for length in distinct.tolist()])
        return table.index_select(0, to_device(places.reshape(-1), table.device))

    def _compute(self, lengths: np.ndarray) -> Tensor:
        template, backbone, prompt, pooling, stages, denoising = self._parts
        batch = bias_batch(
            template, lengths.tolist(), backbone, raw_positions=denoising.argument == "code"
        )
        biases = pooling.pool(batch, backbone.run(prompt.attach(batch), pooling.needs))
        for name, step in stages:
            biases = step(biases)
            if name == denoising.name:
                break
        return biases
