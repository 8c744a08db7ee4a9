"""``mutual-information``: the Jensen-Shannon estimate of the mutual information of a sentence's
vector and its tokens' local features (IS-BERT).
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.devices import to_device
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.data.layouts import SENTENCES
from promptcli.encoder.pooling.convolution import Convolution
from promptcli.training.methods.method import TrainingSettings
from promptcli.training.objective import Columns, Objective, TokenizedSides, Views
from promptcli.training.trainable_encoder import TrainableEncoder


class MutualInformation(Objective[TrainingSettings]):
    """A sentence's own tokens against the tokens of the other sentences of the batch."""

    layouts = (SENTENCES,)

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return the local features (n, t, c) and the lengths (n,).

        t is the encoder's longest input; the features after each input are 0.
        """
        view = encoder.template_encoders[0]
        weights = view.pooling.weights
        assert isinstance(weights, Convolution), (
            f"pooling {view.pooling.spec!r} has no local features"
        )

        def read(batch: Batch, hidden: HiddenStates) -> Tensor:
            local = weights.local(view.pooling.read(hidden), batch).float()
            return functional.pad(local, (0, 0, 0, view.max_length - local.size(1)))

        return encoder.hidden(sides, read=read), torch.from_numpy(sides[0].ids.lengths)

    def loss(self, views: Views, columns: Columns) -> Tensor:
        return jensen_shannon(*views)


def jensen_shannon(local: Tensor, lengths: Tensor) -> Tensor:
    """Return E- / (T (n - 1)) - E+ / T, the negative mutual information of sentences and their
    tokens by the Jensen-Shannon estimator (IS-BERT, eq. 2 and 3; the published code).

    A sentence's vector is the mean of its local features, and s its product with the features of a
    token. E+ sums log 2 - softplus(-s) over the tokens of each sentence, E- sums softplus(-s) + s -
    log 2 over the tokens of all other sentences, and T is the number of tokens.

    Args:
        local: (n, t, c), 0 after each input; n at least 2.
        lengths: (n,) tokens of each input, on the CPU.
    """
    n, t, _ = local.shape
    device = local.device
    counts = lengths.numpy()
    vectors = local.sum(1) / to_device(counts, device).unsqueeze(1)
    places = np.flatnonzero(np.arange(t) < counts[:, None])  # (T,)
    tokens = local.flatten(0, 1)[to_device(places, device)]
    scores = tokens @ vectors.T  # (T, n)
    owner = to_device(places // t, device).unsqueeze(1)
    own = scores.gather(1, owner)
    positive = (math.log(2) - functional.softplus(-own)).sum()
    columns = torch.arange(n - 1, device=device).expand(len(places), -1)
    all_but_owner = columns + (columns >= owner)
    others = scores.gather(1, all_but_owner)
    negative = (functional.softplus(-others) + others - math.log(2)).sum()
    total = len(scores)
    return negative / (total * max(n - 1, 1)) - positive / total
