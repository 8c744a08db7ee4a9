"""An encoder in training: sentences in, hidden vectors of a method's views out, with gradient and within memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.lora import add_lora
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.encoder.batching import make_batch, to_device
from promptcli.encoder.context import BuildContext
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.pooling import start_weights
from promptcli.encoder.prompts import start_numbers
from promptcli.encoder.prompts.template import Template
from promptcli.encoder.transforms.heads import KINDS, start_projection
from promptcli.recipe import Recipe
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import LoRASettings, MaskedLMSettings, TrainingSettings
from promptcli.training.mlm_term import MLMTerm

#: What a pass reads: its batch and hidden states to a tensor whose row i is of input i.
Reader = Callable[[Batch, HiddenStates], Tensor]
#: The template without a sentence, as sentences of those lengths would see it.
Blank = Callable[[Template, Sequence[int], Backbone], Batch]

#: Tokens of a forward pass where none are given: what a processor's caches like best (benchmarks/README.md).
_TOKENS = {"cpu": 1024}
_TOKENS_ELSEWHERE = 32768


@dataclass
class Chunking:
    """How a step's rows go through the backbone; changes memory and time, not the gradient."""

    tokens: int  #: padded tokens of one forward pass
    cached: bool  #: activations of one pass at a time are held, the others computed again with the same dropout


@dataclass(frozen=True)
class TokenizedView:
    """The spliced rows of some sentences as one view sees them."""

    encoder: Encoder
    rows: list[list[int]]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence, the template's left out."""
        return [len(row) - self.encoder.template.length for row in self.rows]


