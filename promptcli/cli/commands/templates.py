"""``promptcli templates``: the named templates, and one token by token on a backbone."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from promptcli.cli.commands.searching import BACKBONE
from promptcli.cli.console import result, result_json, result_table
from promptcli.cli.options import Json
from promptcli.cli.signatures import Flag, command_of
from promptcli.searching import templates as library

if TYPE_CHECKING:
    from promptcli.searching.templates import CheckedTemplate


@command_of(
    library.check_template,
    flags={
        "text": Flag(
            "[TEMPLATE]",
            type=str | None,
            help="Name, or text with [X] and [MASK]. Default: list all.",
        ),
        "model": BACKBONE,
    },
)
def templates(check: "partial[CheckedTemplate]", json: Json = False) -> None:
    """List the named templates, or show one token by token on a backbone.

    With source and published figure of a named one, token ids, and the mask's position.
    """
    if "text" not in check.keywords:
        listed = library.templates()
        if json:
            result_json(
                {"templates": [{"name": name, **asdict(row)} for name, row in listed.items()]}
            )
            return
        scores = ["" if row.score is None else f"{row.score:.2f}" for row in listed.values()]
        cells = [
            (name, row.text, score, row.source)
            for (name, row), score in zip(listed.items(), scores, strict=True)
        ]
        result_table(("name", "template", "STS-B dev, BERT-base", "source"), cells)
        return
    name, checked = check.keywords["text"], check()
    if json:
        fields = asdict(checked)
        result_json({**({"name": name, **row} if (row := fields.pop("named")) else {}), **fields})
        return
    if named := checked.named:
        score = [] if named.score is None else [("STS-B dev, BERT-base", f"{named.score:.2f}")]
        models = [(f"for {model}", text) for model, text in named.models.items()]
        result_table(
            (),
            [("name", name), ("template", named.text), ("source", named.source), *score, *models],
        )
    cells = [
        (str(token.position), str(token.id), token.text, token.part) for token in checked.tokens
    ]
    result_table(("position", "id", "token", "part"), cells)
    read = (
        "the last token"
        if checked.mask_position is None
        else f"the mask, position {checked.mask_position}"
    )
    result(
        f"read at {read}; the template has {checked.template_tokens} tokens, special tokens"
        f" included: the first {checked.room} of a sentence are kept"
    )
