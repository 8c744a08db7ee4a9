"""The model card: a README with the metadata that the hub reads, and how the model is loaded."""

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
from promptcli.settings import typed_value

#: Metrics with a maximum of 1, in the hub's terms: task, type, name.
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
    """Write a folder's README: name, recipe, Python example; ``library`` is the hub's term."""
    base = relation = None
    if is_hub_id(recipe.backbone):
        base = recipe.backbone.partition("@")[0]
        if entry.tensors:
            tuned = any(name.startswith(TUNED) for name in entry.tensors)
            relation = "finetune" if tuned and library != "peft" else "adapter"
    datasets = None
    learned = entry.provenance.get("trained") or entry.provenance.get("fitted_on") or {}
    if Path(str(learned.get("source"))).stem in FILE_OF_SET:
        datasets = [TRAINING_FILES]
    metadata = ModelCardData(
        model_name=entry.name,
        library_name=library,
        pipeline_tag="sentence-similarity",
        base_model=base,
        base_model_relation=relation,
        tags=[*dict.fromkeys([library, *_TAGS])],
        datasets=datasets,
        eval_results=_results(entry.scores, learned.get("chosen_by")) or None,
    )
    named = recipe.replace(backbone=without_paths(recipe.backbone))
    parts = "\n".join(
        f"| {part} | `{json.dumps(value, ensure_ascii=False)}` |"
        for part, value in named.to_dict().items()
    )
    text = (
        f"---\n{metadata}\n---\n\n# {entry.name}\n\n"
        "A sentence encoder: vectors of sentences, compared by cosine.\n\n"
        f"```python\n{use}\n```\n\n| part | |\n|---|---|\n{parts}\n"
    )
    trained = entry.provenance.get("trained")
    if trained and "settings" in trained:
        text += _training_section(without_paths(trained))
    (folder / CARD).write_text(text, encoding="utf-8")


def _training_section(facts: Mapping[str, Any]) -> str:
    """Return how a model was trained, in enough detail to repeat it."""
    code = [str(Extension(**each)) for each in facts.get("extensions", [])]
    several = {
        "versions": ", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
        "extensions": "; ".join(dict.fromkeys(code)),
        "runs": len(facts.get("runs", [])),
    }
    lines = ["", "## Training", "", "| | |", "|---|---|"]
    for name, value in {**facts, **several}.items():
        if isinstance(value, str | int | float) and value != "":
            lines.append(f"| {name.replace('_', ' ')} | {_cell(value)} |")
    return "\n".join([*lines, "", *_settings_table(facts), ""])


def _settings_table(facts: Mapping[str, Any]) -> list[str]:
    """Return every setting, and the paper's value if it differs."""
    papers = {each["setting"]: each["paper"] for each in facts.get("differs_from_paper", [])}
    lines = ["| setting | value | paper's, if it differs |", "|---|---|---|"]
    for name, value in facts.get("settings", {}).items():
        paper = _cell(typed_value(papers[name])) if name in papers else ""
        cells = (name.replace("_", "-"), _cell(typed_value(value)), paper)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cell(value: Any) -> str:
    escaped = str(value).replace("|", "\\|")
    return f"`{escaped}`"


def _results(scores: Sequence[Mapping[str, Any]], chosen_by: str | None) -> list[EvalResult]:
    """Return an entry's scores in the hub's form, the last score of each task and split.

    ``chosen_by`` is the task whose score chose the checkpoint.
    """
    results = {}
    for score in scores:
        if score.get("metric") not in _METRICS:  # a user's own, of any scale
            continue
        kind, metric, metric_name = _METRICS[score["metric"]]
        task = str(score["task"])
        split = score.get("split", "test")
        hub = TASKS[task].hub if task in TASKS else None
        name = without_paths(task)
        if hub is None and str(TaskName(task, split)) == chosen_by:
            split = "dev"  # in the hub's words
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
    """Return an entry for publication: local paths become names. Equal entries stay equal."""
    return replace(
        with_backbone(entry, without_paths(entry.recipe.backbone)),
        provenance=without_paths(entry.provenance),
        scores=without_paths(entry.scores),
        created="",
    )


def without_paths(value: Any) -> Any:
    """Return JSON-ready values with each local path reduced to its file or folder name."""
    if isinstance(value, dict):
        named = {key: without_paths(item) for key, item in value.items()}
        if isinstance(value.get("command"), str):
            named["command"] = _command_without_paths(value["command"])
        return named
    if isinstance(value, list | tuple):
        return [without_paths(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _command_without_paths(command: str) -> str:
    """Return a command line with each local path reduced to its file name."""
    words = []
    for word in shlex.split(command):
        option, equals, value = word.rpartition("=")
        words.append(f"{option}{equals}{without_paths(value)}")
    return shlex.join(words)
