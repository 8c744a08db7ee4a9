"""OptiPrompt (PromptBERT, section 4.2) and SCPCSE (DCPCSE, ablation): learned vectors in place of a
template's words.
"""

from dataclasses import dataclass, replace

from promptcli.recipe import RECIPES
from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    TemplateSettings,
    Variant,
    setting,
)
from promptcli.training.methods.promptbert import SelectionSettings

_TEMPLATE = 'This sentence : "[X]" means [MASK] .'
_READ_AT_THE_END = RECIPES["prompteol"]
#: Not from a paper; learned tokens after the text of a frozen causal model are known from
#: LLM2Vec-Gen (arXiv 2603.10913) and from soft prompts for text encoders (RepL4NLP 2025).
_CAUSAL = Variant((_READ_AT_THE_END.prompt,), head=None, pooling=_READ_AT_THE_END.pooling)


@dataclass(frozen=True)
class SCPCSESettings(TemplateSettings, ContrastiveSettings):
    """Settings of SCPCSE."""

    def prompt(self, template: str) -> str:
        return f"soft-template:{template}"


@dataclass(frozen=True)
class OptiPromptSettings(SelectionSettings, SCPCSESettings):
    """Settings of OptiPrompt."""

    slots: str = setting(
        "position",
        "Place of the learned vectors: position, or lookup of the words in the input, as in the"
        " code.",
        choices=("position", "lookup"),
        published="lookup",
    )

    def prompt(self, template: str) -> str:
        return f"soft-template{'-lookup' if self.slots == 'lookup' else ''}:{template}"


OPTIPROMPT = Method(
    name="optiprompt",
    source="PromptBERT 4.2: soft template and MLM transform, backbone frozen",
    pooling="last/mask",
    learns=("prompt",),
    variants={"*": Variant((_TEMPLATE,), head="mlm"), "causal": _CAUSAL},
    counts_specials=False,
    mini_bert_settings=OptiPromptSettings(batch_size=128, learning_rate=1e-3, eval_steps=25),
    paper={
        "bert-base-uncased": OptiPromptSettings(
            batch_size=256, learning_rate=3e-5, epochs=5, eval_steps=1000
        )
    },
)

SUPERVISED = replace(
    OPTIPROMPT,
    source="the same learned from pairs or triplets, which no paper has",
    paper={},
)

SCPCSE = replace(
    OPTIPROMPT,
    name="scpcse",
    source="DCPCSE's ablation: input vectors only, backbone frozen",
    variants={"*": Variant((_TEMPLATE,))},
    mini_bert_settings=SCPCSESettings(batch_size=128, learning_rate=1e-3, eval_steps=25),
    paper={"bert-base-uncased": SCPCSESettings(batch_size=256, learning_rate=1e-3, epochs=5)},
)
