"""SimCSE (Gao, Yao and Chen, 2021): the baseline that every figure is compared with."""

from promptcli.training.methods.method import Method, TrainingSettings, Variant

_ANY = {"*": Variant()}

UNSUPERVISED = Method(
    name="simcse",
    source="SimCSE, unsupervised: two dropout views of [CLS]",
    pooling="last/cls",
    learns=("backbone",),
    variants=_ANY,
    reads=("mlm_weight", "mlm_head"),
    small=TrainingSettings(batch_size=128, learning_rate=3e-4, eval_steps=25),
    paper={
        "bert-base-uncased": TrainingSettings(batch_size=64, learning_rate=3e-5),
        "bert-large-uncased": TrainingSettings(batch_size=64, learning_rate=1e-5),
        "roberta-base": TrainingSettings(batch_size=512, learning_rate=1e-5),
        "roberta-large": TrainingSettings(batch_size=512, learning_rate=3e-5),
    },
)

SUPERVISED = Method(
    name="simcse",
    source="SimCSE, supervised: entailment pairs, contradictions as hard negatives",
    pooling="last/cls",
    learns=("backbone",),
    variants=_ANY,
    keeps_head=True,
    reads=("mlm_weight", "mlm_head"),
    small=TrainingSettings(batch_size=128, learning_rate=3e-4, eval_steps=25),
    paper={
        "bert-base-uncased": TrainingSettings(batch_size=512, learning_rate=5e-5, epochs=3),
        "roberta-base": TrainingSettings(batch_size=512, learning_rate=5e-5, epochs=3),
        "bert-large-uncased": TrainingSettings(batch_size=512, learning_rate=1e-5, epochs=3),
        "roberta-large": TrainingSettings(batch_size=512, learning_rate=1e-5, epochs=3),
    },
)
