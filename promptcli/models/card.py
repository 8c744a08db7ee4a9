"""The model card: a README with the metadata that the hub reads, and how the model is loaded."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from promptcli.backbones.locating import SHIPPED
from promptcli.backbones.names import words_only
from promptcli.data.hub import FILES, TRAINING_FILES
from promptcli.data.task_table import TASKS, TaskName
from promptcli.models.entries import CARD, Entry, with_backbone
from promptcli.recipe import Recipe


@dataclass(frozen=True)
class _Metric:
    """A metric in the hub's words, whose values go to 1."""

    task: str
    type: str
    name: str


_METRICS = {
    "spearman": _Metric("semantic-similarity", "spearman_cosine", "Spearman correlation of cosine"),
    "accuracy": _Metric("text-classification", "accuracy", "Accuracy of a linear classifier"),
    "ndcg@10": _Metric("information-retrieval", "cosine_ndcg@10", "nDCG@10 of cosine"),
}
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
    base = None
    if is_hub_id(recipe.backbone):
        base = recipe.backbone.partition("@")[0]
    datasets = None
    learned = entry.provenance.get("trained") or entry.provenance.get("fitted_on") or {}
    if Path(str(learned.get("source"))).stem in FILES:
        datasets = [TRAINING_FILES]
    metadata = ModelCardData(
        model_name=entry.name,
        library_name=library,
        pipeline_tag="sentence-similarity",
        base_model=base,
        base_model_relation=relation if base else None,
        tags=[*dict.fromkeys([library, *_TAGS])],
        datasets=datasets,
        eval_results=_results(entry.scores, learned.get("chosen_by")) or None,
    )
    named = recipe.replace(backbone=without_paths(recipe.backbone))
    parts = "\n".join(
        f"| {key} | `{json.dumps(value, ensure_ascii=False)}` |"
        for key, value in named.to_dict().items()
    )
    text = (
        f"---\n{metadata}\n---\n\n# {entry.name}\n\n"
        "A sentence encoder: vectors of sentences, compared by cosine.\n\n"
        f"```python\n{use}\n```\n\n| part | |\n|---|---|\n{parts}\n"
    )
    (folder / CARD).write_text(text, encoding="utf-8")


#: Split, in the hub's words, of a user's own pairs that chose the checkpoint.
_DEVELOPMENT = "dev"


def _results(scores: Sequence[Mapping[str, Any]], chosen_by: str | None) -> list[EvalResult]:
    """Return the scores of an entry as the hub takes them, the last one of each task and split.

    ``chosen_by`` is the task whose score chose the checkpoint.
    """
    results = {}
    for score in scores:
        if score.get("metric") not in _METRICS:  # a user's own, of any scale
            continue
        kind = _METRICS[score["metric"]]
        task = str(score["task"])
        split = score.get("split", "test")
        hub = TASKS[task].hub if task in TASKS else None
        name = without_paths(task)
        if hub is None and str(TaskName(task, split)) == chosen_by:
            split = _DEVELOPMENT
            name = f"{name} (development pairs: they chose the checkpoint)"
        results[task, split] = EvalResult(
            task_type=kind.task,
            dataset_name=name,
            dataset_type=hub.path if hub else without_paths(task),
            dataset_split=split,
            metric_type=kind.type,
            metric_name=kind.name,
            metric_value=round(score["value"] / 100, 6),
        )
    return list(results.values())


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
