"""Backbone: one loaded language model, with one interface for every family."""

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli.backbones.attention_hook import (
    AttentionHook,
    EndOfPass,
    Injected,
    Recorded,
    allow_prepending,
    hook_fault,
    register_attention,
    without_dropout,
)
from promptcli.backbones.bert import BertModel
from promptcli.backbones.devices import tf32_products
from promptcli.backbones.families import FAMILIES, Family
from promptcli.backbones.head import MLMHead, load_causal_head, load_masked_lm
from promptcli.backbones.kernels import at_positions, install_fast_dropout
from promptcli.backbones.lora import is_lora, merge_lora
from promptcli.backbones.model_folder import Provenance, own_tokenizer
from promptcli.backbones.states import (
    LAST,
    Batch,
    HiddenStates,
    Needs,
    SharedTokens,
    slot_positions,
    without_shared,
)
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.backbones.transformers_loading import load_tokenizer
from promptcli.errors import UsageError
from promptcli.extensions import Extension

#: Type of device -> options of torch.compile. A CPU's passes have many shapes. A GPU's have few,
#: and each is recorded as a CUDA graph, which starts all its kernels at once.
COMPILE_OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {"dynamic": True},
    "cuda": {"mode": "reduce-overhead"},
}


class Backbone:
    """A pre-trained language model and its tokenizer."""

    is_word_table = False  #: whether it has no layers, only word vectors
    tf32 = False  #: whether a GPU may round the operands of its products to TF32
    merged = False  #: whether an adapter from another folder was added to its weights
    _takes_hook = False
    _is_own_bert = False  #: whether the model is our own BERT
    #: The compiled model, with the same weights; None if it is not compiled.
    _compiled: Callable[..., Any] | None = None

    def __init__(
        self,
        *,
        model: Any,
        tokenizer: PieceTokenizer,
        provenance: Provenance,
        folder: Path,
        tensor_names: frozenset[str],
    ) -> None:
        self.model = model  #: of transformers, or our own BERT
        self.tokenizer = tokenizer
        self.provenance = provenance
        self.folder = folder  #: where its files are
        self.tensor_names = tensor_names  #: of the checkpoint
        family: Family = FAMILIES[provenance.family]
        self.family = family
        config = model.config
        self.width: int = config.hidden_size  #: d
        #: width of the last hidden states: OPT-350M projects them
        self.last_width: int = getattr(config, "word_embed_proj_dim", self.width)
        self.n_layers: int = config.num_hidden_layers  #: L
        self.n_heads: int = config.num_attention_heads  #: h
        #: h', heads of keys and values: fewer than h if queries share them
        self.n_key_heads: int = getattr(config, "num_key_value_heads", None) or self.n_heads
        #: d/h; Qwen3 and Gemma choose it freely
        self.head_width: int = getattr(config, "head_dim", None) or self.width // self.n_heads
        self.causal: bool = family.causal  #: a token sees only earlier tokens
        self._is_own_bert = isinstance(model, BertModel)
        self._takes_hook = family.hook or self._is_own_bert
        self._pad_id: int = config.pad_token_id or 0
        self._first_position = self._pad_id + 1 if family.pads_before_positions else 0
        #: longest input in tokens, special tokens included
        self.max_tokens: int = config.max_position_embeddings - self._first_position
        if family.causal:
            allow_prepending(model.get_submodule(family.layers))

    @property
    def extension(self) -> Extension | None:
        """The package that brings its family; None for a family of promptcli."""
        return FAMILIES.extension(self.provenance.family)

    @property
    def name(self) -> str:
        return self.provenance.backbone

    @property
    def device(self) -> torch.device:
        return self.word_embeddings.device

    @property
    def dtype(self) -> torch.dtype:
        return self.word_embeddings.dtype

    @property
    def runs_in_threads(self) -> bool:
        """Whether several threads at once gain speed; they do with our own BERT on a CPU."""
        return self._is_own_bert and self.device.type == "cpu"

    @property
    def word_embeddings(self) -> Tensor:
        """The word-embedding matrix, (v, d) (d may be smaller than the width: ALBERT, small
        ELECTRA).
        """
        rows: Tensor = self.model.get_input_embeddings().weight
        return rows

    def to(self, device: torch.device) -> "Backbone":
        copied = copy.copy(self)
        copied.model = copy.deepcopy(self.model).to(device)
        copied._compiled = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("head", "pooler", "_hook_fault", "_reads_positions", "_compiled")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._takes_hook and not self._is_own_bert:
            register_attention()  # a new process has not registered it

    def tokenizer_of_transformers(self) -> Any:
        return load_tokenizer(own_tokenizer(self.folder))

    def tune(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace pre-trained weights by tuned ones, or add an adapter to them."""
        if is_lora(tensors):
            merge_lora("the adapter", self.model, tensors)
            return
        shapes = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        if any(shapes.get(name) != tensor.shape for name, tensor in tensors.items()):
            raise UsageError(
                f"the tuned weights do not fit backbone {self.name!r}; give the backbone on which"
                " they were trained"
            )
        self.model.load_state_dict(dict(tensors), strict=False)

    def set_dropout(self, probability: float) -> None:
        """Set every dropout of the model, also those that its configuration turns off (ALBERT,
        ModernBERT).
        """
        install_fast_dropout(self.model)
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability
            for name in ("attention_dropout", "dropout_prob", "dropout"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, probability)

    def compile(self, *, on: bool = True) -> None:
        """Turn torch.compile on or off for passes in training mode; passes with changed embeddings
        are never compiled.
        """
        options = COMPILE_OPTIONS.get(self.device.type, {})
        self._compiled = torch.compile(self.model, **options) if on else None

    def run(self, batch: Batch, needs: Needs) -> HiddenStates:
        """Compute only the needed outputs of a batch.

        Layer L of a causal backbone is transformers' last hidden state, after the final norm;
        earlier layers come without a norm.
        """
        batch = without_shared(batch)
        static = output_embeddings = None
        if needs.static:
            static = self.embeddings(batch).float()
        if needs.output_embeddings:
            output_embeddings = self.head.output_embeddings[batch.ids].float()
        attention = needs.diagonals | needs.matrices | needs.attention_outputs | needs.values
        attention |= {layer for layer, _ in needs.attention_rows}
        if not needs.layers and not attention:
            return HiddenStates(static=static, output_embeddings=output_embeddings)
        slot = _only_slot(needs)
        recorded = Recorded(
            needs,
            {row_slot: slot_positions(batch, row_slot) for _, row_slot in needs.attention_rows},
            only_at=None if slot is None else slot_positions(batch, slot),
            last_layer=None if needs.layers else max(attention),
        )
        output = self._pass(batch, recorded)
        if attention - recorded.layers:
            self.require_hook("Ditto" if needs.diagonals else "an attention matrix")
        return HiddenStates(
            {layer: self._states(output, layer, recorded.only_at) for layer in needs.layers},
            static,
            output_embeddings,
            recorded.diagonals,
            recorded.matrices,
            recorded.attention_rows,
            {
                layer: self.projection(layer)(mixture).float()
                for layer, mixture in recorded.mixtures.items()
            },
            {layer: values.float() for layer, values in recorded.values.items()},
            slot=slot,
        )

    def _states(self, output: Any, layer: int, only_at: Tensor | None) -> Tensor:
        """Return a layer's states (n, t, d) float32, or (n, 1, d) at one position (n,) of each
        input.
        """
        states: Tensor = output.last_hidden_state
        if layer != self.n_layers:
            states = output.hidden_states[layer]
        if states.size(1) > 1:  # our own BERT computes its last layer at that position only
            states = at_positions(states, only_at)
        return states.float()

    def mixture(self, batch: Batch, layer: int) -> Tensor:
        """Return the heads' mixtures (n, h d/h) at the last token of a layer (0-based); no later
        layer runs.
        """
        batch = without_shared(batch)
        needs = Needs(attention_outputs=frozenset({layer}))
        recorded = Recorded(needs, only_at=slot_positions(batch, LAST), last_layer=layer)
        self._pass(batch, recorded)
        return recorded.mixtures[layer].squeeze(1)

    def _pass(self, batch: Batch, recorded: Recorded) -> Any:
        """Run the model on a batch without shared tokens; None if the hook ended the pass early."""
        needs = recorded.needs
        options: dict[str, Any] = {}
        if self._takes_hook:
            injected = Injected(
                batch.prefix,
                batch.prepending,
                batch.contrast,
                batch.rerouting,
                slot_positions(batch, LAST),
            )
            options["hook"] = AttentionHook(injected, recorded)
        reads_attention = needs.attention_outputs or needs.values
        if self._is_own_bert and needs.layers == {self.n_layers} and not reads_attention:
            options["only_at"] = recorded.only_at
        with contextlib.ExitStack() as stack, contextlib.suppress(EndOfPass):
            change = batch.augment
            if change is not None:
                stack.enter_context(
                    self._embedding_layer.register_forward_hook(
                        lambda module, inputs, embedded: change(embedded)
                    )
                )
            if self.tf32:
                stack.enter_context(tf32_products())
            arguments = self._arguments(batch)
            model = self.model
            if self._compiled is not None and model.training and change is None:
                model = self._compiled
                if batch.soft is None:  # looked up here, because sparse gradients do not compile
                    words = self.model.get_input_embeddings()
                    arguments["inputs_embeds"] = words(arguments.pop("input_ids"))
            return model(
                **arguments,
                output_hidden_states=not needs.layers <= {self.n_layers},
                **options,
            )
        return None

    def _arguments(self, batch: Batch) -> dict[str, Tensor | None]:
        """Return a batch as the model's arguments."""
        words = {"input_ids": batch.ids}
        if batch.soft is not None:
            embedded = self.embeddings(batch)
            # Gemma's own look-up multiplies the rows by it
            scale = getattr(self.model.get_input_embeddings(), "embed_scale", None)
            if scale is not None:
                embedded = embedded * scale.to(embedded)
            words = {"inputs_embeds": embedded}
        # Without an attention mask, transformers takes gaps in the positions of a causal model for
        # packed sequences; on a GPU the search for gaps would wait for the device.
        on_gpu = batch.ids.device.type == "cuda"
        may_have_gaps = self.causal and (batch.position_ids is not None or on_gpu)
        mask = batch.real().long() if batch.padded or may_have_gaps else None
        return {**words, "attention_mask": mask, "position_ids": self._positions(batch)}

    def embeddings(self, batch: Batch) -> Tensor:
        """Return the word embeddings (n, t, e), with learned vectors at their positions."""
        embedded = self.word_embeddings[batch.ids]
        if batch.soft is None:
            return embedded
        rows = torch.arange(batch.ids.size(0), device=batch.ids.device).unsqueeze(1)
        vectors = batch.soft.vectors.to(embedded.dtype).expand(len(rows), -1, -1)
        return embedded.index_put((rows, batch.soft.positions), vectors)

    def _positions(self, batch: Batch) -> Tensor:
        prefix_length = 0  # positions start after the prefix, as in DCPCSE's code and peft
        if batch.prefix is not None:
            prefix_length = batch.prefix[0][0].size(-2)
        positions = batch.position_ids
        if positions is not None:
            self.require_positions("this computation")
        elif self._has_typed_padding(batch):
            # RoBERTa does not count padding tokens
            is_counted = (batch.ids != self._pad_id).long()
            return (is_counted.cumsum(dim=1) + prefix_length) * is_counted + self._pad_id
        if positions is None:
            positions = torch.arange(batch.ids.size(1), device=batch.ids.device).unsqueeze(0)
        offset = 0 if batch.raw_positions else self._first_position
        return positions + prefix_length + offset

    def _has_typed_padding(self, batch: Batch) -> bool:
        """Return whether users' texts may contain the padding token, in a family that does not
        count it in positions.
        """
        if not self._first_position or batch.soft is not None:
            return False
        if batch.ids_on_host is None:
            return True
        padding_count = batch.ids_on_host.size - int(batch.host_lengths().sum())
        return int(np.count_nonzero(batch.ids_on_host == self._pad_id)) > padding_count

    def projection(self, layer: int) -> nn.Module:
        """Return the output projection of a layer's attention (0-based)."""
        if not self.family.projection:
            readable = ", ".join(name for name, other in FAMILIES.items() if other.projection)
            raise UsageError(
                f"family {self.provenance.family!r} does not open its attention's output; families"
                f" that do: {readable}"
            )
        module: nn.Module = self.model.get_submodule(self.family.projection.format(layer))
        return module

    def shared_tokens(self, ids: Sequence[int], needs: Needs, longest: int) -> SharedTokens | None:
        """Return the keys and values of the tokens that begin every input, if only the last token
        is read (causal).
        """
        reads_last = self.causal and _only_slot(needs) == LAST
        if not ids or not reads_last or not self.last_token_sees_first(longest):
            return None
        recorded = Recorded(keeps_keys_values=True)
        hook = AttentionHook(recorded=recorded)
        self.model(input_ids=torch.tensor([ids], device=self.device), hook=hook)
        return SharedTokens(len(ids), tuple(recorded.keys_values))

    def last_token_sees_first(self, longest: int) -> bool:
        """Return whether the last of n tokens attends to the first in every layer."""
        window = getattr(self.model.config, "sliding_window", None)
        return window is None or longest <= window

    @property
    def _embedding_layer(self) -> nn.Module:
        """The module that adds words, positions and types, LayerNorm included."""
        layer: nn.Module | None = getattr(self.model, "embeddings", None)
        if layer is None:
            raise UsageError(
                f"family {self.provenance.family!r} has no complete embedding layer; use e.g."
                " mini-bert"
            )
        return layer

    def freeze_embeddings(self) -> None:
        self._embedding_layer.requires_grad_(False)

    def require_hook(self, feature: str) -> None:
        """Raise UsageError, which names the feature, unless the attention hook reproduces the
        model's own attention.
        """
        if not self._takes_hook or self._hook_fault:
            reason = f": {self._hook_fault}" if self._takes_hook else ""
            others = ", ".join(name for name, family in FAMILIES.items() if family.opens)
            raise UsageError(
                f"{feature} needs the attention of the layers, which family"
                f" {self.provenance.family!r} of backbone {self.name!r} does not open{reason};"
                f" families that do: {others}"
            )

    def require_positions(self, feature: str) -> None:
        """Raise UsageError, which names the feature, unless the states depend on position ids."""
        if not self._reads_positions:
            raise UsageError(
                f"{feature} moves tokens to other positions, and backbone {self.name!r} of family"
                f" {self.provenance.family!r} ignores position ids; give another backbone, e.g."
                " mini-bert"
            )

    @functools.cached_property
    def _reads_positions(self) -> bool:
        """Whether the states of two tokens change if the tokens exchange their positions."""
        model = without_dropout(self.model)
        ids = torch.tensor([[0, 1]], device=self.device)
        positions = ids + self._first_position
        with torch.inference_mode():
            before, after = (
                model(input_ids=ids, attention_mask=None, position_ids=order).last_hidden_state
                for order in (positions, positions.flip(1))
            )
        return not torch.equal(before, after)

    @functools.cached_property
    def _hook_fault(self) -> str | None:
        return None if self._is_own_bert else hook_fault(self.model, self.n_layers)

    @functools.cached_property
    def head(self) -> MLMHead:
        """The pre-trained head: the masked-LM one, or a causal model's."""
        if self.causal:
            head = load_causal_head(
                self.folder, self.name, self.model.config, self.word_embeddings, self.tensor_names
            )
        else:
            _, head = load_masked_lm(
                self.folder,
                self.name,
                self.provenance.family,
                self.tensor_names,
                attn_implementation="eager",  # every family has it, and no layer is called
            )
        return head.eval().requires_grad_(False).to(self.device, self.dtype)

    def new_head(self) -> MLMHead:
        """Return a copy of the pre-trained MLM head, float32, to be trained."""
        return copy.deepcopy(self.head).float()

    def new_transform(self) -> nn.Module:
        """Return a copy of the pre-trained MLM transform T, float32, to be trained."""
        if self.causal:
            raise UsageError(
                f"backbone {self.name!r} is causal and has no masked-LM transform; use"
                " projection:tanh"
            )
        return copy.deepcopy(self.head.transform).float()

    @functools.cached_property
    def pooler(self) -> nn.Sequential:
        """The pre-trained pooler, (n, d) -> (n, d): tanh(W x + b)."""
        pooler = getattr(self.model, "pooler", None)
        if pooler is None:
            raise UsageError(
                f"backbone {self.name!r} has no pooler weights for `cls-pooler`; use `last/cls`"
            )
        return nn.Sequential(getattr(pooler, "dense", pooler), nn.Tanh())


def _only_slot(needs: Needs) -> int | None:
    """Return the slot of ``needs`` if nothing else of the tokens is read, else None."""
    reads_attention = needs.diagonals or needs.matrices or needs.attention_rows
    reads_embeddings = needs.static or needs.output_embeddings
    reads_tokens = needs.layers or needs.attention_outputs or needs.values
    if reads_tokens and not reads_attention and not reads_embeddings:
        return needs.slot
    return None
