"""DCPCSE (Jiang and Wang, 2022): deep continuous prefixes on a frozen backbone (tables 3 and 4: settings)."""

from promptcli.training.methods.method import Method, TrainingSettings, Variant

_PREFIX = {"*": Variant(("", ""), learned="deep-prefix:{p}")}

UNSUPERVISED = Method(
    name="dcpcse",
    source="DCPCSE, unsupervised: keys and values in front of every layer's, backbone frozen",
    pooling="last/cls",
    learns=("prompt",),
    variants=_PREFIX,
    reads=("prefix_length", "mlm_weight", "mlm_head"),
    mlm_decay=0.95,
    small=TrainingSettings(batch_size=128, learning_rate=3e-2, epochs=3, eval_steps=25, prefix_length=4),
    paper={
        "bert-base-uncased": TrainingSettings(batch_size=256, learning_rate=3e-2, prefix_length=16),
        "bert-large-uncased": TrainingSettings(batch_size=256, learning_rate=3e-2, prefix_length=10),
        "roberta-base": TrainingSettings(batch_size=64, learning_rate=3e-2, prefix_length=14, mlm_weight=0.1),
        "roberta-large": TrainingSettings(batch_size=64, learning_rate=1e-2, prefix_length=10, mlm_weight=0.1),
    },
)

SUPERVISED = Method(
    name="dcpcse",
    source="DCPCSE, supervised: hard negatives, head kept",
    pooling="last/cls",
    learns=("prompt",),
    variants=_PREFIX,
    keeps_head=True,
    reads=("prefix_length", "mlm_weight", "mlm_head"),
    mlm_decay=0.95,
    small=TrainingSettings(batch_size=128, learning_rate=3e-3, epochs=3, eval_steps=25, prefix_length=4),
    paper={
        "bert-base-uncased": TrainingSettings(batch_size=256, learning_rate=5e-3, epochs=10, prefix_length=12),
        "bert-large-uncased": TrainingSettings(batch_size=256, learning_rate=5e-3, epochs=10, prefix_length=12),
        "roberta-base": TrainingSettings(batch_size=256, learning_rate=1e-2, epochs=10, prefix_length=10),
        "roberta-large": TrainingSettings(batch_size=256, learning_rate=5e-3, epochs=10, prefix_length=10),
    },
)
