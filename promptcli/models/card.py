"""The model card: a README with the metadata that the hub reads, and how the model is loaded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from promptcli.backbones.loading import words_only
from promptcli.backbones.pretrained import SHIPPED
from promptcli.data.hub import FILES, TRAINING_FILES
from promptcli.models.entries import CARD, Entry, with_backbone
from promptcli.recipe import Recipe

_TAGS = ("sentence-similarity", "feature-extraction", "promptcli")


def write_card(
    folder: Path,
    entry: Entry,
    recipe: Recipe,
    *,
    use: str,
    library: str = "promptcli",
    relation: str | None = None,
) -> None:
    """Write a folder's README: name, recipe, Python that uses it.

    ``library`` and ``relation`` are the hub's words.
    """
    metadata: dict[str, Any] = {"library_name": library, "pipeline_tag": "sentence-similarity"}
    base = recipe.backbone.partition("@")[0]
    if is_hub_id(recipe.backbone):
        metadata["base_model"] = base
        metadata |= {"base_model_relation": relation} if relation else {}
    metadata["tags"] = [*dict.fromkeys([library, *_TAGS])]
    learned = entry.provenance.get("trained") or entry.provenance.get("fitted_on") or {}
    if Path(str(learned.get("source"))).stem in FILES:
        metadata["datasets"] = [TRAINING_FILES]
    head = "".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in metadata.items()
    )
    named = recipe.replace(backbone=without_paths(recipe.backbone))
    parts = "\n".join(
        f"| {key} | `{json.dumps(value, ensure_ascii=False)}` |"
        for key, value in named.to_dict().items()
    )
    text = (
        f"---\n{head}---\n\n# {entry.name}\n\nA sentence encoder: vectors of sentences, compared by"
        f" cosine.\n\n```python\n{use}\n```\n\n| part | |\n|---|---|\n{parts}\n"
    )
    (folder / CARD).write_text(text, encoding="utf-8")


def is_hub_id(backbone: str) -> bool:
    """Return whether a backbone is called as on the hub, ``owner/name`` or ``name``, ``@revision``
    after it or not.
    """
    name = backbone.partition("@")[0]
    here = name in SHIPPED or name.startswith((".", "/", "~")) or Path(backbone).exists()
    return name.count("/") <= 1 and not here and not words_only(backbone)


def public(entry: Entry) -> Entry:
    """Return an entry for others to read: paths of this machine become names, the same entry always
    the same.
    """
    return replace(
        with_backbone(entry, without_paths(entry.recipe.backbone)),
        provenance=without_paths(entry.provenance),
        scores=without_paths(entry.scores),
        created="",
    )


def without_paths(value: Any) -> Any:
    """Return JSON-ready values in which a path of this machine is only the name of its file or
    folder.
    """
    if isinstance(value, dict):
        return {key: without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
