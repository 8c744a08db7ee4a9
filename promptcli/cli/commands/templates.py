"""``promptcli templates``: the named templates, and one token by token on a backbone."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import note, result, result_json, result_table
from promptcli.cli.options import BackboneName, Json, choice_of, default_backbone

if TYPE_CHECKING:
    from promptcli.encoder.prompts.checking import Checked
    from promptcli.encoder.prompts.named import NamedTemplate


def templates(
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEMPLATE]", help="Name, or text with [X] and [MASK]. Default: list all."),
    ] = None,
    model: BackboneName = None,
    sentence: Annotated[str, typer.Option(help="Sentence to fill in.")] = "A cat sleeps on the mat.",
    json: Json = False,
) -> None:
    """List the named templates, or show one token by token on a backbone.

    With source and published figure of a named one, token ids, the mask's position, and the cut of a long sentence.
    """
    if text is None:
        _list(json=json)
        return
    from promptcli.searching.templates import check_template

    template = check_template(text, choice_of(model or default_backbone()), sentence)
    if json:
        named = {} if template.named is None else {"name": text, **asdict(template.named)}
        read = {"backbone": template.backbone, "family": template.family, **asdict(template.checked)}
        result_json({**named, **read, "notes": template.notes})
        return
    if template.named is not None:
        _print_named(text, template.named)
    _print(template.checked)
    for remark in template.notes:
        note(remark)


def _list(*, json: bool) -> None:
    from promptcli.encoder.prompts.named import named_templates

    named = named_templates()
    if json:
        result_json({"templates": [{"name": name, **asdict(row)} for name, row in named.items()]})
        return
    result_table(
        ("name", "template", "STS-B dev, BERT-base", "source"),
        [(name, row.text, "" if row.score is None else f"{row.score:.2f}", row.source) for name, row in named.items()],
    )


def _print_named(name: str, row: "NamedTemplate") -> None:
    rows = [("name", name), ("template", row.text), ("source", row.source)]
    if row.score is not None:
        rows.append(("published", f"{row.score:.2f} (STS-B dev, bert-base-uncased without training)"))
    result_table((), [*rows, *((f"for {model}", text) for model, text in row.models.items())])


def _print(checked: "Checked") -> None:
    result_table(
        ("position", "id", "token", "part"),
        [(str(token.position), str(token.id), token.text, token.part) for token in checked.tokens],
    )
    cut = checked.truncation
    mask = "" if cut.mask_position is None else f", the mask is at {cut.mask_position} of 0 to {cut.input_tokens - 1}"
    lines = [
        f"template: {checked.template_tokens} tokens, special tokens included; room for a sentence of {checked.room}"
        f" in {checked.max_tokens}",
        "read at the last token"
        if checked.mask_position is None
        else f"mask: position {checked.mask_position} of 0 to {len(checked.tokens) - 1}",
        *(["this sentence is cut"] if checked.truncated else []),
        f"a longer sentence is cut, never the template: of {cut.sentence_tokens} tokens the first {cut.kept} stay"
        f" (the last is {cut.last_kept}){mask}",
    ]
    for line in lines:
        result(line)
