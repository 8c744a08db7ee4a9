"""DefSent (Tsukagoshi, Sasano and Takeda, 2021): a definition's vector predicts the word that it
defines.
"""

from dataclasses import dataclass

from promptcli.training.methods.method import Method, TrainingSettings, Variant, setting


@dataclass(frozen=True)
class DefSentSettings(TrainingSettings):
    """Settings of DefSent."""

    pool: str = setting(
        "",
        "Pooling of the last layer: avg, cls or max; default: avg, or that of the `start` model.",
        choices=("", "avg", "cls", "max"),
    )

    def pooling(self, default: str) -> str:
        if self.pool:
            return f"last/{self.pool}"
        return default


#: The mean, the paper's best pooling for BERT-base; [CLS] at half the rate.
_PAPER = DefSentSettings(
    batch_size=16, learning_rate=1.13e-5, eval_steps=500, max_length=128, warmup=0.1
)

DEFSENT = Method(
    name="defsent",
    source="DefSent: definition to word through the frozen masked-LM head, embedding layer frozen",
    pooling="last/avg",
    variants={"*": Variant(head=None)},
    objective="word-prediction",
    mini_bert_settings=_PAPER.replace(
        batch_size=32, learning_rate=1e-4, eval_steps=50, max_length=64
    ),
    paper=dict.fromkeys(("bert-base-uncased", "roberta-base"), _PAPER),
)
