"""IS-BERT (Zhang et al., 2020): convolutions over token states, and mutual information of sentence
and tokens.
"""

from dataclasses import dataclass

from promptcli.training.methods.method import Method, TrainingSettings, Variant, setting


@dataclass(frozen=True)
class ISBERTSettings(TrainingSettings):
    """Settings of IS-BERT."""

    activation: str = setting(
        "relu",
        "Activation after the convolutions: relu, or linear as in the code.",
        choices=("relu", "linear"),
        published="linear",
    )

    def pooling(self, default: str) -> str:
        return f"{default}:{self.activation}"


_PAPER = ISBERTSettings(
    batch_size=32, learning_rate=2e-6, eval_steps=1000, max_length=128, warmup=0.1
)

ISBERT = Method(
    name="isbert",
    source=(
        "IS-BERT: kernels 1, 3 and 5 over token states, mutual information of sentence and tokens"
    ),
    pooling="last/cnn",
    needs_pooling="last/cnn",
    learns=("backbone", "pooling"),
    variants={"*": Variant(head=None)},
    objective="mutual-information",
    mini_bert_settings=_PAPER.replace(learning_rate=1e-4, eval_steps=100, max_length=64),
    paper=dict.fromkeys(("bert-base-uncased", "roberta-base"), _PAPER),
)
