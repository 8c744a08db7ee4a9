"""The method spreadcse: SimCSE with a penalty on the cosines of different sentences."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from promptcli.settings import setting
from promptcli.training.methods.method import ContrastiveSettings, Method, Variant
from promptcli.training.objectives.contrastive import InfoNCE


@dataclass(frozen=True)
class SpreadSettings(ContrastiveSettings):
    """The settings of SimCSE's loss, and the weight of the penalty."""

    spread: float = setting(0.1, "Weight of the mean cosine of different sentences.", min=0)


class Spread(InfoNCE[SpreadSettings]):
    """InfoNCE, plus ``spread`` times the mean cosine of different sentences."""

    def contrast(self, views, columns):
        loss = super().contrast(views, columns)
        first, second = (F.normalize(view, dim=-1) for view in views[:2])
        numbers = {text: number for number, text in enumerate(columns[0])}
        sentence = torch.tensor([numbers[text] for text in columns[0]], device=first.device)
        differs = sentence.unsqueeze(1) != sentence.unsqueeze(0)
        if differs.any():
            loss = loss + self.settings.spread * (first @ second.T)[differs].mean()
        return loss


SPREADCSE = Method(
    name="spreadcse",
    source="SimCSE with a penalty on the cosines of different sentences",
    pooling="last/cls",
    learns=("backbone",),
    variants={"*": Variant()},
    objective="spread",
    mini_bert_settings=SpreadSettings(batch_size=64, learning_rate=1e-4),
    paper={},
)
METHOD = (SPREADCSE, None)
