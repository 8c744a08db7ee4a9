"""The named templates: TOML files packaged with the program."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from promptcli.errors import unknown
from promptcli.recipe import SLOT, last_part
from promptcli.storage.documents import read_document


@dataclass(frozen=True)
class NamedTemplate:
    """One template."""

    text: str  #: with [X] and [MASK]
    source: str  #: paper and table, or what it is for
    score: float | None = None  #: published STS-B development Spearman x 100 of bert-base-uncased without training
    models: Mapping[str, str] = field(default_factory=dict)  #: texts of single models, by last part of name


def templates_folder() -> Path:
    """Return the folder of the template files: inside an installed package, or at the top of a source tree."""
    package = Path(__file__).parents[2]
    packaged = package / "templates"
    return packaged if packaged.is_dir() else package.parent / "templates"


@functools.cache
def named_templates() -> Mapping[str, NamedTemplate]:
    """Return the templates by name."""
    return read_document(templates_folder() / "named.toml", dict[str, NamedTemplate], hint="install promptcli again")


def template_text(prompt: str, backbone: str = "") -> str:
    """Return the text of a recipe's prompt: itself if it holds [X] or anything but a bare name, else the named one's.

    Some templates have another text for the last part of a ``backbone``'s name (``opt-125m``).
    """
    if SLOT in prompt or not prompt or any(mark.isspace() or mark in "[]" for mark in prompt):
        return prompt
    known = named_templates()
    if prompt not in known:
        raise unknown("template", prompt, [*known, f"or a text with {SLOT}"])
    return known[prompt].models.get(last_part(backbone), known[prompt].text)
