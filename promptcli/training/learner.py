"""Learner: a backbone in training with what a method learns on it; sentences in, vectors of the views out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.states import Batch
from promptcli.batching import make_batch
from promptcli.denoising import blank
from promptcli.encoder import TUNED, Encoder
from promptcli.methods.method import Method, Settings
from promptcli.pooling import build_pooling
from promptcli.prompts import deep_prefix, soft_template
from promptcli.prompts.named import template_text
from promptcli.prompts.prompt import Prompt, build_prompt
from promptcli.prompts.template import Template
from promptcli.recipe import split_spec
from promptcli.transforms.projection import KINDS, start_projection
from promptcli.transforms.transform import Making

#: Padded tokens of one forward pass: the rows of a step go through in groups of like length.
_TOKENS = 8192


class Learner(nn.Module):
    """What learns: tensors of the prompt, the head, and the backbone where the method tunes it.

    Attributes:
        backbone: In train mode while learning, frozen or not: dropout makes the second view.
        learned: The prompt's numbers, by name.
        head: The projection.
    """

    def __init__(self, method: Method, settings: Settings, backbone: Backbone) -> None:
        super().__init__()
        self.method, self.settings, self.backbone = method, settings, backbone
        self._variant = method.variant(backbone.provenance.family)
        self._model: Any = backbone.model
        generator = torch.Generator().manual_seed(settings.seed)
        self.learned = nn.ParameterDict()
        for name, start in self._starts(generator).items():
            self.learned[name.replace(".", "/")] = nn.Parameter(start.float())
        making = Making(self._variant.head, backbone, {})
        self.head = KINDS[self._variant.head](making)
        start_head = start_projection(self._variant.head, making, generator)
        self.head.load_state_dict({name.partition(".")[2]: tensor for name, tensor in start_head.items()})
        self.head.to(backbone.device).requires_grad_(True)
        self.tunes = "backbone" in method.learns
        self._model.requires_grad_(self.tunes)
        self.pooling = build_pooling(method.pooling, backbone, {})
        backbone.set_dropout(settings.dropout)

    def _starts(self, generator: torch.Generator) -> dict[str, Tensor]:
        name, argument = split_spec(self._specs[0])
        if name == "deep-prefix" and argument is not None:
            return {deep_prefix.TENSOR: deep_prefix.start_prefix(argument, self.backbone, generator)}
        if name == "soft-template" and argument is not None:
            template = Template(template_text(argument), self.backbone.tokens)
            return {soft_template.TENSOR: soft_template.start_vectors(template, self.backbone)}
        return {}

    @property
    def _specs(self) -> tuple[str, str]:
        first, second = (spec.format(p=self.settings.prefix_length) for spec in self._variant.views)
        return first, second

    def _numbers(self) -> dict[str, nn.Parameter]:
        """Return the prompt's numbers by name; a ParameterDict takes no dots in its names."""
        return {name.replace("/", "."): parameter for name, parameter in self.learned.items()}

    def prompts(self) -> tuple[Prompt, Prompt]:
        """Return the prompts of the two views, the numbers being learned in them."""
        numbers = self._numbers()
        first, second = self._specs
        made = build_prompt(first, self.backbone, numbers)
        if isinstance(made.learned, deep_prefix.DeepPrefix) and self.training:
            made.learned.dropout = self.settings.dropout
        return made, made if first == second else build_prompt(second, self.backbone, numbers)

    def forward(self, columns: Sequence[Sequence[str]]) -> tuple[Tensor, ...]:
        """Return z1, z2 and, where there are hard negatives, z3, each (n, d) float32, behind the head.

        Args:
            columns: Texts by column: one (a sentence is its own positive), two, or three.
        """
        first, second = self.prompts()
        sides = [(first, columns[0]), (second, columns[1] if len(columns) > 1 else columns[0])]
        if len(columns) > 2:
            sides.append((second, columns[2]))
        by_prompt: dict[int, list[int]] = {}
        for number, (prompt, _) in enumerate(sides):
            by_prompt.setdefault(id(prompt), []).append(number)
        vectors: list[Tensor] = [torch.empty(0)] * len(sides)
        for members in by_prompt.values():  # views of one prompt share their passes
            prompt = sides[members[0]][0]
            texts = [text for number in members for text in sides[number][1]]
            parts = torch.split(self._vectors(prompt, texts), len(columns[0]))
            for number, part in zip(members, parts, strict=True):
                vectors[number] = part
        return tuple(vectors)

    def _vectors(self, prompt: Prompt, texts: Sequence[str]) -> Tensor:
        """Return the head's output for n texts, (n, d): h, denoised where the method does so, projected."""
        rows = self._rows(prompt, texts)
        states: list[Tensor] = []
        places: list[np.ndarray] = []
        for chosen in _groups(rows):
            part = [rows[row] for row in chosen]
            slots = prompt.template.mask_slots(part)
            batch = make_batch(part, slots, self.backbone.tokens.pad, self.backbone.device, self.backbone.max_tokens)
            states.append(self._pool(prompt, batch))
            places.append(chosen)
        order = torch.from_numpy(np.argsort(np.concatenate(places))).to(self.backbone.device)
        hidden = torch.cat(states)[order]
        if not self.method.denoised:
            return self._project(hidden)
        bias = self._bias(prompt, [len(row) - prompt.template.length for row in rows])
        if self._variant.denoise_at_test == "head":
            return self._project(hidden) - self._project(bias)
        return self._project(hidden - bias)

    def _rows(self, prompt: Prompt, texts: Sequence[str]) -> list[list[int]]:
        limit = self.settings.max_length
        if not self.method.counts_specials:
            limit += prompt.template.length
        pieces = self.backbone.tokens.encode(prompt.template.pieces(texts, period=False))
        return prompt.template.splice(pieces, min(limit, self.backbone.max_tokens - prompt.length)).rows

    def _pool(self, prompt: Prompt, batch: Batch) -> Tensor:
        return self.pooling.pool(batch, self.backbone.run(prompt.attach(batch), self.pooling.needs))

    def _project(self, vectors: Tensor) -> Tensor:
        projected: Tensor = self.head(vectors)
        return projected.float()

    def _bias(self, prompt: Prompt, lengths: list[int]) -> Tensor:
        """Return h_hat (n, d), with dropout and gradient; sentences of one length share it (published code)."""
        distinct = sorted(set(lengths))
        batch = blank(prompt.template, distinct, self.backbone, raw_positions=False)
        found = self._pool(prompt, batch)
        row_of = {length: row for row, length in enumerate(distinct)}
        return found[torch.tensor([row_of[length] for length in lengths], device=found.device)]

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by the names they are stored under."""
        found = self._numbers()
        found |= {f"projection.{name}": parameter for name, parameter in self.head.named_parameters()}
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
            if not name.startswith(TUNED) and (self.method.keeps_head or not name.startswith("projection."))
        }

    def encoder(self) -> Encoder:
        """Return the encoder that the learner is now, on the same backbone."""
        recipe = self.method.recipe(self.backbone.name, self.backbone.provenance.family, self.settings)
        return Encoder(recipe, self.backbone, self._outside())


def _groups(rows: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """Yield the numbers of rows of like length, so that little is padding; together they are all rows."""
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        longest = lengths[order[end]] if end < len(order) else 0
        if end == len(order) or (end + 1 - start) * longest > _TOKENS:
            yield order[start:end]
            start = end
