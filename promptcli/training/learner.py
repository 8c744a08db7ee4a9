"""Learner: a backbone in training with what a method learns on it; sentences in, vectors of the views out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch
from promptcli.encoder.batching import make_batch
from promptcli.encoder.context import BuildContext
from promptcli.encoder.denoising import bias_batch
from promptcli.encoder.encoder import TUNED, Encoder
from promptcli.encoder.pooling import build_pooling
from promptcli.encoder.prompts import build_prompt, start_numbers
from promptcli.encoder.prompts.prompt import Prompt
from promptcli.encoder.transforms.projection import KINDS, start_projection
from promptcli.training.methods.method import Method, TrainingSettings
from promptcli.training.mlm_term import MLMTerm

#: Tokens of a forward pass where none are given: what a processor's caches like best (benchmarks/README.md).
_TOKENS = {"cpu": 1024}
_TOKENS_ELSEWHERE = 32768


@dataclass
class Chunking:
    """How a step's rows go through the backbone; changes memory and time, not the gradient.

    Attributes:
        tokens: Padded tokens of one forward pass.
        cached: Activations of one pass at a time are held, the others computed again with the same dropout.
    """

    tokens: int
    cached: bool


@dataclass(frozen=True)
class Views:
    """A batch behind the head.

    Attributes:
        vectors: z1, z2 and, where there are hard negatives, z3, each (n, d) float32.
        mlm: Sum of the masked-LM losses and their number, (2,); zeros without that term.
    """

    vectors: tuple[Tensor, ...]
    mlm: Tensor


class Learner(nn.Module):
    """What learns: tensors of the prompt, the heads, and the backbone where the method tunes it.

    Attributes:
        backbone: In train mode while learning, frozen or not: dropout makes the second view.
        learned: The prompt's numbers, by name.
        head: The projection.
        mlm: The masked-LM term, or None.
        chunking: How rows go through the backbone.
    """

    def __init__(self, method: Method, settings: TrainingSettings, backbone: Backbone) -> None:
        super().__init__()
        self.method, self.settings, self.backbone = method, settings, backbone
        self._variant = method.variant(backbone.provenance.family)
        self._model: Any = backbone.model
        tokens = settings.chunk_tokens or _TOKENS.get(backbone.device.type, _TOKENS_ELSEWHERE)
        self.chunking = Chunking(tokens, settings.gradient_caching)
        generator = torch.Generator().manual_seed(settings.seed)
        self.learned = nn.ParameterDict()
        for name, start in start_numbers(self._variant.prompts(settings)[0], backbone, generator).items():
            self.learned[name.replace(".", "/")] = nn.Parameter(start.float())
        context = BuildContext(self._variant.head, backbone, {})
        self.head = KINDS[self._variant.head](context)
        start_head = start_projection(self._variant.head, context, generator)
        self.head.load_state_dict({name.partition(".")[2]: tensor for name, tensor in start_head.items()})
        self.head.to(backbone.device).requires_grad_(True)
        self.mlm = MLMTerm(backbone, frozen=settings.mlm_head == "frozen") if settings.mlm_weight else None
        self.tunes = "backbone" in method.learns
        self._model.requires_grad_(self.tunes)
        self.pooling = build_pooling(method.pooling, backbone, {})
        backbone.set_dropout(settings.dropout)

    def _numbers(self) -> dict[str, nn.Parameter]:
        """Return the prompt's numbers by name; a ParameterDict takes no dots in its names."""
        return {name.replace("/", "."): parameter for name, parameter in self.learned.items()}

    def prompts(self) -> tuple[Prompt, Prompt]:
        """Return the prompts of the two views, the numbers being learned in them."""
        numbers = self._numbers()
        first, second = self._variant.prompts(self.settings)
        made = build_prompt(first, self.backbone, numbers)
        if self.training:
            made.set_dropout(self.settings.dropout)
        return made, made if first == second else build_prompt(second, self.backbone, numbers)

    def forward(self, columns: Sequence[Sequence[str]]) -> Views:
        """Return the views of n examples, behind the head.

        Args:
            columns: Texts by column: one (a sentence is its own positive), two, or three.
        """
        first, second = self.prompts()
        sides = [(first, columns[0]), (second, columns[1] if len(columns) > 1 else columns[0])]
        if len(columns) > 2:
            sides.append((second, columns[2]))
        rows = [self._rows(prompt, texts) for prompt, texts in sides]
        slots = [
            prompt.template.mask_slots(len(row)) for (prompt, _), part in zip(sides, rows, strict=True) for row in part
        ]
        hidden, mlm = self._hidden(first, [row for part in rows for row in part], slots)
        vectors = self._project(hidden)
        if self.method.denoised and self.settings.denoising:
            bias = self._bias([prompt for prompt, _ in sides], rows)
            behind = self._variant.denoise_at_test == "head"
            vectors = vectors - self._project(bias) if behind else self._project(hidden - bias)
        return Views(tuple(torch.split(vectors, len(columns[0]))), mlm)

    def _rows(self, prompt: Prompt, texts: Sequence[str]) -> list[list[int]]:
        limit = self.settings.max_length
        if not self.method.counts_specials:
            limit += prompt.template.length
        pieces = self.backbone.tokenizer.encode(prompt.template.pieces(texts, period=False))
        return prompt.template.splice(pieces, min(limit, self.backbone.max_tokens - prompt.length)).rows

    def _hidden(self, prompt: Prompt, rows: Sequence[list[int]], slots: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Return h of all rows, (n, d), from passes over rows of like length, and the masked-LM sums.

        What is learned of the prompt is the same for all views, so rows of several templates share passes.
        """
        states, places, mlm = [], [], torch.zeros(2, device=self.backbone.device)
        for chosen in _groups(rows, self.chunking.tokens):
            part = [rows[row] for row in chosen]
            places_of_masks = [slots[row] for row in chosen]
            tokens, device = self.backbone.tokenizer, self.backbone.device
            batch = make_batch(part, places_of_masks, tokens.pad, device, self.backbone.max_tokens)
            hidden, sums = self._pass(prompt, batch)
            states.append(hidden)
            places.append(chosen)
            mlm = mlm + sums
        order = torch.from_numpy(np.argsort(np.concatenate(places))).to(self.backbone.device)
        return torch.cat(states)[order], mlm

    def _pass(self, prompt: Prompt, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return h (n, d) and the masked-LM sums of one pass; gradient caching computes it again when needed."""

        def run() -> tuple[Tensor, Tensor]:
            attached = prompt.attach(batch)  # dropout of a prefix is drawn here, once for both losses
            hidden = self.pooling.pool(batch, self.backbone.run(attached, self.pooling.needs))
            return hidden, self.mlm.sums(attached) if self.mlm is not None else hidden.new_zeros(2)

        if not (self.chunking.cached and torch.is_grad_enabled()):
            return run()
        hidden, sums = checkpoint(run, use_reentrant=False)
        return hidden, sums

    def _project(self, vectors: Tensor) -> Tensor:
        projected: Tensor = self.head(vectors)
        return projected.float()

    def _bias(self, prompts: Sequence[Prompt], rows: Sequence[list[list[int]]]) -> Tensor:
        """Return h_hat for the rows of every side, (sum n, d), with dropout and gradient.

        One pass per template: sentences of one length share their bias (published code).
        """
        raw = self.settings.bias_positions == "code"
        lengths = [
            [len(row) - prompt.template.length for row in part] for prompt, part in zip(prompts, rows, strict=True)
        ]
        found: dict[int, dict[int, Tensor]] = {}
        for prompt in {id(prompt): prompt for prompt in prompts}.values():
            mine = (part for other, part in zip(prompts, lengths, strict=True) if other is prompt)
            distinct = sorted({length for part in mine for length in part})
            biases, _ = self._pass(prompt, bias_batch(prompt.template, distinct, self.backbone, raw_positions=raw))
            found[id(prompt)] = dict(zip(distinct, biases, strict=True))
        return torch.stack(
            [found[id(prompt)][length] for prompt, part in zip(prompts, lengths, strict=True) for length in part]
        )

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by the names they are stored under."""
        found = self._numbers()
        found |= {f"projection.{name}": parameter for name, parameter in self.head.named_parameters()}
        if self.mlm is not None:
            learning = {name: one for name, one in self.mlm.head.named_parameters() if one.requires_grad}
            found |= {f"mlm.{name}": parameter for name, parameter in learning.items()}
        if self.tunes:
            found |= {f"{TUNED}{name}": parameter for name, parameter in self._model.named_parameters()}
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of what an entry needs: prompt, the head where it stays, the backbone where it was tuned."""
        model = self._model.state_dict() if self.tunes else {}
        kept = self._outside() | {f"{TUNED}{name}": tensor for name, tensor in model.items()}
        return {name: tensor.detach().clone() for name, tensor in kept.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take numbers that ``tensors`` gave."""
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                if name in tensors:
                    parameter.copy_(tensors[name])

    def _outside(self) -> dict[str, Tensor]:
        """Return what is learned outside the backbone and stays at test time."""
        return {
            name: tensor.detach()
            for name, tensor in self.trainable().items()
            if not name.startswith((TUNED, "mlm.")) and (self.method.keeps_head or not name.startswith("projection."))
        }

    def encoder(self, *, selecting: bool = False) -> Encoder:
        """Return the encoder that the learner is now, on the same backbone, as at test or as selection wants it."""
        recipe = self.method.recipe(self.backbone.name, self.backbone.provenance.family, self.settings)
        if selecting:
            recipe = self.method.selecting(recipe, self.settings)
        return Encoder(recipe, self.backbone, self._outside())


def _groups(rows: Sequence[Sequence[int]], tokens: int) -> Iterator[np.ndarray]:
    """Yield the numbers of rows of like length, so that little is padding; together they are all rows."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        longest = lengths[order[end]] if end < len(order) else 0
        if end == len(order) or (end + 1 - start) * longest > tokens:
            yield order[start:end]
            start = end
