"""The base of transforms: vectors (n, d) to vectors (n, d'), in named stages.

The stages are where template denoising may be taken: ``head`` is a network on the hidden state, ``logits`` its
predictions, ``vector`` the result.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

Stage = tuple[str, Callable[[Tensor], Tensor]]


class Transform:
    """One transform."""

    spec: str  #: name and argument, as a recipe writes them
    stages: Sequence[Stage]  #: name and function of each step, in order
    #: Whether columns are sorted by falling variance, so that the first k of them are a usable vector.
    ordered = False
    takes: int | None = None  #: width d of the vectors that it takes; None for any

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned or fitted tensors by name."""
        return {}
