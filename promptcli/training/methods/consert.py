"""ConSERT (Yan et al., 2021): two augmentations of the embedding layer as two views.

Their loss is used alone, or together with NLI classification.
"""

from dataclasses import dataclass, replace

from promptcli.training.methods.method import ContrastiveSettings, Method, Variant, setting

#: Augmentations of the embedding layer (``training.objectives.consert``), and the one that needs
#: labels.
AUGMENTATIONS = ("none", "shuffle", "token-cutoff", "feature-cutoff", "dropout")
ADVERSARIAL = "adversarial"


@dataclass(frozen=True)
class AugmentationSettings(ContrastiveSettings):
    """Settings of ConSERT, whose views are augmentations of the embedding layer."""

    temperature: float = setting(0.1, "Temperature of the contrastive loss.", min=1e-4)
    augment_first: str = setting(
        "feature-cutoff",
        f"Augmentation of the first view: {', '.join(AUGMENTATIONS)}; with labelled pairs also"
        f" {ADVERSARIAL}.",
        choices=AUGMENTATIONS,
    )
    augment_second: str = setting(
        "shuffle", "Augmentation of the second view; the same choices.", choices=AUGMENTATIONS
    )
    cutoff_rate: float = setting(
        0.2, "Share of tokens, features or single values set to 0.", min=0, max=0.99
    )

    @property
    def augmentations(self) -> tuple[str, str]:
        return self.augment_first, self.augment_second


@dataclass(frozen=True)
class JointSettings(AugmentationSettings):
    """Settings of ConSERT's joint form, with labelled pairs."""

    augment_first: str = setting("none", "see above", choices=(*AUGMENTATIONS, ADVERSARIAL))
    augment_second: str = setting(
        "token-cutoff", "see above", choices=(*AUGMENTATIONS, ADVERSARIAL)
    )
    contrastive_weight: float = setting(
        0.15, "Weight of the contrastive loss beside the classifier's.", min=0
    )
    perturbation: float = setting(1.0, "Length of the adversarial step of a token.", min=0)


#: The optimiser and early stop of sentence-transformers at the time.
_PROGRAM = {"optimizer": "adamw-uncorrected", "patience": 10, "weight_decay": 0.01}
#: The paper's best pair; backbone dropout would be a third augmentation.
_UNSUPERVISED = AugmentationSettings(
    batch_size=96,
    learning_rate=5e-7,
    epochs=10,
    eval_steps=200,
    max_length=64,
    dropout=0.0,
    warmup=0.1,
)
#: The large models' runs shuffle one view; the other is unchanged.
_LARGE = _UNSUPERVISED.replace(epochs=25, augment_first="none", augment_second="shuffle")
_JOINT = JointSettings(
    batch_size=96,
    learning_rate=2e-5,
    eval_steps=200,
    max_length=64,
    warmup=0.1,
    weight_decay=0.01,
    cutoff_rate=0.1,
)

UNSUPERVISED = Method(
    name="consert",
    source="ConSERT, unsupervised: token shuffling and feature cutoff as two views, NT-Xent",
    pooling="last-two/avg",
    training_pooling="last/avg",
    variants={"*": Variant(head=None)},
    objective="nt-xent",
    program_settings=_PROGRAM,
    mini_bert_settings=_UNSUPERVISED.replace(learning_rate=1e-4, epochs=1, eval_steps=50),
    paper={
        **dict.fromkeys(("bert-base-uncased", "roberta-base"), _UNSUPERVISED),
        **dict.fromkeys(("bert-large-uncased", "roberta-large"), _LARGE),
    },
)

JOINT = replace(
    UNSUPERVISED,
    source=(
        "ConSERT, joint: softmax over [u; v; |u - v|; max(u, v)^2] of labelled pairs and 0.15"
        " NT-Xent"
    ),
    learns=("backbone", "classifier"),
    objective="nt-xent-joint",
    mini_bert_settings=_JOINT.replace(learning_rate=1e-4, eval_steps=50),
    paper=dict.fromkeys(
        ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large"), _JOINT
    ),
)
