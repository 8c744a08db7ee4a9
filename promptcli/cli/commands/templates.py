"""``promptcli templates``: the named templates."""

from dataclasses import asdict

from promptcli.cli.console import result_json, result_table
from promptcli.cli.options import Json


def templates(json: Json = False) -> None:
    """List the named templates, with source and published figure."""
    from promptcli.encoder.prompts.named import named_templates

    rows = named_templates()
    if json:
        result_json({"templates": [{"name": name, **asdict(row)} for name, row in rows.items()]})
        return
    scores = ["" if row.score is None else f"{row.score:.2f}" for row in rows.values()]
    cells = [(name, row.text, score, row.source) for (name, row), score in zip(rows.items(), scores, strict=True)]
    result_table(("name", "template", "STS-B dev, BERT-base", "source"), cells)
