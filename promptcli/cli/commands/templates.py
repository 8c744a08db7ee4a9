"""``promptcli templates``: the named templates, and one token by token on a backbone."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from promptcli import select as library
from promptcli.cli.commands.select import BackboneModel
from promptcli.cli.console import result_json, result_table, show
from promptcli.cli.options import Json, choice_of, default_backbone
from promptcli.select import CheckedTemplate

_SENTENCE = "A cat sleeps on the mat."
_SCORE = "STS-B dev, BERT-base"


def templates(
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEMPLATE", help="Name, or text with [X] and [MASK]. Default: list all."
        ),
    ] = None,
    model: BackboneModel = None,
    sentence: Annotated[str, typer.Option(help="Sentence to fill in.")] = _SENTENCE,
    json: Json = False,
) -> None:
    """List the named templates, or show one token by token for a backbone.

    It shows the token ids and the position of the mask; of a named template also its source and
    published score.
    """
    if not text:
        _list_templates(as_json=json)
        return
    checked = library.check_template(text, choice_of(model or default_backbone()), sentence)
    if json:
        result_json(_document(text, checked))
    else:
        _print_template(text, checked)


def _list_templates(*, as_json: bool) -> None:
    listed = library.templates()
    if as_json:
        documents = [{"name": name, **asdict(template)} for name, template in listed.items()]
        result_json({"templates": documents})
        return
    rows = []
    for name, template in listed.items():
        score = "" if template.score is None else f"{template.score:.2f}"
        rows.append((name, template.text, score, template.source))
    result_table(("name", "template", _SCORE, "source"), rows)


def _document(name: str, checked: CheckedTemplate) -> dict[str, Any]:
    """Return a template JSON-ready, with the fields of a named one first."""
    fields = asdict(checked)
    named = fields.pop("named")
    return fields if named is None else {"name": name, **named, **fields}


def _print_template(name: str, checked: CheckedTemplate) -> None:
    named = checked.named
    if named is not None:
        rows = [("name", name), ("template", named.text), ("source", named.source)]
        if named.score is not None:
            rows.append((_SCORE, f"{named.score:.2f}"))
        rows += [(f"for {model}", text) for model, text in named.models.items()]
        result_table((), rows)
    tokens = [(token.position, token.id, token.text, token.part) for token in checked.tokens]
    result_table(("position", "id", "token", "part"), tokens)
    read = "the last token"
    if checked.mask_position is not None:
        read = f"the mask, position {checked.mask_position}"
    show(
        f"read at {read}; the template has {checked.template_tokens} tokens, special tokens"
        f" included: the first {checked.room} of a sentence are kept"
    )
