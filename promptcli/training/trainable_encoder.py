"""An encoder in training, which maps sentences to the hidden vectors of a method's views, with
gradient and within memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import to_device
from promptcli.backbones.head import MLMHead
from promptcli.backbones.lora import ALPHA, add_lora
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates, Needs
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.batching import make_batch
from promptcli.encoder.components import BuildContext
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.pooling import initial_weights
from promptcli.encoder.prompts import initial_tensors
from promptcli.encoder.sentence_encoder import TUNED
from promptcli.encoder.template import Template
from promptcli.encoder.transforms.heads import PROJECTIONS, start_projection
from promptcli.errors import UsageError
from promptcli.grammar import parse_pooling, parse_prompt, parse_transform
from promptcli.notes import note
from promptcli.recipe import Recipe
from promptcli.training.methods.method import ConfiguredMethod
from promptcli.training.objective import (
    Columns,
    Objective,
    TokenizedSide,
    TokenizedSides,
)
from promptcli.training.teacher import SentenceVectors

Reader = Callable[[Batch, HiddenStates], Tensor]  #: reads a pass; row i belongs to input i
Augment = Callable[[Batch], Batch]  #: changes the batch of a pass
#: Makes the inputs of h_hat: the template without a sentence, for sentences of some lengths.
BiasInputs = Callable[[Template, Sequence[int], Backbone], Batch]

#: Tokens per pass that fit a CPU's caches best (benchmarks/README.md).
_CPU_CHUNK_TOKENS = 1024
_CHUNK_TOKENS = 32768  # on other devices
_PREDICTED_SHARE = 0.15  # share of tokens to predict (BERT)
#: BERT's shares of the tokens to predict; the other tokens to predict stay unchanged.
MASKED_SHARE = 0.8
RANDOM_SHARE = 0.1
_DECAY_STEPS = 100  # steps in which the masked-LM loss's weight decays by its factor


class TrainableEncoder(nn.Module):
    """A method on a backbone: the learned parts of prompt and pooling, the head, the objective, and
    the backbone if the method tunes it.

    The backbone, frozen or not, is in float32 and in train mode: dropout makes the second view.
    ``models`` maps a setting to the vectors of the model that it names, e.g. a teacher.
    """

    def __init__(
        self,
        configured: ConfiguredMethod,
        backbone: Backbone,
        objective: type[Objective[Any]],
        models: Mapping[str, SentenceVectors] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        settings = configured.settings
        generator = torch.Generator().manual_seed(settings.seed)
        prompts = configured.prompts(training=True)
        pooling = configured.method.training_pooling or configured.pooling
        starts = initial_tensors(parse_prompt(prompts[0]), backbone, generator)
        starts |= initial_weights(parse_pooling(pooling), backbone, generator)
        self.configured = configured
        self.method = configured.method
        self.settings = settings
        self.backbone = backbone
        self.model: Any = backbone.model
        self.models = models
        #: Padded tokens per forward pass; affects memory and time, not the gradient.
        self.chunk_tokens = settings.chunk_tokens or (
            _CPU_CHUNK_TOKENS if backbone.device.type == "cpu" else _CHUNK_TOKENS
        )
        self.caching: bool = (
            settings.gradient_caching
        )  #: keeps the activations of one pass at a time
        #: The learned tensors of prompt and pooling.
        self.learned = {name: nn.Parameter(start.float()) for name, start in starts.items()}
        self.head = _head(configured.head, backbone, generator)
        #: The head of the masked-LM loss starts as the pre-trained head, untied from the words.
        self.mlm_head: MLMHead | None = None
        if settings.mlm_weight:
            if backbone.tokenizer.mask is None:
                raise UsageError(
                    f"backbone {backbone.name!r} has no mask token; leave it out",
                    parameter="mlm_weight",
                )
            self.mlm_head = backbone.new_head().requires_grad_(settings.mlm_head == "trained")
        #: Sum and number of the masked-LM losses of a batch; every pass adds to both.
        self.mlm_sums = torch.zeros(2, device=backbone.device)
        encoders = {prompt: self._encoder_of(prompt, pooling) for prompt in dict.fromkeys(prompts)}
        #: One encoder per template; they share the learned tensors of prompt and pooling.
        self.template_encoders = tuple(encoders[prompt] for prompt in prompts)
        self._prepare_backbone()
        self.eval()
        self.objective = objective(settings, self, generator)

    def _encoder_of(self, prompt: str, pooling: str) -> TorchEncoder:
        recipe = Recipe(
            self.backbone.name,
            prompt=prompt,
            period=False,
            text_rule=self.method.training_text_rule,
            pooling=pooling,
        )
        encoder = TorchEncoder(recipe, self.backbone, self.learned)
        limit = self.settings.max_length * encoder.template.copies
        if not self.method.counts_specials:
            limit += encoder.template.length
        encoder.max_length = min(limit, encoder.max_length)
        return encoder

    def _prepare_backbone(self) -> None:
        """Let the backbone learn if the method tunes it, set its dropout, and add an adapter or
        compile it if the settings ask for it. With static states only the word embeddings learn.
        """
        settings = self.settings
        learns = "backbone" in self.method.learns
        is_static = self.template_encoders[0].recipe.parts.pooling.states.name == "static"
        self.model.requires_grad_(learns and not is_static)
        words = self.model.get_input_embeddings()
        words.requires_grad_(learns)
        # on a GPU a sparse gradient would wait for the host, which looks for padding
        if learns and self.backbone.device.type != "cuda":
            # each pass adds the gradients of its words; a dense gradient would have the size of
            # the vocabulary
            words.sparse = True
            words.weight.register_post_accumulate_grad_hook(_make_dense)
        self.backbone.set_dropout(settings.dropout)
        if settings.lora is not None:
            family = self.backbone.provenance.family
            add_lora(self.model, family, **settings.lora._asdict(), seed=settings.seed)
        if settings.compile:
            self.backbone.compile()
            if self.backbone.device.type == "cpu":
                note("the first steps compile the backbone, which takes minutes; a CPU gets slower")

    def train(self, mode: bool = True) -> "TrainableEncoder":
        """Turn dropout on or off, also in a prefix."""
        super().train(mode)
        for encoder in self.template_encoders:
            encoder.prompt.set_dropout(self.settings.dropout if mode else 0.0)
        return self

    def tokenize(self, columns: Columns) -> list[TokenizedSide]:
        """Tokenise each side of n examples, given as texts by column."""
        tokenized: dict[tuple[int, int], TokenizedSide] = {}  # equal sides are tokenised once
        keys = []
        for number, texts in self.objective.sides(columns):
            encoder = self.template_encoders[number]
            keys.append((id(encoder), id(texts)))
            if keys[-1] not in tokenized:
                inputs = encoder.inputs(texts)
                side = TokenizedSide(encoder, texts, inputs.ids, inputs.truncated)
                tokenized[keys[-1]] = side
        return [tokenized[key] for key in keys]

    def hidden(
        self,
        sides: TokenizedSides,
        augment: Augment | None = None,
        read: Reader | None = None,
    ) -> Tensor:
        """Return h of all rows, side after side, (sum n, d) float32, from passes over rows of
        similar length.

        ``augment`` changes the batch of each pass: ids, positions, or embeddings. ``read`` returns
        other tensors than h for each pass; their shapes agree except in the first dimension.
        """
        rows = RaggedIds.join([side.ids for side in sides])
        slots = _mask_slots(sides)
        tokenizer = self.backbone.tokenizer
        device = self.backbone.device
        longest = self.backbone.max_tokens
        pooled = []
        places = []
        for indices in group_by_length(rows.lengths, self.chunk_tokens):
            batch = make_batch(rows.take(indices), slots[indices], tokenizer.pad, device, longest)
            pooled.append(self._pass(sides[0].encoder, batch, augment, read))
            places.append(indices)
        order = to_device(np.argsort(np.concatenate(places)), device)
        # index_select's gradient adds row by row; an index's gradient sorts the numbers first
        return torch.cat(pooled).index_select(0, order)

    def _pass(
        self,
        encoder: TorchEncoder,
        batch: Batch,
        augment: Augment | None = None,
        read: Reader | None = None,
    ) -> Tensor:
        """Return h (n, d), or the result of ``read``, of one pass.

        With gradient caching the backward pass recomputes it.
        """
        read = read or encoder.pooling.pool

        def run() -> tuple[Tensor, Tensor]:
            # a prefix's dropout is drawn here, once for both losses
            attached = encoder.prompt.attach(batch)
            augmented = augment(attached) if augment else attached
            pooled = read(attached, self.backbone.run(augmented, encoder.pooling.needs))
            if self.mlm_head is None:
                return pooled, pooled.new_zeros(2)
            return pooled, self.mlm_losses(augmented)

        if self.caching and torch.is_grad_enabled():
            # the random state of a device is kept for the second pass only if an argument is on it
            pooled, sums = checkpoint(lambda _: run(), batch.ids, use_reentrant=False)
        else:
            pooled, sums = run()
        self.mlm_sums = self.mlm_sums + sums
        vectors: Tensor = pooled
        return vectors

    def mlm_losses(self, batch: Batch) -> Tensor:
        """Return the sum and the number of the masked-LM losses of a pass with the learned parts
        attached, (2,) (DCPCSE 3.3).
        """
        backbone = self.backbone
        head = self.mlm_head
        assert head is not None
        ids, selected = mask_tokens(batch, backbone.tokenizer, len(backbone.word_embeddings))
        places = np.flatnonzero(selected)
        masked = replace(
            batch, ids=to_device(ids.numpy(), backbone.device), ids_on_host=ids.numpy()
        )
        last = backbone.n_layers
        states = backbone.run(masked, Needs(layers=frozenset({last}))).layers[last]
        selected_states = states.flatten(0, 1)[to_device(places, backbone.device)]
        logits = head.to_logits(head.to_hidden(selected_states)).float()
        gold = to_device(batch.host_ids().ravel()[places], backbone.device)
        loss = functional.cross_entropy(logits, gold, reduction="sum")
        return torch.stack([loss, torch.full_like(loss, len(places))])

    def project(self, vectors: Tensor) -> Tensor:
        projected: Tensor = self.head(vectors)
        return projected.float()

    def bias(self, sides: TokenizedSides, bias_inputs: BiasInputs) -> Tensor:
        """Return h_hat for all rows, side after side, (sum n, d), with dropout and gradient.

        One pass per template over its empty inputs: sentences of one length share their bias
        (published code).
        """
        lengths: dict[TorchEncoder, set[int]] = {}  # of the sentences of each template
        for side in sides:
            lengths.setdefault(side.encoder, set()).update(side.lengths)
        passes: list[Tensor] = []
        row_of: dict[tuple[TorchEncoder, int], int] = {}
        for encoder, of_template in lengths.items():
            distinct = sorted(of_template)
            row_of |= {(encoder, length): n for n, length in enumerate(distinct, len(row_of))}
            inputs = bias_inputs(encoder.template, distinct, self.backbone)
            passes.append(self._pass(encoder, inputs))
        rows = [row_of[side.encoder, length] for side in sides for length in side.lengths]
        return torch.cat(passes)[to_device(np.array(rows), self.backbone.device)]

    def start_batch(self) -> None:
        """Forget the masked-LM losses of the batch before."""
        self.mlm_sums = torch.zeros(2, device=self.backbone.device)

    def masked_lm_loss(self, step: int, predictions: Tensor) -> Tensor:
        """Return the weighted masked-LM loss of the last batch (DCPCSE 3.3).

        It is the sum over this process's passes, divided by the ``predictions`` of all processes.
        """
        weight = self.settings.mlm_weight * self.method.mlm_decay ** (step / _DECAY_STEPS)
        total, _ = self.mlm_sums
        loss: Tensor = weight * total / predictions.clamp(min=1)
        return loss

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the learned tensors by their names in the state of a run."""
        trainable = dict(self.learned)
        modules: dict[str, nn.Module | None] = {
            "projection": self.head,
            "objective": self.objective,
            "mlm": self.mlm_head,
            TUNED.rstrip("."): self.model,
        }
        for prefix, module in modules.items():
            for name, parameter in module.named_parameters() if module is not None else ():
                if parameter.requires_grad:
                    trainable[f"{prefix}.{name}"] = parameter
        return trainable

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the tensors to save: the prompt's, the head's if it is kept, and the
        weights of a tuned backbone or an adapter.
        """
        tensors = self._outside_the_backbone()
        for name, tensor in self._weights_of_the_backbone().items():
            tensors[f"{TUNED}{name}"] = tensor
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def _outside_the_backbone(self) -> dict[str, Tensor]:
        """Return the learned tensors of prompt and pooling, and of the head if it is kept."""
        tensors = dict(self.learned)
        if self.settings.keep_head:
            for name, parameter in self.head.named_parameters():
                tensors[f"projection.{name}"] = parameter
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _weights_of_the_backbone(self) -> dict[str, Tensor]:
        """Return the learned weights of a tuned backbone, or of an adapter."""
        parameters = dict(self.model.named_parameters())
        learning = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
        if self.settings.lora is not None:
            return {**learning, ALPHA: torch.tensor(float(self.settings.lora.alpha))}
        if not learning:
            return {}
        frozen_names = parameters.keys() - learning.keys()
        weights = self.model.state_dict()
        return {name: tensor for name, tensor in weights.items() if name not in frozen_names}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a model's or a checkpoint's tensors into the learned tensors of equal name and
        shape.
        """
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                if name in tensors and tensors[name].shape == parameter.shape:
                    parameter.copy_(tensors[name])

    def load_encoder(self, tensors: Mapping[str, Tensor]) -> TorchEncoder:
        """Return the encoder of a checkpoint, whose tensors are copied."""
        self.load(tensors)
        self.eval()
        return self.as_encoder()

    def as_encoder(self, *, for_development: bool = False) -> TorchEncoder:
        """Return an encoder that shares the current weights: the encoder at test, or
        ``for_development`` that of the development score (``ConfiguredMethod.development_recipe``).
        """
        configured = self.configured
        recipe = configured.development_recipe if for_development else configured.recipe
        return TorchEncoder(recipe, self.backbone, self._outside_the_backbone())


