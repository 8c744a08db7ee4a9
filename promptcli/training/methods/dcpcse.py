"""DCPCSE (Jiang and Wang, 2022): deep continuous prefixes on a frozen backbone (tables 3 and 4:
settings).
"""

from dataclasses import dataclass, replace

from promptcli.training.methods.method import (
    ContrastiveSettings,
    MaskedLMSettings,
    Method,
    Variant,
    setting,
)


@dataclass(frozen=True)
class DCPCSESettings(MaskedLMSettings, ContrastiveSettings):
    """Settings of DCPCSE."""

    prefix_length: int = setting(16, "Length of the prefix.", min=1)

    def prompt(self, template: str) -> str:
        return f"deep-prefix:{self.prefix_length}"


_BERT = DCPCSESettings(batch_size=256, learning_rate=3e-2)
_ROBERTA = DCPCSESettings(batch_size=64, learning_rate=3e-2, prefix_length=14, mlm_weight=0.1)
_SUPERVISED = DCPCSESettings(
    keep_head=True, batch_size=256, learning_rate=5e-3, epochs=10, prefix_length=12
)

UNSUPERVISED = Method(
    name="dcpcse",
    source="DCPCSE, unsupervised: keys and values in front of every layer's, backbone frozen",
    pooling="last/cls",
    learns=("prompt",),
    variants={"*": Variant(), "causal": Variant(pooling="last/last-token")},
    mlm_decay=0.95,
    # longer random prefixes start worse than none and do not recover within a minute
    mini_bert_settings=DCPCSESettings(
        batch_size=128, learning_rate=3e-2, epochs=2, eval_steps=25, prefix_length=1
    ),
    paper={
        "bert-base-uncased": _BERT,
        "bert-large-uncased": _BERT.replace(prefix_length=10),
        "roberta-base": _ROBERTA,
        "roberta-large": _ROBERTA.replace(learning_rate=1e-2, prefix_length=10),
    },
)

SUPERVISED = replace(
    UNSUPERVISED,
    source="DCPCSE, supervised: hard negatives, head kept",
    mini_bert_settings=_SUPERVISED.replace(
        batch_size=128, learning_rate=3e-3, eval_steps=25, prefix_length=4
    ),
    paper={
        "bert-base-uncased": _SUPERVISED,
        "bert-large-uncased": _SUPERVISED,
        "roberta-base": _SUPERVISED.replace(learning_rate=1e-2, prefix_length=10),
        "roberta-large": _SUPERVISED.replace(prefix_length=10),
    },
)
