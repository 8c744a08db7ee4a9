"""``promptcli templates``: the named templates, and one token by token on a backbone."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from promptcli.cli.commands.searching import BACKBONE
from promptcli.cli.console import note, result, result_json, result_table
from promptcli.cli.options import Json
from promptcli.cli.signatures import Flag, command_of
from promptcli.searching import templates as library

if TYPE_CHECKING:
    from promptcli.searching.templates import CheckedTemplate


@command_of(
    library.check_template,
    flags={
        "text": Flag("[TEMPLATE]", type=str | None, help="Name, or text with [X] and [MASK]. Default: list all."),
        "model": BACKBONE,
    },
)
def templates(check: "partial[CheckedTemplate]", json: Json = False) -> None:
    """List the named templates, or show one token by token on a backbone.

    With source and published figure of a named one, token ids, the mask's position, and the cut of a long sentence.
    """
    if "text" not in check.keywords:
        listed = library.templates()
        if json:
            result_json({"templates": [{"name": name, **asdict(row)} for name, row in listed.items()]})
            return
        scores = ["" if row.score is None else f"{row.score:.2f}" for row in listed.values()]
        cells = [(name, row.text, score, row.source) for (name, row), score in zip(listed.items(), scores, strict=True)]
        result_table(("name", "template", "STS-B dev, BERT-base", "source"), cells)
        return
    name, template = check.keywords["text"], check()
    named = template.named
    if json:
        fields = asdict(template)
        row = fields.pop("named")
        result_json({**({} if row is None else {"name": name, **row}), **fields})
        return
    if named is not None:
        rows = [("name", name), ("template", named.text), ("source", named.source)]
        if named.score is not None:
            rows.append(("published", f"{named.score:.2f} (STS-B dev, bert-base-uncased without training)"))
        result_table((), [*rows, *((f"for {model}", text) for model, text in named.models.items())])
    _print(template)
    for remark in template.notes:
        note(remark)


def _print(checked: "CheckedTemplate") -> None:
    result_table(
        ("position", "id", "token", "part"),
        [(str(token.position), str(token.id), token.text, token.part) for token in checked.tokens],
    )
    result(
        f"template: {checked.template_tokens} tokens, special tokens included; room for a sentence of {checked.room}"
        f" in {checked.max_tokens}"
    )
    position = checked.mask_position
    last = len(checked.tokens) - 1
    result("read at the last token" if position is None else f"mask: position {position} of 0 to {last}")
    if checked.truncated:
        result("this sentence is cut")
    cut = checked.truncation
    mask = "" if cut.mask_position is None else f", the mask is at {cut.mask_position} of 0 to {cut.input_tokens - 1}"
    result(
        f"a longer sentence is cut, never the template: of {cut.sentence_tokens} tokens the first {cut.kept} stay"
        f" (the last is {cut.last_kept}){mask}"
    )
