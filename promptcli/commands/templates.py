"""``promptcli templates list``: the named templates and where they come from."""

from typing import Annotated

import typer
from rich.table import Table

from promptcli.console import out, result_json


def list_templates(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """List the named templates, for --template NAME."""
    from promptcli.prompts.named import named_templates

    named = named_templates()
    if json:
        rows = [
            {"name": name, "text": row.text, "source": row.source, "score": row.score} for name, row in named.items()
        ]
        result_json({"templates": rows})
        return
    table = Table("name", "template", "STS-B dev, BERT-base", "source", box=None, pad_edge=False)
    for name, row in named.items():
        table.add_row(name, row.text.replace("[", r"\["), "" if row.score is None else f"{row.score:.2f}", row.source)
    out.print(table)
