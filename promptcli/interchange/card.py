"""The model card: a README with the metadata that the hub reads, and how the model is loaded."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcli.backbones.loading import LOADERS
from promptcli.data.hub import FILES, TRAINING_FILES
from promptcli.encoder.recipe import Recipe

_TAGS = ("sentence-similarity", "feature-extraction", "promptcli")


def model_card(
    title: str,
    recipe: Recipe,
    *,
    use: str,
    library: str,
    provenance: Mapping[str, Any],
    scores: Sequence[Mapping[str, Any]] = (),
    tags: Sequence[str] = (),
) -> str:
    """Return the text of a README.

    Args:
        title: Of the page.
        recipe: The encoder.
        use: Python that loads and calls it.
        library: The hub's ``library_name``.
        provenance: Of the entry: what it was trained or fitted on is listed where it is a data set of the hub.
        scores: Of the entry, as a registry keeps them.
        tags: More of them.
    """
    about: dict[str, Any] = {"library_name": library, "pipeline_tag": "sentence-similarity"}
    if is_hub_id(recipe.backbone):
        about["base_model"] = recipe.backbone.partition("@")[0]
    about["tags"] = [*dict.fromkeys([*tags, *_TAGS])]
    learned = provenance.get("trained") or provenance.get("fitted_on") or {}
    if Path(str(learned.get("source"))).stem in FILES:
        about["datasets"] = [TRAINING_FILES]
    results = [_result(score) for score in scores if score.get("metric") == "spearman"]
    if results:
        about["model-index"] = [{"name": title, "results": results}]
    head = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in about.items())
    parts = "\n".join(
        f"| {key} | `{json.dumps(value, ensure_ascii=False)}` |" for key, value in recipe.to_dict().items()
    )
    return (
        f"---\n{head}---\n\n# {title}\n\nA sentence encoder: vectors of sentences, compared by cosine.\n\n"
        f"```python\n{use}\n```\n\n| part | |\n|---|---|\n{parts}\n"
    )


def is_hub_id(backbone: str) -> bool:
    """Return whether a backbone's name is ``owner/name``, with or without ``@revision``: what others can fetch."""
    name = backbone.partition("@")[0]
    prefixed = any(prefix and backbone.startswith(prefix) for prefix in LOADERS)
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not prefixed


def _result(score: Mapping[str, Any]) -> dict[str, Any]:
    """Return one figure as the hub's ``model-index`` wants it: name of task, data and metric, value."""
    name = str(score.get("task"))
    return {
        "task": {"type": "semantic-similarity", "name": "Semantic Similarity"},
        "dataset": {"name": name, "type": name},
        "metrics": [{"type": "spearman_cosine", "value": score.get("value"), "name": "Spearman of cosine x 100"}],
    }
