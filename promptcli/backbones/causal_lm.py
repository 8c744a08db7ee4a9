"""A Llama to be pre-trained by next-token prediction."""

from typing import Any, cast

from torch import Tensor
from torch.func import functional_call
from transformers import LlamaConfig, LlamaForCausalLM

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_model import LanguageModel
from promptcli.backbones.vocabulary import CLS, PAD, SEP

_MULTIPLE = 32  # the inner width is one of these


class CausalLM(LanguageModel):
    """A Llama in training: rotary positions, so where a chunk begins does not matter; dropout of attention only."""

    side_by_side = False  # a call with other weights sets them in the model

    def _build(self, **shape: Any) -> Any:
        # three matrices of 8/3 d hold what two of 4 d do (Shazeer 2020)
        inner = -(-8 * shape["hidden_size"] // (3 * _MULTIPLE)) * _MULTIPLE
        config = LlamaConfig(
            intermediate_size=inner,
            pad_token_id=PAD,
            bos_token_id=CLS,
            eos_token_id=SEP,
            use_cache=False,
            **shape,
        )
        return cast(Any, LlamaForCausalLM(config))

    def matrix_work(self, tokens: int, predicted: int) -> int:
        """See the base class."""
        config: LlamaConfig = self._model.config
        layer = 4 * config.hidden_size**2 + 3 * config.hidden_size * config.intermediate_size
        return 6 * (tokens * layer * config.num_hidden_layers + predicted * config.hidden_size * config.vocab_size)

    def _states(self, ids: Tensor, real: Tensor, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
        """See the class; padding comes last, where no real token attends to it, so it needs no mask."""
        for layer in self._model.model.layers:
            layer.self_attn.attention_dropout = drop.probability
        # one cast a weight and step, where autocast casts around every operation
        weights = {name: weight.to(self._dtype) for name, weight in self._model.model.named_parameters()}
        output = functional_call(self._model.model, weights, (), {"input_ids": ids})
        states: Tensor = output.last_hidden_state
        return states.flatten(0, 1)[places]
