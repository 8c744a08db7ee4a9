"""``promptcli fit``: fit a recipe's TF-IDF weights or transforms on sentences, into a model."""

import dataclasses
from typing import Any

from promptcli.cli.console import half_interval, result, result_json, result_table
from promptcli.cli.options import Json, NamedModel, with_argument
from promptcli.recipe import Choice
from promptcli.training import FitJob


def fit(job: FitJob, named: NamedModel = None, json: Json = False) -> None:
    from promptcli.models.loading import open_registry

    name = str(job.name)
    assert isinstance(job.recipe, Choice)
    encoder = dataclasses.replace(job, recipe=with_argument(job.recipe, named)).run()
    provenance = open_registry().card(name).provenance
    facts = {key: provenance[key] for key in ("fitted_on", "selected_on") if key in provenance}
    if json:
        result_json({"model": name, "recipe": encoder.recipe.to_dict(), **facts})
    elif "selected_on" in facts:
        _print_selection(facts["selected_on"])


def _print_selection(selection: dict[str, Any]) -> None:
    result(f"{selection['task']}, {selection['pairs']:,} pairs")
    result("Spearman x 100, ± half of the 95% interval")
    rows = []
    for row in (selection["without"], *selection["candidates"]):
        chosen = "chosen" if row["transform"] == selection["chosen"] else ""
        rows.append([row["transform"], f"{row['value']:.2f}", half_interval(row["ci95"]), chosen])
    result_table(["transform", "value", "", ""], rows)