class TrainableEncoder(nn.Module):
    """The numbers of prompt and pooling, the head, and the backbone where the method tunes it.

    Frozen or not, the backbone is in train mode while learning: dropout makes the second view.
    """

    def __init__(
        self, method: Method, settings: TrainingSettings, backbone: Backbone, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.models: Mapping[str, Encoder] = {}  #: encoders that the settings name, by setting, e.g. a teacher
        self.backbone, self.variant = backbone, method.variant(backbone.provenance.family)
        self.model: Any = backbone.model
        tokens = settings.chunk_tokens or _TOKENS.get(backbone.device.type, _TOKENS_ELSEWHERE)
        self.chunking = Chunking(tokens, settings.gradient_caching)
        self._prompt_dropout = settings.dropout
        prompts = self.variant.training_prompts(settings)
        self._learned = nn.ParameterDict()  # which takes no dots in its names
        self._pooling = method.training_pooling or method.pooling_of(backbone.provenance.family, settings)
        starts = start_numbers(prompts[0], backbone, generator) | start_weights(self._pooling, backbone, generator)
        for name, start in starts.items():
            self._learned[name.replace(".", "/")] = nn.Parameter(start.float())
        self.head = _head(self.variant.head, backbone, generator)
        weighted = isinstance(settings, MaskedLMSettings) and settings.mlm_weight
        self.mlm = MLMTerm(backbone, frozen=settings.mlm_head == "frozen") if weighted else None  # type: ignore[attr-defined]
        #: sum of the masked-LM losses of the passes since ``forget_mlm``, and their number, (2,).
        self.mlm_sums = torch.zeros(2, device=backbone.device)
        self.model.requires_grad_("backbone" in method.learns)
        words = self.model.get_input_embeddings()
        if words.weight.requires_grad and backbone.device.type != "cuda":  # where it waits to look for padding
            # each pass adds the gradients of its own words, where a dense one is as large as the vocabulary
            words.sparse = True
            words.weight.register_post_accumulate_grad_hook(_make_dense)
        made = {prompt: self._view(prompt, method, settings) for prompt in dict.fromkeys(prompts)}
        #: The encoders of the views; what is learned of prompt and pooling is in all.
        self.views = tuple(made[prompt] for prompt in prompts)
        backbone.set_dropout(settings.dropout)
        if isinstance(settings, LoRASettings):
            rank, alpha, dropout = settings.lora_rank, settings.lora_alpha, settings.lora_dropout
            add_lora(
                self.model, backbone.provenance.family, rank=rank, alpha=alpha, dropout=dropout, seed=settings.seed
            )

    def _view(self, prompt: str, method: Method, settings: TrainingSettings) -> Encoder:
        recipe = Recipe(self.backbone.name, prompt=prompt, period=False, pooling=self._pooling)
        view = Encoder(recipe, self.backbone, self.learned())
        limit = settings.max_length + (0 if method.counts_specials else view.template.length)
        view.max_length = min(limit, view.max_length)
        return view

    def learned(self) -> dict[str, nn.Parameter]:
        """Return the numbers of prompt and pooling by name."""
        return {name.replace("/", "."): parameter for name, parameter in self._learned.items()}

    def train(self, mode: bool = True) -> "TrainableEncoder":
        """Set dropout on or off, that of a prefix included."""
        super().train(mode)
        for view in self.views:
            view.prompt.set_dropout(self._prompt_dropout if mode else 0.0)
        return self

    def tokenize(self, sides: Sequence[tuple[int, Sequence[str]]]) -> list[TokenizedView]:
        """Return the rows of some texts, each as the view of that number, from 0, sees them."""
        encoders = [(self.views[view], texts) for view, texts in sides]
        distinct = {(id(encoder), id(texts)): (encoder, texts) for encoder, texts in encoders}  # two equal views once
        rows = {key: encoder.inputs(texts).rows for key, (encoder, texts) in distinct.items()}
        return [TokenizedView(encoder, rows[id(encoder), id(texts)]) for encoder, texts in encoders]

    def hidden(
        self,
        sides: Sequence[TokenizedView],
        augment: Callable[[Batch], Batch] = lambda batch: batch,
        read: Reader | None = None,
    ) -> Tensor:
        """Return h of all rows, side after side, (sum n, d) float32, from passes over rows of like length.

        What is learned of the prompt is the same for all views, so rows of several templates share passes.

        Args:
            sides: From ``tokenize``.
            augment: Changes each pass's batch: ids, positions, learned vectors in their places, embeddings.
            read: Returns something else than h of each pass, of one shape in all of them but for the first dimension.
        """
        rows = [row for side in sides for row in side.rows]
        slots = [side.encoder.template.mask_slots(len(row)) for side in sides for row in side.rows]
        tokenizer, device, longest = self.backbone.tokenizer, self.backbone.device, self.backbone.max_tokens
        states, places = [], []
        for chosen in _groups(rows, self.chunking.tokens):
            part, masks = [rows[row] for row in chosen], [slots[row] for row in chosen]
            batch = make_batch(part, masks, tokenizer.pad, device, longest)
            states.append(self._pass(sides[0].encoder, batch, augment, read))
            places.append(chosen)
        return torch.cat(states)[to_device(np.argsort(np.concatenate(places)), device)]

    def _pass(
        self,
        view: Encoder,
        batch: Batch,
        augment: Callable[[Batch], Batch] = lambda batch: batch,
        read: Reader | None = None,
    ) -> Tensor:
        """Return h (n, d), or what is read, of one pass; gradient caching computes it again when it is needed."""
        read = read or view.pooling.pool

        def run() -> tuple[Tensor, Tensor]:
            attached = augment(view.prompt.attach(batch))  # dropout of a prefix is drawn here, once for both losses
            hidden = read(batch, self.backbone.run(attached, view.pooling.needs))
            return hidden, self.mlm.sums(attached) if self.mlm is not None else hidden.new_zeros(2)

        cached = self.chunking.cached and torch.is_grad_enabled()
        # the random state of a device is kept for the second time only where an argument lies on that device
        hidden, sums = checkpoint(lambda _: run(), batch.ids, use_reentrant=False) if cached else run()
        self.mlm_sums = self.mlm_sums + sums
        return hidden

    def forget_mlm(self) -> None:
        """Begin to sum the masked-LM losses anew."""
        self.mlm_sums = torch.zeros(2, device=self.backbone.device)

    def project(self, vectors: Tensor) -> Tensor:
        """Return the head's output, (n, d) float32."""
        projected: Tensor = self.head(vectors)
        return projected.float()

    def bias(self, sides: Sequence[TokenizedView], blank: Blank) -> Tensor:
        """Return h_hat for all rows, side after side, (sum n, d), with dropout and gradient.

        One pass per template over its blank inputs: sentences of one length share their bias (published code).
        """
        passes: list[Tensor] = []
        row_of: dict[tuple[int, int], int] = {}
        for view in {id(side.encoder): side.encoder for side in sides}.values():
            distinct = sorted({length for side in sides if side.encoder is view for length in side.lengths})
            row_of |= {(id(view), length): len(row_of) + row for row, length in enumerate(distinct)}
            passes.append(self._pass(view, blank(view.template, distinct, self.backbone)))
        rows = np.array([row_of[id(side.encoder), length] for side in sides for length in side.lengths])
        return torch.cat(passes)[to_device(rows, self.backbone.device)]


def _make_dense(parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def _head(kind: str | None, backbone: Backbone, generator: torch.Generator) -> nn.Module:
    """Return a projection where its learning starts; the identity where there is none."""
    if kind is None:
        return nn.Identity()
    context = BuildContext(kind, backbone, {})
    head = KINDS[kind](context)
    start = start_projection(kind, context, generator)
    head.load_state_dict({name.partition(".")[2]: tensor for name, tensor in start.items()})
    return head.to(backbone.device).requires_grad_(True)


def _groups(rows: Sequence[Sequence[int]], tokens: int) -> Iterator[np.ndarray]:
    """Yield the numbers of rows of like length, so that little is padding; together they are all rows.

    Not ``plan_batches``: a pass holds as many rows as fit, since each is gone through once and shapes do not recur.
    """
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        longest = lengths[order[end]] if end < len(order) else 0
        if end == len(order) or (end + 1 - start) * longest > tokens:
            yield order[start:end]
            start = end
