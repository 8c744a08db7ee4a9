"""OptiPrompt (PromptBERT, section 4.2) and SCPCSE (DCPCSE, ablation): a template's words as learned vectors."""

from promptcli.training.methods.method import Method, TrainingSettings, Variant

_TEMPLATE = 'This sentence : "[X]" means [MASK] .'


def _soft(name: str, source: str, head: str, paper: TrainingSettings, reads: tuple[str, ...]) -> Method:
    return Method(
        name=name,
        source=source,
        pooling="last/mask",
        learns=("prompt",),
        variants={"*": Variant((_TEMPLATE, _TEMPLATE), learned="soft-template{lookup}:", head=head)},
        counts_specials=False,
        reads=reads,
        small=TrainingSettings(batch_size=128, learning_rate=1e-3, eval_steps=25),
        paper={"bert-base-uncased": paper},
    )


OPTIPROMPT = _soft(
    "optiprompt",
    "PromptBERT 4.2: soft template and MLM transform, backbone frozen",
    "mlm",
    TrainingSettings(batch_size=256, learning_rate=3e-5, epochs=5, eval_steps=1000),
    ("template", "slots", "selection"),
)
SCPCSE = _soft(
    "scpcse",
    "DCPCSE's ablation: input vectors only, backbone frozen",
    "tanh",
    TrainingSettings(batch_size=256, learning_rate=1e-3, epochs=5),
    ("template",),
)
