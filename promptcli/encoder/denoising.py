"""Template denoising: the inputs of the bias h_hat of a template alone, per sentence length
(PromptBERT, section 4.3).

The bias input is the template with the sentence removed; its tokens after [X] keep the positions
they would have after a sentence of k tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch
from promptcli.encoder.batching import make_batch, to_device
from promptcli.encoder.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import SLOT


def padded_bias_batch(template: Template, lengths: Sequence[int], backbone: Backbone) -> Batch:
    """Return the template with k times [PAD], attended to, in place of a sentence, one input for
    each k (CoT-BERT).
    """
    pad = backbone.tokenizer.pad
    ids = RaggedIds.of([*template.left, *[pad] * length, *template.right] for length in lengths)
    masks = template.mask_positions(ids.lengths)
    return make_batch(ids, masks, pad, backbone.device, backbone.max_tokens)


def bias_batch(
    template: Template, lengths: Sequence[int], backbone: Backbone, *, raw_positions: bool
) -> Batch:
    """Return the bias inputs for sentence lengths k, one each, (K, t) with t the template's
    length.
    """
    if template.text == SLOT or template.has_blocks or template.copies > 1:
        raise UsageError(
            f"denoising needs a template with words around one {SLOT}, not {template.text!r}"
            f"{' in blocks' if template.has_blocks else ''}"
        )
    batch = make_batch(
        [[*template.left, *template.right]] * len(lengths),
        template.mask_positions(np.full(len(lengths), template.length)),
        backbone.tokenizer.pad,
        backbone.device,
        template.length,
    )
    places = np.arange(template.length)
    shift = np.asarray(lengths, dtype=np.int64)[:, None] * (places >= len(template.left))
    return replace(
        batch, position_ids=to_device(places + shift, backbone.device), raw_positions=raw_positions
    )
