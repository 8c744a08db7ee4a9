"""The model card: a README with the hub's metadata, the recipe, and how the model is loaded."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from promptcli.backbones.model_folder import is_hub_id
from promptcli.data.hub_sets import FILE_OF_SET, TRAINING_FILES
from promptcli.data.task_table import TASKS, TaskName
from promptcli.encoder.sentence_encoder import TUNED
from promptcli.extensions import Extension
from promptcli.models.entries import CARD, Entry, with_backbone
from promptcli.recipe import Recipe
from promptcli.settings import spell_value

#: Our metrics -> task, type and name in the hub's terms; there their largest value is 1.
_METRICS = {
    "spearman": ("semantic-similarity", "spearman_cosine", "Spearman correlation of cosine"),
    "accuracy": ("text-classification", "accuracy", "Accuracy of a linear classifier"),
    "ndcg@10": ("information-retrieval", "cosine_ndcg@10", "nDCG@10 of cosine"),
}
_TAGS = ("sentence-similarity", "feature-extraction", "promptcli")


def write_card(
    folder: Path,
    entry: Entry,
    recipe: Recipe,
    *,
    use: str,
    library: str = "promptcli",
) -> None:
    """Write the README of a folder.

    Args:
        folder: The folder.
        entry: The encoder's entry.
        recipe: Its recipe, as the card shows it.
        use: Python that encodes sentences with it.
        library: The hub's name of the library that loads it.
    """
    base = relation = None
    if is_hub_id(recipe.backbone):
        base = recipe.backbone.partition("@")[0]
        if entry.tensors:
            tuned = any(name.startswith(TUNED) for name in entry.tensors)
            relation = "finetune" if tuned and library != "peft" else "adapter"
    datasets = None
    training = entry.provenance.get("trained") or entry.provenance.get("fitted_on") or {}
    if Path(str(training.get("source"))).stem in FILE_OF_SET:
        datasets = [TRAINING_FILES]
    metadata = ModelCardData(
        model_name=entry.name,
        library_name=library,
        pipeline_tag="sentence-similarity",
        base_model=base,
        base_model_relation=relation,
        tags=[*dict.fromkeys([library, *_TAGS])],
        datasets=datasets,
        eval_results=_results(entry.scores, training.get("chosen_by")) or None,
    )
    values = recipe.replace(backbone=without_paths(recipe.backbone)).to_dict()
    fields = "\n".join(
        f"| {field} | {_cell(json.dumps(value, ensure_ascii=False))} |"
        for field, value in values.items()
    )
    text = (
        f"---\n{metadata}\n---\n\n# {entry.name}\n\n"
        "A sentence encoder: vectors of sentences, compared by cosine.\n\n"
        f"```python\n{use}\n```\n\n| part | |\n|---|---|\n{fields}\n"
    )
    trained = entry.provenance.get("trained")
    if trained and "settings" in trained:
        text += _training_section(without_paths(trained))
    (folder / CARD).write_text(text, encoding="utf-8")


def _training_section(facts: Mapping[str, Any]) -> str:
    """Return how a model was trained, in enough detail to repeat it."""
    extensions = [str(Extension(**each)) for each in facts.get("extensions", [])]
    summaries = {
        "versions": ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
        "extensions": "; ".join(dict.fromkeys(extensions)),
        "runs": len(facts.get("runs", [])),
    }
    lines = ["", "## Training", "", "| | |", "|---|---|"]
    for name, value in {**facts, **summaries}.items():
        if isinstance(value, str | int | float) and value != "":
            lines.append(f"| {name.replace('_', ' ')} | {_cell(value)} |")
    papers = {each["setting"]: each["paper"] for each in facts.get("differs_from_paper", [])}
    lines += ["", "| setting | value | paper's, if it differs |", "|---|---|---|"]
    for name, value in facts.get("settings", {}).items():
        paper = _cell(spell_value(papers[name])) if name in papers else ""
        lines.append(f"| {name.replace('_', '-')} | {_cell(spell_value(value))} | {paper} |")
    return "\n".join([*lines, ""])


def _cell(value: Any) -> str:
    escaped = str(value).replace("|", "\\|")
    return f"`{escaped}`"


def _results(scores: Sequence[Mapping[str, Any]], chosen_by: str | None) -> list[EvalResult]:
    """Return the last score of each task and split in the hub's form.

    ``chosen_by`` names the task whose score chose the checkpoint.
    """
    results = {}
    for score in scores:
        if score.get("metric") not in _METRICS:  # a user's own metric, of any scale
            continue
        kind, metric, metric_name = _METRICS[score["metric"]]
        task = str(score["task"])
        split = score.get("split", "test")
        hub = TASKS[task].hub if task in TASKS else None
        name = without_paths(task)
        if hub is None and str(TaskName(task, split)) == chosen_by:
            split = "dev"  # the hub's name of a development set
            name = f"{name} (development pairs: they chose the checkpoint)"
        results[task, split] = EvalResult(
            task_type=kind,
            dataset_name=name,
            dataset_type=hub.path if hub else without_paths(task),
            dataset_split=split,
            metric_type=metric,
            metric_name=metric_name,
            metric_value=round(score["value"] / 100, 6),
        )
    return list(results.values())


def publishable(entry: Entry) -> Entry:
    """Return an entry as it is published: without local paths and the time it was made."""
    return replace(
        with_backbone(entry, without_paths(entry.recipe.backbone)),
        provenance=without_paths(entry.provenance),
        scores=without_paths(entry.scores),
        created="",
    )


def without_paths(value: Any) -> Any:
    """Return JSON-ready values with each local path reduced to its file or folder name, also within
    a recorded command line.
    """
    if isinstance(value, dict):
        values = {key: without_paths(item) for key, item in value.items()}
        if isinstance(value.get("command"), str):
            words = [word.rpartition("=") for word in shlex.split(value["command"])]
            values["command"] = shlex.join("".join(map(without_paths, word)) for word in words)
        return values
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value
