"""DenoSent (Wang et al., 2024): PromptBERT's template, and a decoder that restores a sentence from
its vector.
"""

from dataclasses import dataclass

from promptcli.training.methods.method import (
    ContrastiveSettings,
    Method,
    TemplateSettings,
    Variant,
    setting,
)

_TEMPLATE = '"[X]" means [MASK].'


@dataclass(frozen=True)
class DenoSentSettings(TemplateSettings, ContrastiveSettings):
    """Settings of DenoSent."""

    contrastive_weight: float = setting(5.0, "Weight of the contrastive loss.", min=0)
    restoring_weight: float = setting(7.0, "Weight of the decoder's loss.", min=0)
    decoder_layers: int = setting(16, "Layers of the decoder, which is not saved.", min=1, max=64)
    decoder_heads: int = setting(1, "Attention heads of the decoder.", min=1, max=64)
    decoder_noise: float = setting(
        0.825, "Dropout of the decoder's input embeddings.", min=0, max=0.99
    )


#: The paper's positives are back-translations of the sentences; ours are the sentences
#: alone.
_PAPER = DenoSentSettings(
    batch_size=64,
    learning_rate=4e-5,
    schedule="constant",
    warmup_steps=500,
    steps=5000,
    eval_steps=50,
)

DENOSENT = Method(
    name="denosent",
    source="DenoSent: InfoNCE at the mask, and a denoising decoder whose only memory is the vector",
    pooling="last/mask",
    needs_pooling="last/mask",
    # its pass returns the states of all tokens and layers, embeddings included
    training_pooling="first-last/avg",
    period=False,
    learns=("backbone", "decoder"),
    variants={"*": Variant((_TEMPLATE,), head="linear")},
    objective="denoising-decoder",
    counts_specials=False,
    program_settings={"optimizer": "adamw"},
    mini_bert_settings=_PAPER.replace(
        learning_rate=1e-4, warmup_steps=0, warmup=0.1, steps=0, decoder_layers=4
    ),
    paper={"bert-base-uncased": _PAPER},
)
