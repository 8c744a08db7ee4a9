"""A BERT to be pre-trained by masked-language modelling, with logits at the masked tokens only."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_model import LanguageModel
from promptcli.backbones.masked_lm_pass import Chunks, head_states, hidden_states
from promptcli.backbones.vocabulary import PAD


class MaskedLM(LanguageModel):
    """A BERT with its masked-LM head, in training."""

    def __init__(self, *, tied: bool, **options: Any) -> None:
        super().__init__(tied=tied, **options)
        if not tied:
            del self.parameters["cls.predictions.bias"]  # the untied decoder has a bias of its own

    def _build(self, **shape: Any) -> Any:
        config: Any = BertConfig(intermediate_size=4 * shape["hidden_size"], pad_token_id=PAD, **shape)
        return cast(Any, BertForMaskedLM(config))

    @property
    def position_rows(self) -> nn.Parameter | None:
        """See the base class."""
        rows: nn.Parameter = self._model.bert.embeddings.position_embeddings.weight
        return rows

    def matrix_work(self, tokens: int, predicted: int) -> int:
        """See the base class."""
        config: BertConfig = self._model.config
        layer = 12 * config.hidden_size**2
        head = config.hidden_size * (config.hidden_size + config.vocab_size)
        return 6 * (tokens * layer * config.num_hidden_layers + predicted * head)

    def _states(self, ids: Tensor, real: Tensor, begins: Tensor, places: Tensor, drop: Dropout) -> Tensor:
        positions = begins[:, None] + torch.arange(ids.shape[1], device=ids.device)
        positions = torch.where(real, positions, 0)
        chunks = Chunks(ids, positions, None if bool(real.all()) else real)
        states = hidden_states(self._model.bert, chunks, places, self._dtype, drop)
        return head_states(self._model.cls.predictions.transform, states)
