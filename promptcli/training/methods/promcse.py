"""PromCSE (Jiang, Zhang and Wang, 2022): DCPCSE, and with hard negatives an energy-based hinge."""

from dataclasses import replace

from promptcli.training.methods import dcpcse
from promptcli.training.methods.dcpcse import DCPCSESettings

_BERT = DCPCSESettings(
    keep_head=True,
    batch_size=256,
    learning_rate=1e-2,
    epochs=10,
    prefix_length=12,
    hinge_weight=10.0,
    hinge_margin=0.2,
)
_ROBERTA = _BERT.replace(batch_size=512, prefix_length=10)

UNSUPERVISED = replace(
    dcpcse.UNSUPERVISED,
    name="promcse",
    source="PromCSE, unsupervised: DCPCSE's prefixes and settings",
)

SUPERVISED = replace(
    dcpcse.SUPERVISED,
    name="promcse",
    source="PromCSE, supervised: DCPCSE's prefixes, and a hinge on the nearest negative",
    mini_bert_settings=_BERT.replace(
        batch_size=128, learning_rate=3e-3, eval_steps=25, prefix_length=4
    ),
    paper={
        "bert-base-uncased": _BERT,
        "roberta-base": _ROBERTA,
        "roberta-large": _ROBERTA.replace(learning_rate=5e-3),
    },
)
