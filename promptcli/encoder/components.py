"""The components of an encoder, h(s) = T(sum_t w_t x_t): what they are built from, and the base
classes of prompts, of the weights w and of the transforms T.
"""

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import torch
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.encoder.template import Template
from promptcli.errors import UsageError, WrongKindError
from promptcli.grammar import COUNT, Pair, Spec
from promptcli.named_templates import SLOT, template_text
from promptcli.notes import note


@dataclass(frozen=True)
class BuildContext:
    """The arguments that a prompt, weights or a transform are built from."""

    spec: Spec  #: the component as the recipe writes it, parsed
    backbone: Backbone
    tensors: Mapping[str, Tensor]  #: the entry's learned and fitted tensors, by name
    prompts: Sequence["Prompt"] = ()  #: the prompts that a prompt is composed of
    #: The template around the sentences, for weights; None: the sentence has no template.
    template: Template | None = None

    @property
    def argument(self) -> str | None:
        """The text after the name and the colon in the recipe; None without one."""
        return self.spec.argument

    def own_template(self) -> Template:
        """Return the template of the sentences; [X] if they have none."""
        return self.template or Template(SLOT, self.backbone.tokenizer)

    def require_causal(self, owner: str) -> None:
        if not self.backbone.causal:
            name = self.backbone.name
            raise WrongKindError(
                f"{owner} is for causal models, and {name!r} is a masked one; use the recipe prompt"
            )

    def refuse_argument(self, owner: str) -> None:
        if self.argument is not None:
            raise UsageError(f"no argument is allowed for {owner}, got {self.argument!r}")

    def range_of(self, layers: Pair, min_start: int) -> range:
        """Return the layers l, from 0, with START <= l < EXIT; START is at least ``min_start``."""
        name, n_layers = self.spec.name, self.backbone.n_layers
        if not min_start <= layers.first < layers.last <= n_layers:
            raise UsageError(
                f"{name}:{layers} is not allowed; give {min_start} <= START < EXIT <= {n_layers}"
            )
        return range(*layers)

    def count_argument(self, name: str, *, default: int | None = None) -> int | None:
        """Return the argument of the component ``name`` as a whole number above 0."""
        if self.argument is None:
            return default
        if not re.fullmatch(COUNT, self.argument):
            raise UsageError(
                f"{str(self.spec)!r} is not allowed; give a whole number above 0: {name}:200"
            )
        return int(self.argument)

    def tensors_of(
        self,
        prefix: str,
        shapes: Mapping[str, Sequence[int | None]],
        owner: str,
        remedy: str,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> dict[str, Tensor]:
        """Return the tensors of these names, of these shapes (None: any size) and this dtype.

        In the entry, their names begin with ``prefix``. If one is missing or does not fit, the
        message says that ``owner`` needs it, and ends with ``remedy``.
        """
        tensors = {}
        for name, shape in shapes.items():
            tensor = self.tensors.get(prefix + name)
            if tensor is None:
                raise UsageError(f"{owner} needs {prefix}{name}, which is missing: {remedy}")
            fits = tensor.dtype == dtype and len(shape) == tensor.dim()
            if not fits or any(
                size not in (None, actual) for size, actual in zip(shape, tensor.shape, strict=True)
            ):
                raise UsageError(
                    f"{owner} does not fit backbone {self.backbone.name!r}: {prefix}{name} is"
                    f" {list(tensor.shape)} {tensor.dtype}, not {list(shape)} {dtype}: {remedy}"
                )
            tensors[name] = tensor
        return tensors


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Sequence[int | None]]:
    """Return the shapes of tensors by name."""
    return {name: tensor.shape for name, tensor in tensors.items()}


def fit_command(choice: str) -> str:
    """Return the command that fits a component's tensors; ``choice`` is an option of ``fit``."""
    return f"`promptcli fit --{choice} --on FILE --name NAME`, then the model NAME"


