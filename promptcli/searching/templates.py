"""The named templates, and a template token by token on a backbone."""

from dataclasses import dataclass

from promptcli.encoder.prompts import template as texts
from promptcli.encoder.prompts.checking import Checked, check
from promptcli.encoder.prompts.named import NamedTemplate, named_templates, template_text
from promptcli.errors import UsageError
from promptcli.models.loading import Model, backbone_model, open_model
from promptcli.settings import BARE


@dataclass(frozen=True)
class CheckedTemplate:
    """A template on one backbone."""

    named: NamedTemplate | None  #: if it was given by its name
    backbone: str
    family: str
    checked: Checked  #: token by token
    notes: list[str]  #: its limits on this backbone


def templates() -> dict[str, NamedTemplate]:
    """Return the named templates.

    Example:
        >>> import promptcli as pc
        >>> pc.templates()["manual"].text
        'This sentence : "[X]" means [MASK] .'
    """
    return dict(named_templates())


def check_template(
    text: str, model: Model = BARE.backbone, sentence: str = "A cat sleeps on the mat."
) -> CheckedTemplate:
    """Return a template, filled with a sentence, as a backbone reads it.

    Args:
        text: A template's name, or text with [X] and [MASK].
        model: Whose backbone: an encoder, or what ``load`` takes.
        sentence: Put at [X].

    Raises:
        UsageError: The text is not a template.
        NotFoundError: The backbone is missing.
    """
    template = template_text(text)
    texts.check_template(template)  # before anything is loaded
    backbone = open_model(backbone_model(model)).backbone
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
