"""The slots of a template, and the named templates that are packaged as TOML files."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from promptcli.errors import unknown_name_error
from promptcli.storage.typed_documents import read_document

SLOT = "[X]"  #: the sentence slot of a template; alone it is the empty template
MASK = "[MASK]"  #: the mask slot of a template; the backbone may have another mask token


@dataclass(frozen=True)
class NamedTemplate:
    """One entry of ``named.toml``."""

    text: str  #: with [X] and [MASK]
    source: str  #: paper and table, or purpose
    #: published STS-B development Spearman x 100 of bert-base-uncased without training
    score: float | None = None
    #: last part of a backbone's name -> the text for this backbone, if it differs
    models: Mapping[str, str] = field(default_factory=dict)


def templates_folder() -> Path:
    """Return the folder of the template files: inside an installed package, or at the top of a
    source tree.
    """
    package = Path(__file__).parent
    packaged = package / "templates"
    if packaged.is_dir():
        return packaged
    return package.parent / "templates"


@functools.cache
def named_templates() -> Mapping[str, NamedTemplate]:
    """Return the templates by name."""
    return read_document(
        templates_folder() / "named.toml", dict[str, NamedTemplate], hint="install promptcli again"
    )


def template_text(prompt: str, backbone: str = "") -> str:
    """Return the text of a named template for a backbone; a prompt that is no name is returned
    unchanged.
    """
    if not prompt or any(sign.isspace() or sign in "[]" for sign in prompt):
        return prompt
    templates = named_templates()
    if prompt not in templates:
        raise unknown_name_error("template", prompt, [*templates, f"or a text with {SLOT}"])
    return templates[prompt].models.get(last_part(backbone), templates[prompt].text)


def last_part(backbone: str) -> str:
    """Return a backbone's name without owner, folder and revision, e.g. ``opt-125m``."""
    return backbone.partition("@")[0].rstrip("/").rpartition("/")[2]
