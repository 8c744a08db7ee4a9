"""``single-pass``: InfoNCE of two states of one pass, at the ends of both stages of a template (CSE-SFP)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from promptcli.backbones.states import Batch, HiddenStates
from promptcli.data.dialect import SENTENCES
from promptcli.encoder.prompts.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import SLOT
from promptcli.training.methods.csesfp import CSESFPSettings
from promptcli.training.objectives.contrastive import Contrastive
from promptcli.training.objectives.objective import Columns
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder


class SinglePass(Contrastive[CSESFPSettings]):
    """The second stage ends with the template; the first one before the comma that parts them."""

    layouts = (SENTENCES,)

    def __init__(self, settings: CSESFPSettings, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().__init__(settings, encoder, generator)
        template = encoder.views[0].template
        before, after = template.text.split(SLOT)
        first, comma, _ = after.partition(",")
        stage = Template(f"{before}{SLOT}{first}", encoder.backbone.tokenizer)
        if not comma or template.right[: len(stage.right)] != stage.right:
            example = "'[X] means in one word, it can be summarized as'"
            raise UsageError(f"template {template.text!r} does not have two stages parted by a comma: {example}")
        self._distance = len(template.right) - len(stage.right)  #: tokens from one end to the other

    def sides(self, columns: Columns) -> list[tuple[int, Sequence[str]]]:
        return [(0, columns[0])]

    def views(self, encoder: TrainableEncoder, sides: Sequence[TokenizedView], columns: Columns) -> tuple[Tensor, ...]:
        """Return the states at the end of the second stage, which is read at test, and of the first, (n, d) each."""
        states = encoder.views[0].pooling.states

        def read(batch: Batch, hidden: HiddenStates) -> Tensor:
            rows, last = torch.arange(len(batch.ids), device=batch.ids.device), batch.lengths - 1
            return torch.stack([states.read(hidden)[rows, last - back] for back in (0, self._distance)], dim=1)

        return encoder.hidden(sides, read=read).unbind(1)
