"""``promptcli fit``: fit a recipe's TF-IDF weights or transforms on sentences, into a model."""

from functools import partial
from typing import TYPE_CHECKING, Any

from promptcli import training as library
from promptcli.cli.console import half_interval, result, result_json, result_table
from promptcli.cli.options import Json, NamedModel, with_argument
from promptcli.cli.signatures import Flag, command_of

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder


@command_of(
    library.fit,
    flags={
        "on": Flag("--on", type=str, required=True),
        "name": Flag("--name", required=True),
        "select": Flag(metavar="TASK"),
    },
)
def fit(
    fit: "partial[Encoder]",
    named: NamedModel = None,
    json: Json = False,
) -> None:
    from promptcli.models.loading import open_registry

    name = fit.keywords["name"]
    encoder = fit(recipe=with_argument(fit.keywords["recipe"], named))
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
