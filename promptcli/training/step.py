"""One step's gradients: views, losses, all processes' negatives, within the memory there is."""

from collections.abc import Callable, Sequence

from accelerate.utils import set_seed
from accelerate.utils.memory import should_reduce_batch_size

from promptcli.errors import PromptcliError
from promptcli.training.learner import Learner
from promptcli.training.methods.training_settings import MaskedLMSettings
from promptcli.training.processes import Processes

_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_STRIDE = 7_919  # spreads them over processes
_LEAST_TOKENS = 64
_EVERY = 100  # steps by which lambda decays by its factor


class TrainingStep:
    """Computes a batch's loss and gradients."""

    def __init__(self, learner: Learner, processes: Processes, note: Callable[[str], None]) -> None:
        self._learner, self._processes, self._note = learner, processes, note

    def gradients(self, number: int, columns: Sequence[Sequence[str]]) -> float:
        """Put the gradients of step ``number`` (from 0) in place and return the loss.

        Where memory runs out the step is begun anew, with gradient caching and passes half as large.

        Raises:
            PromptcliError: Memory does not hold the smallest pass.
        """
        chunking = self._learner.network.chunking
        while True:
            try:
                return self._gradients(number, columns)
            except Exception as error:
                if not should_reduce_batch_size(error) or self._processes.number > 1:
                    raise
                if chunking.tokens // 2 < _LEAST_TOKENS:
                    raise PromptcliError(
                        f"out of memory at step {number + 1} even with {chunking.tokens} tokens a pass; take a smaller"
                        " --batch-size or --max-length"
                    ) from None
            chunking.cached, chunking.tokens = True, chunking.tokens // 2
            self._note(
                f"out of memory at step {number + 1}: gradient caching from now on, {chunking.tokens} tokens a pass;"
                " the batch and its negatives stay"
            )

    def _gradients(self, number: int, columns: Sequence[Sequence[str]]) -> float:
        learner, processes, settings = self._learner, self._processes, self._learner.settings
        set_seed((settings.seed * _PRIME + number + _STRIDE * processes.index) % 2**32)
        learner.train()
        learner.zero_grad(set_to_none=True)
        with processes.autocast():
            views = learner(processes.share(columns))
        joined = [processes.join(part, len(columns[0])) for part in views.vectors]
        loss = learner.objective.loss(joined, columns)
        value = loss.detach()
        if isinstance(settings, MaskedLMSettings) and settings.mlm_weight:
            weight = settings.mlm_weight * learner.method.mlm_decay ** (number / _EVERY)
            chosen = processes.total(views.mlm[1]).clamp(min=1)
            loss = loss + weight * views.mlm[0] / chosen
            value = value + weight * processes.total(views.mlm[0]) / chosen
        processes.accelerator.backward(loss)
        processes.add_gradients(learner.trainable().values())
        return float(value)