def _make_dense(parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def _head(kind: str | None, backbone: Backbone, generator: torch.Generator) -> nn.Module:
    if kind is None:
        return nn.Identity()
    context = BuildContext(parse_transform(f"projection:{kind}"), backbone, {})
    head = PROJECTIONS[kind](context)
    start = start_projection(kind, context, generator)
    head.load_state_dict({name.partition(".")[2]: tensor for name, tensor in start.items()})
    return head.to(backbone.device).requires_grad_(True)


def _mask_slots(sides: TokenizedSides) -> np.ndarray:
    """Return the mask positions (sum n, k) in all rows, side after side.

    A template with fewer masks than another repeats its last position. A template without a mask
    has 0, which is never read.
    """
    of_sides = [side.encoder.template.mask_positions(side.ids.lengths) for side in sides]
    max_masks = max(slots.shape[1] for slots in of_sides)
    padded = []
    for slots in of_sides:
        missing = ((0, 0), (0, max_masks - slots.shape[1]))
        padded.append(np.pad(slots, missing, mode="edge" if slots.size else "constant"))
    return np.concatenate(padded)


def group_by_length(lengths: np.ndarray, tokens: int) -> Iterator[np.ndarray]:
    """Yield row numbers in groups of similar length, by the lengths (n,), with little padding.

    Each group has at most ``tokens`` tokens, padding included, or a single row. ``plan_batches`` is
    not used: rows are read once and shapes do not recur, so a pass holds as many rows as fit.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end, longest in enumerate(lengths[order].tolist()):
        if end > start and (end + 1 - start) * longest > tokens:
            yield order[start:end]
            start = end
    yield order[start:]


def mask_tokens(batch: Batch, tokens: PieceTokenizer, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return ids (n, t) of which 15% are to be predicted, and which these are, (n, t) bool.

    Special tokens and [UNK] are never selected, as in transformers. 80% of the selected tokens
    become the mask, 10% a random token of the whole vocabulary, and 10% stay. The draws are made on
    the CPU, so the number of selected tokens is known without waiting for a GPU.
    """
    before = torch.from_numpy(batch.host_ids())
    is_real = np.arange(before.size(1)) < batch.host_lengths()[:, None]
    specials = torch.tensor(sorted(tokens.specials))
    is_word = torch.from_numpy(is_real) & ~torch.isin(before, specials)
    draw = torch.rand(before.shape)
    selected = is_word & (draw < _PREDICTED_SHARE)
    share = draw / _PREDICTED_SHARE  # uniform among the selected tokens
    random = torch.randint_like(before, vocabulary)
    assert tokens.mask is not None
    ids = torch.where(selected & (share < MASKED_SHARE), tokens.mask, before)
    ids = torch.where(selected & (share >= 1 - RANDOM_SHARE), random, ids)
    return ids, selected
