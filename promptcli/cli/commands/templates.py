"""``promptcli templates``: the named templates, and what one becomes for a backbone."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import options
from promptcli.cli.console import note, result, result_json, result_table
from promptcli.cli.opening import configure_libraries, default_backbone, open_backbone
from promptcli.cli.options import Runtime

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone
    from promptcli.encoder.prompts.checking import Checked
    from promptcli.encoder.prompts.named import NamedTemplate

#: Stands at [X] where none is given.
_SENTENCE = "A cat sleeps on the mat."


def templates(
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEMPLATE]", help="Name, or text with [X] and [MASK]. Default: list all."),
    ] = None,
    backbone: options.BackboneName = None,
    sentence: Annotated[str, typer.Option(help="Sentence to fill in.")] = _SENTENCE,
    json: options.Json = False,
    *,
    runtime: Runtime,
) -> None:
    """List the named templates, or show what one becomes for a backbone.

    Shown are its source and published figure where it has a name, token ids, the mask's position, and what is cut of a
    long sentence.
    """
    if text is None:
        _list(json=json)
        return
    configure_libraries(runtime)
    from promptcli.encoder.prompts.checking import check
    from promptcli.encoder.prompts.named import named_templates, template_text
    from promptcli.encoder.prompts.template import check_template

    template = template_text(text)
    check_template(template)  # before anything is loaded
    named = named_templates().get(text)
    backbone = backbone or default_backbone(paper=False)
    loaded = open_backbone(backbone, runtime, dtype="float32")
    checked = check(template, loaded.tokenizer, loaded.max_tokens, sentence)
    remarks = _remarks(loaded)
    if json:
        about = {} if named is None else {"name": text, **asdict(named)}
        read = {"backbone": backbone, "family": loaded.provenance.family, **asdict(checked), "notes": remarks}
        result_json({**about, **read})
        return
    if named is not None:
        _print_named(text, named)
    _print(checked)
    for remark in remarks:
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


def _remarks(backbone: "Backbone") -> list[str]:
    """Return what a template with a mask cannot do on this backbone."""
    from promptcli.errors import UsageError

    try:
        _ = backbone.head
    except UsageError:
        why = {"electra": ": an ELECTRA discriminator, which has the mask token but is no masked LM at inference"}
        return [
            f"backbone {backbone.name!r} has no masked-LM head{why.get(backbone.provenance.family, '')}; the vector at"
            " the mask (last/mask) works, predicting tokens (topk-tokens, analyze mask-tokens, --generate mlm) does not"
        ]
    return []


def _print(checked: "Checked") -> None:
    result_table(
        ("position", "id", "token", "part"),
        [(str(token.position), str(token.id), token.text, token.part) for token in checked.tokens],
    )
    cut = checked.truncation
    lines = [
        f"template: {checked.template_tokens} tokens, special tokens included; room for a sentence of {checked.room}"
        f" in {checked.max_tokens}",
        "read at the last token"
        if checked.mask_position is None
        else f"mask: position {checked.mask_position} of 0 to {len(checked.tokens) - 1}",
    ]
    if checked.truncated:
        lines.append("this sentence is cut")
    mask = "" if cut.mask_position is None else f", the mask is at {cut.mask_position} of 0 to {cut.input_tokens - 1}"
    lines.append(
        f"a longer sentence is cut, never the template: of {cut.sentence_tokens} tokens the first {cut.kept} stay"
        f" (the last is {cut.last_kept}){mask}"
    )
    for line in lines:
        result(line)
