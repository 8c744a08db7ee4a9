"""Training BERT-flow on sentence vectors. Knows neither encoders nor files."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.encoder.encoder import Progress, silent
from promptcli.encoder.transforms.flow import Glow
from promptcli.errors import UsageError


@dataclass(frozen=True)
class FlowSettings:
    """How a flow is trained: the published code's numbers, and our seed."""

    learning_rate: float = 1e-3  #: of AdamW, constant
    weight_decay: float = 0.01
    eps: float = 1e-6
    clip: float = 1.0  #: largest global norm of the gradient
    batch: int = 32  #: sentences a step; the published code takes as many pairs
    epochs: int = 1
    seed: int = 42  #: of the first weights and of the order


PUBLISHED = FlowSettings()


def fit_flow(
    vectors: np.ndarray, *, device: torch.device | str = "cpu", progress: Progress = silent
) -> dict[str, Tensor]:
    """Return the numbers of a flow trained on vectors (n, d), by name.

    The vectors are fixed. The published code makes them anew in each step, with the frozen BERT's dropout on; ours come
    from one pass without dropout, which is many times faster. Batches are full; the rest of an epoch is left out.

    Args:
        vectors: (n, d) float32, a sentence as often as it occurs.
        device: Where it is trained.
        progress: Called with the number of vectors newly done; adds up to n an epoch.

    Raises:
        UsageError: Fewer than one batch, or d is not divisible by 8.
    """
    n, d = vectors.shape
    glow = Glow(d)
    if n < PUBLISHED.batch:
        raise UsageError(f"flow starts from one batch of {PUBLISHED.batch} sentences; {n} were given: give more")
    rows = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device)
    generator = torch.Generator().manual_seed(PUBLISHED.seed)
    orders = [torch.randperm(n, generator=generator).to(device) for _ in range(PUBLISHED.epochs)]
    glow.start(rows[orders[0][: PUBLISHED.batch]].cpu(), generator)
    glow.to(device)
    optimizer = torch.optim.AdamW(
        glow.parameters(), lr=PUBLISHED.learning_rate, weight_decay=PUBLISHED.weight_decay, eps=PUBLISHED.eps
    )
    for order in orders:
        for chosen in order[: n - n % PUBLISHED.batch].reshape(-1, PUBLISHED.batch):
            optimizer.zero_grad()
            glow.loss(rows[chosen]).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(glow.parameters(), PUBLISHED.clip)
            optimizer.step()
            progress(PUBLISHED.batch)
        progress(n % PUBLISHED.batch)
    return {name: tensor.cpu() for name, tensor in glow.named_tensors().items()}