@contextlib.contextmanager
def seeded_by(generator: torch.Generator) -> Iterator[None]:
    """Seed torch in the block with a number drawn from a generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
        yield


class Prompt:
    """A template of words, and the base of the other prompts."""

    template: Template  #: the words around the sentence; may be empty
    spec: str  #: as a recipe writes it, in full
    length: int = 0  #: p of a deep prefix: keys and values in front of those of the input's tokens
    #: ids of the tokens that begin every input, if their states depend on nothing after them and
    #: on nothing learned
    shared: Sequence[int] = ()
    #: why a single-pass graph (ONNX, OpenVINO) cannot express the prompt; None: it can
    graph_obstacle: str | None = None

    def __init__(self, context: BuildContext) -> None:
        self.template = self.read_template(context)
        if self.template.copies > 1 and not context.backbone.causal:
            note("a template with two [X] is for causal models; no paper has tried it on others")
        self.spec = self.template.text
        self.shared = self.template.prefix

    @classmethod
    def read_template(cls, context: BuildContext) -> Template:
        """Return the template that the spec names or spells out."""
        text = template_text(context.spec["text"], context.backbone.name)
        return Template(text, context.backbone.tokenizer)

    @classmethod
    def initial_tensors(
        cls, context: BuildContext, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the initial values of the learned tensors by name; empty for words."""
        return {}

    def rewrite(self, sentences: Sequence[str]) -> list[str]:
        """Return n sentences changed for the prompt; most prompts leave them unchanged."""
        return list(sentences)

    def attach(self, batch: Batch) -> Batch:
        """Return the batch with the learned tensors added."""
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """Return the learned tensors by name; empty for words."""
        return {}

    def set_dropout(self, probability: float) -> Self:
        """Set the dropout of learned tensors, if the method has one; 0 unless training."""
        return self

    def nearest_words(self, count: int) -> list[tuple[str, list[str]]]:
        """Return each word whose vector is learned, with the ``count`` tokens nearest to that
        vector.
        """
        return []


class Weights(ABC):
    """w_t of h = sum_t w_t x_t; most have no fitted tensors and leave sentences unchanged."""

    spec: str  #: name and argument in full, as a recipe writes them
    needs = Needs()  #: backbone outputs that the weights read (diagonals, or one slot)
    #: name of the rule that ``token_ids`` applies to tokens; None if it changes nothing
    rewriting: str | None = None
    #: whether only the sentence's own tokens are read, without the template's
    reads_content_only = False
    #: why a single-pass graph (ONNX, OpenVINO) cannot express them; None: it can
    graph_obstacle: str | None = None
    #: the tokens of an input that get equal weights; None for any other weights
    averaged: slice | None = None

    def __init__(self, context: BuildContext) -> None:
        context.refuse_argument(f"weights {self.spec!r}")

    @classmethod
    def initial_tensors(
        cls, context: BuildContext, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Return the initial values of the learned tensors by name; empty if nothing is learned."""
        return {}

    @abstractmethod
    def pool(self, states: Tensor, batch: Batch, hidden: HiddenStates) -> Tensor:
        """Return (n, d) from states (n, t, d)."""

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def notes(self) -> list[str]:
        """Return notes for the user about the sentences since the last call; mostly none."""
        return []

    def token_ids(self, texts: Sequence[str], backbone: Backbone) -> RaggedIds:
        """Return each text's token ids, without specials."""
        return backbone.tokenizer.encode_ragged(texts)


Stage = tuple[str, Callable[[Tensor], Tensor]]


class Transform:
    """A map of vectors (n, d) to vectors (n, d')."""

    spec: str  #: name and argument, as a recipe writes them
    stages: Sequence[Stage]  #: name and function of each step, in order
    #: whether columns are sorted by falling variance, so that the first k of them are a usable
    #: vector
    is_prefix_truncatable = False
    takes: int | None = None  #: width d of the vectors that it takes; None for any
    network: nn.Module | None = None  #: if it is a sequence of linear maps, activations, LayerNorms
    _tensors: Mapping[str, Tensor] = MappingProxyType({})

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._tensors)
