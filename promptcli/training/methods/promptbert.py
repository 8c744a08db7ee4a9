"""PromptBERT (Jiang et al., 2022): two templates as two views, template denoising (section 4.3;
appendix B).
"""

from dataclasses import dataclass, replace

from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    Templates,
    TemplateSettings,
    TrainingSettings,
    Variant,
    setting,
)

_OF = 'This sentence of "[X]" means [MASK] .'
_COLON = 'This sentence : "[X]" means [MASK] .'
#: RoBERTa's quotes have spaces inside, and the mask touches the period, as in the published code.
_THIS = "This sentence : ' [X] ' means[MASK]."
_THE = "The sentence : ' [X] ' means[MASK]."
ROBERTA_FAMILIES = ("roberta", "xlm-roberta", "camembert")
_BACKBONES = ("bert-base-uncased", "roberta-base")


@dataclass(frozen=True)
class QuoteSettings(TrainingSettings):
    """Settings of methods whose published code leaves out RoBERTa's space before the sentence in
    training.
    """

    sentence_blank: str = setting(
        "kept",
        "RoBERTa's space between quote and sentence in training: kept, or left out as in the code.",
        choices=("kept", "code"),
        published="code",
    )

    def training_template(self, template: str) -> str:
        if self.sentence_blank == "code":
            return template.replace("' [X]", "'[X]")
        return template


@dataclass(frozen=True)
class SelectionSettings(TrainingSettings):
    """Settings of methods whose published code selects by a score other than the test's."""

    selection: str = setting(
        "test",
        "How the development score encodes sentences: as at test time (test), or as the published"
        " code does (code).",
        choices=("test", "code"),
        published="code",
    )


@dataclass(frozen=True)
class DenoisingSettings(TrainingSettings):
    """Settings of methods with template denoising, h - h_hat (PromptBERT)."""

    denoising: bool = setting(True, "Template denoising in training.")


@dataclass(frozen=True)
class SupervisedPromptBERTSettings(
    QuoteSettings, SelectionSettings, DenoisingSettings, TemplateSettings, ContrastiveSettings
):
    """Settings of supervised PromptBERT; its bias input is the template with shifted positions."""

    bias_positions: str = setting(
        "paper",
        "Shift of the positions: paper, or code (off by 2 for RoBERTa).",
        choices=("paper", "code"),
        published="code",
    )

    def denoise(self, place: str) -> str:
        if place == "none" or not self.denoising:
            return "none"
        return f"{place}:code" if self.bias_positions == "code" else place


@dataclass(frozen=True)
class PromptBERTSettings(SupervisedPromptBERTSettings):
    """Settings of unsupervised PromptBERT."""

    two_templates: bool = setting(True, "Whether each view has its own template (table 8).")

    def templates(self, default: Templates) -> Templates:
        first, second, *_ = super().templates(default)
        return first, second if self.two_templates else first


UNSUPERVISED = Method(
    name="promptbert",
    source="PromptBERT, unsupervised: two templates, template denoising",
    pooling="last/mask",
    variants={
        "*": Variant((_OF, _COLON)),
        **dict.fromkeys(ROBERTA_FAMILIES, Variant((_THIS, _THE))),
    },
    counts_specials=False,
    mini_bert_settings=PromptBERTSettings(
        batch_size=128, learning_rate=3e-5, temperature=0.2, eval_steps=25
    ),
    paper=dict.fromkeys(_BACKBONES, PromptBERTSettings(batch_size=256, learning_rate=1e-5)),
)

SUPERVISED = replace(
    UNSUPERVISED,
    source="PromptBERT, supervised: one template, hard negatives, denoised at test too",
    variants={
        "*": Variant((_OF, _OF), head="mlm", denoising_place="head"),
        **dict.fromkeys(
            ROBERTA_FAMILIES, Variant((_THIS, _THIS), head="tanh", denoising_place="hidden")
        ),
    },
    plain_transfer=True,
    mini_bert_settings=SupervisedPromptBERTSettings(
        keep_head=True, batch_size=128, learning_rate=6e-4, eval_steps=25
    ),
    paper=dict.fromkeys(
        _BACKBONES,
        SupervisedPromptBERTSettings(keep_head=True, batch_size=512, learning_rate=5e-5, epochs=3),
    ),
)
