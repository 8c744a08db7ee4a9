"""The named templates, and a template token by token on a backbone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptcli.errors import UsageError
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.encoder.prompts.checking import Checked
    from promptcli.encoder.prompts.named import NamedTemplate
    from promptcli.models.loading import Model


@dataclass(frozen=True)
class CheckedTemplate:
    """A template on one backbone."""

    named: "NamedTemplate | None"  #: if it was given by its name
    backbone: str
    family: str
    checked: "Checked"  #: token by token
    notes: list[str]  #: its limits on this backbone


def templates() -> "dict[str, NamedTemplate]":
    """Return the named templates.

    Example:
        >>> import promptcli as pc
        >>> pc.templates()["manual"].text
        'This sentence : "[X]" means [MASK] .'
    """
    from promptcli.encoder.prompts.named import named_templates

    return dict(named_templates())


def check_template(
    text: str, model: "Model | None" = None, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone reads it.

    Args:
        text: A template's name, or text with [X] and [MASK].
        model: Whose backbone: `mini-bert` (default), a folder, a hub id, or a model of yours.
        sentence: Sentence to fill in.

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    from promptcli.encoder.prompts import template as texts
    from promptcli.encoder.prompts.checking import check
    from promptcli.encoder.prompts.named import named_templates, template_text
    from promptcli.models.loading import backbone_model, open_model

    template = template_text(text)
    texts.check_template(template)  # before anything is loaded
    backbone = open_model(backbone_model(model or BARE.backbone)).backbone
    family, remarks = backbone.provenance.family, []
    try:
        _ = backbone.head
    except UsageError:
        why = {"electra": ": an ELECTRA discriminator, which has the mask token but is not a masked LM at inference"}
        remarks = [
            f"backbone {backbone.name!r} has no masked-LM head{why.get(family, '')}; the vector at the mask (last/mask)"
            " works, predicting tokens (topk-tokens, analyze mask-tokens) does not"
        ]
    checked = check(template, backbone.tokenizer, backbone.max_tokens, sentence)
    return CheckedTemplate(named_templates().get(text), backbone.name, family, checked, remarks)
