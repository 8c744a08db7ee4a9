"""SBERT (Reimers and Gurevych, 2019): a classifier of labelled pairs over [u; v; |u - v|], and
cosines of graded pairs.
"""

from dataclasses import asdict, dataclass, replace

from promptcli.training.methods.method import Method, TrainingSettings, Variant, setting


@dataclass(frozen=True)
class GradedSettings(TrainingSettings):
    """Settings of objectives of graded pairs."""

    loss: str = setting(
        "squared",
        "Loss of the cosines: squared (error), cosent (their order), angle (order by angles, AnglE)"
        " or pearson.",
        choices=("squared", "cosent", "angle", "pearson"),
    )
    scale: float = setting(20.0, "Scale tau of cosent and angle.", above=0)
    in_batch_weight: float = setting(
        30.0,
        "Weight of angle's in-batch negatives; pairs with the highest score are the positives.",
        min=0,
    )
    top_score: float = setting(
        0.0,
        "Divisor of the scores, the end of their scale; 0: the score farthest from 0.",
        min=0,
    )


_BACKBONES = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")
#: The paper's section 3.1 and the library's training_nli.py, on SNLI and MultiNLI together.
_PAPER = TrainingSettings(
    batch_size=16,
    learning_rate=2e-5,
    epochs=1,
    eval_steps=1000,
    max_length=128,
    weight_decay=0.01,
    warmup=0.1,
)

SBERT = Method(
    name="sbert",
    source="SBERT, classification objective: softmax over [u; v; |u - v|] of labelled pairs",
    pooling="last/avg",
    learns=("backbone", "classifier"),
    variants={"*": Variant(head=None)},
    objective="pair-classifier",
    # a larger rate, not searched, as for other methods that tune a narrow backbone
    mini_bert_settings=_PAPER.replace(batch_size=32, learning_rate=1e-4, eval_steps=100),
    paper=dict.fromkeys(_BACKBONES, _PAPER),
)

#: The paper's section 4.2 and the library's training_stsbenchmark.py, on STS-B's training pairs.
_REGRESSION = GradedSettings(**{**asdict(_PAPER), "epochs": 4})

REGRESSION = replace(
    SBERT,
    name="sbert-regression",
    source=(
        "SBERT, regression objective: cosine of graded pairs, squared error; after `sbert` by"
        " `start`"
    ),
    objective="pair-cosine",
    mini_bert_settings=_REGRESSION.replace(batch_size=32, learning_rate=1e-4, eval_steps=50),
    paper=dict.fromkeys(_BACKBONES, _REGRESSION),
)
