"""SimCSE (Gao, Yao and Chen, 2021): the baseline of all figures."""

from dataclasses import dataclass, replace

from promptcli.training.methods.method import ContrastiveSettings, MaskedLMSettings, Method, Variant


@dataclass(frozen=True)
class SimCSESettings(MaskedLMSettings, ContrastiveSettings):
    """Settings of SimCSE."""


UNSUPERVISED = Method(
    name="simcse",
    source="SimCSE, unsupervised: two dropout views of [CLS]",
    pooling="last/cls",
    variants={"*": Variant(), "causal": Variant(pooling="last/last-token")},
    mini_bert_settings=SimCSESettings(batch_size=128, learning_rate=3e-4, eval_steps=25),
    paper={
        "bert-base-uncased": SimCSESettings(batch_size=64, learning_rate=3e-5),
        "bert-large-uncased": SimCSESettings(batch_size=64, learning_rate=1e-5),
        "roberta-base": SimCSESettings(batch_size=512, learning_rate=1e-5),
        "roberta-large": SimCSESettings(batch_size=512, learning_rate=3e-5),
    },
)

_SUPERVISED = SimCSESettings(keep_head=True, batch_size=512, learning_rate=5e-5, epochs=3)

SUPERVISED = replace(
    UNSUPERVISED,
    source="SimCSE, supervised: entailment pairs, contradictions as hard negatives",
    mini_bert_settings=SimCSESettings(
        keep_head=True, batch_size=128, learning_rate=6e-4, eval_steps=25
    ),
    paper={
        **dict.fromkeys(("bert-base-uncased", "roberta-base"), _SUPERVISED),
        **dict.fromkeys(
            ("bert-large-uncased", "roberta-large"), _SUPERVISED.replace(learning_rate=1e-5)
        ),
    },
)
