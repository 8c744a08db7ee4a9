"""T5 as a gap filler that generates templates: it predicts the next token for many examples at
once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import T5ForConditionalGeneration

from promptcli.backbones.checking import check_loaded, check_model
from promptcli.backbones.model_folder import locate
from promptcli.backbones.transformers_loading import load_model, load_tokenizer, opening
from promptcli.errors import UsageError

_EXAMPLES_PER_PASS = 256
_BLANK = "\N{LOWER ONE EIGHTH BLOCK}"  # how the vocabulary writes the space before a word


class T5:
    """A T5 with its tokenizer, in eval mode."""

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id  #: id of ``</s>``
        #: v, the width of the logits, which may exceed the vocabulary
        self.size: int = model.config.vocab_size
        self._specials = set(tokenizer.all_special_ids)
        names = [f"<extra_id_{number}>" for number in range(3)]
        #: ids of the tokens that mark a gap
        self.sentinels: list[int] = tokenizer.convert_tokens_to_ids(names)
        for mark, token in zip(names, self.sentinels, strict=True):
            if token not in range(self.size) or token == tokenizer.unk_token_id:
                raise UsageError(f"T5 {name!r} has no token {mark}, which marks a gap to fill")
        # only the last position's logits are read, so the decoder's other states are cut
        model.lm_head.register_forward_pre_hook(lambda module, inputs: (inputs[0][:, -1:],))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without ``</s>``."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids, leading space included."""
        return "".join(self._tokenizer.convert_ids_to_tokens(list(ids))).replace(_BLANK, " ")

    def words(self) -> dict[int, str]:
        """Return id -> text of the vocabulary, without special tokens and unused rows."""
        ids = list(range(min(self.size, len(self._tokenizer))))
        texts = {}
        for number, token in zip(ids, self._tokenizer.convert_ids_to_tokens(ids), strict=True):
            if token is None or number in self._specials or token.startswith("<extra_id_"):
                continue
            texts[number] = token.replace(_BLANK, " ")
        return texts

    @torch.inference_mode()
    def read(self, inputs: Sequence[Sequence[int]]) -> list[tuple[Tensor, Tensor]]:
        """Return the encoder's states (k, t, d) and the mask of real tokens (k, t), for each block
        of k inputs.
        """
        blocks = []
        for start in range(0, len(inputs), _EXAMPLES_PER_PASS):
            rows = [torch.tensor(ids) for ids in inputs[start : start + _EXAMPLES_PER_PASS]]
            real = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            padded = pad_sequence(rows, batch_first=True).to(self._model.device)
            real = real.to(self._model.device)
            encoded = self._model.encoder(input_ids=padded, attention_mask=real)
            blocks.append((encoded.last_hidden_state, real))
        return blocks

    @torch.inference_mode()
    def next_logits(self, blocks: list[tuple[Tensor, Tensor]], decoded: Sequence[int]) -> Tensor:
        """Return the logits (n, v) float32 of the token that follows the ids ``decoded``, for the
        blocks that ``read`` returned.
        """
        start = self._model.config.decoder_start_token_id
        prefix = torch.tensor([[start, *decoded]], device=self._model.device)
        logits = [
            self._model(
                encoder_outputs=(states,),
                attention_mask=real,
                decoder_input_ids=prefix.expand(len(states), -1),
                use_cache=False,
            ).logits[:, -1]
            for states, real in blocks
        ]
        return torch.cat(logits).float()


def load_t5(name: str, *, device: str = "cpu") -> T5:
    """Load a T5 from a local folder or by a hub id, with or without ``@revision``."""
    folder = locate(name)
    with opening(folder):
        family = folder.config.get("model_type")
        if family != "t5":
            raise UsageError(
                f"{name!r} is of family {family!r}, not a T5; give e.g. google/t5-v1_1-base, or a"
                " folder"
            )
        check_model(folder)
        tokenizer = load_tokenizer(folder.path)
        model, info = load_model(T5ForConditionalGeneration, folder.path)
        check_loaded(folder, model, info)
        return T5(model.to(device), tokenizer, name)
