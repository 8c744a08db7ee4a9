"""Hyper-parameters of a run: those that every method has, and groups of those that some methods share.

A field's metadata: ``help`` (also of the option of that name), bounds ``min`` and ``max``, ``choices`` where the values
are a closed list, ``published``: what the printed figures were made with, where the papers and their code, or we, would
do otherwise.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

from promptcli.errors import UsageError, unknown

Views = tuple[str, str]


def setting(default: Any, about: str, **metadata: Any) -> Any:
    """Return the field of a setting."""
    return field(default=default, metadata={"help": about, **metadata})


@dataclass(frozen=True)
class TrainingSettings:
    """What every method has; a method's own settings are fields of its subclass."""

    batch_size: int = setting(64, "Examples a step.", min=2)
    learning_rate: float = setting(3e-5, "Start of the linear decay to 0.", min=0)
    epochs: float = setting(1.0, "Passes over the data.", min=0)
    eval_steps: int = setting(125, "Steps between two development scores.", min=1)
    max_length: int = setting(32, "Longest sentence in tokens.", min=3)
    dropout: float = setting(0.1, "Of the backbone: it makes the second view.", min=0, max=0.9)
    weight_decay: float = setting(0.0, "AdamW's.", min=0)
    warmup: float = setting(0.0, "Share of the steps in which the learning rate rises from 0.", min=0, max=1)
    seed: int = setting(42, "Of everything random.", min=0)
    chunk_tokens: int = setting(0, "Padded tokens of one forward pass; 0: by device.", min=0)
    gradient_caching: bool = setting(False, "Hold one pass's activations at a time: batches beyond memory.")

    def replace(self, **changes: Any) -> Self:
        """Return a copy with ``changes``.

        Raises:
            UsageError: A value that is not among its choices.
        """
        for item in dataclasses.fields(self):
            choices = item.metadata.get("choices")
            if choices and changes.get(item.name, item.default) not in choices:
                raise unknown(item.name.replace("_", "-"), str(changes[item.name]), choices)
        return dataclasses.replace(self, **changes)

    @classmethod
    def own(cls) -> tuple[str, ...]:
        """Return the settings that not every method has."""
        common = {item.name for item in dataclasses.fields(TrainingSettings)}
        return tuple(item.name for item in dataclasses.fields(cls) if item.name not in common)

    def as_published(self) -> Self:
        """Return the settings with the choices that made the printed figures."""
        fields = dataclasses.fields(self)
        return self.replace(
            **{item.name: item.metadata["published"] for item in fields if "published" in item.metadata}
        )

    def templates(self, views: Views) -> Views:
        """Return the templates of the two views, the method's own being ``views``; the first is also the test's."""
        return views

    def prompt(self, template: str) -> str:
        """Return the prompt of a template, as a recipe writes it."""
        return template


@dataclass(frozen=True)
class ContrastiveSettings(TrainingSettings):
    """What the ``contrastive`` objective reads."""

    temperature: float = setting(0.05, "Of the contrastive loss.", min=1e-4)
    mask_duplicates: bool = setting(
        True, "Equal sentences of a batch are no negatives of one another.", published=False
    )


@dataclass(frozen=True)
class TemplateSettings(TrainingSettings):
    """Of methods with a template of words."""

    template: tuple[str, ...] = setting(
        (), "template with [X] and [MASK], or a named one; given twice: one for each view."
    )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with ``changes``; see ``TrainingSettings.replace``."""
        if len(changes.get("template", ())) > 2:
            raise UsageError(f"--template is given {len(changes['template'])} times; there are two views")
        return super().replace(**changes)

    def templates(self, views: Views) -> Views:
        """Return the given templates, else the method's own."""
        views = self.template or views  # type: ignore[assignment]  # one or two, see replace
        return views[0], views[-1]


@dataclass(frozen=True)
class SelectionSettings(TrainingSettings):
    """Of methods whose published code selects by another score than the test's."""

    selection: str = setting(
        "test", "development score as at test, or as in the code.", choices=("test", "code"), published="code"
    )


@dataclass(frozen=True)
class DenoisingSettings(TrainingSettings):
    """Of methods with template denoising, h - h_hat (PromptBERT)."""

    denoising: bool = setting(True, "template denoising while training.")
    bias_positions: str = setting(
        "paper", "paper, or code (off by 2 for RoBERTa).", choices=("paper", "code"), published="code"
    )


@dataclass(frozen=True)
class LoRASettings(TrainingSettings):
    """Of methods that learn a low-rank adapter of a frozen backbone."""

    lora_rank: int = setting(64, "rank r of the adapter.", min=1)
    lora_alpha: float = setting(16.0, "weight alpha / r of the adapter.", min=0)
    lora_dropout: float = setting(0.05, "of the adapter's input.", min=0, max=0.9)


@dataclass(frozen=True)
class MaskedLMSettings(TrainingSettings):
    """Of methods that may have a masked-LM loss with their own (DCPCSE 3.3; SimCSE)."""

    mlm_weight: float = setting(0.0, "weight of a masked-LM loss, at the start; 0 for none.", min=0, max=1)
    mlm_head: str = setting("trained", "trained (the code) or frozen (the paper).", choices=("trained", "frozen"))
