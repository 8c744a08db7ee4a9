"""The command ``templates``: lists the named templates, or shows one token by token."""

from dataclasses import asdict
from typing import Annotated

import typer

from promptcli import select as library
from promptcli.cli.console import print_json, print_table, show
from promptcli.cli.options import BackboneModel, Json, choice_of, default_backbone

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

    The token ids and the position of the mask are shown; for a named template, also its source and
    its published score.
    """
    if not text:
        _list_templates(as_json=json)
        return
    checked = library.check_template(text, choice_of(model or default_backbone()), sentence)
    named = checked.named
    if json:
        document = asdict(checked)
        del document["named"]
        if named is not None:
            document = {"name": text, **asdict(named), **document}
        print_json(document)
        return
    if named is not None:
        rows = [("name", text), ("template", named.text), ("source", named.source)]
        if named.score is not None:
            rows.append((_SCORE, f"{named.score:.2f}"))
        rows += [(f"for {backbone}", other_text) for backbone, other_text in named.models.items()]
        print_table((), rows)
    tokens = [(token.position, token.id, token.text, token.part) for token in checked.tokens]
    print_table(("position", "id", "token", "part"), tokens)
    place = "the last token"
    if checked.mask_position is not None:
        place = f"the mask, position {checked.mask_position}"
    show(
        f"read at {place}; the template has {checked.template_tokens} tokens, special tokens"
        f" included: the first {checked.room} of a sentence are kept"
    )


def _list_templates(*, as_json: bool) -> None:
    templates = library.templates()
    if as_json:
        documents = [{"name": name, **asdict(template)} for name, template in templates.items()]
        print_json({"templates": documents})
        return
    rows = []
    for name, template in templates.items():
        score = "" if template.score is None else f"{template.score:.2f}"
        rows.append((name, template.text, score, template.source))
    print_table(("name", "template", _SCORE, "source"), rows)
