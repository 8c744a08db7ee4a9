"""``promptcli ditto-search``, ``search-layers`` and ``search-templates``."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli import searching as library
from promptcli.cli.console import note
from promptcli.cli.options import Json, choice_of, default_backbone
from promptcli.cli.pictures import (
    PictureOptions,
    draw_head_maps,
    draw_layers,
    draw_templates,
)
from promptcli.cli.result_files import FormatOptions, Report, print_report
from promptcli.cli.signatures import Flag, command_of
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.cli.result_files import Part
    from promptcli.searching.search import Search

#: A model of which only the backbone counts.
BACKBONE = Flag("--model -m --backbone", read=lambda name: choice_of(name or default_backbone()))
_ON = Flag(metavar="TASK")


@command_of(library.search_heads, flags={"model": BACKBONE, "on": _ON, "top": Flag(min=1)})
def ditto_search(
    search: "partial[Search]",
    picture: PictureOptions,
    formats: FormatOptions,
    json: Json = False,
) -> None:
    from promptcli.cli.search_tables import heads_parts

    format = formats.name(json=json)
    picture.check()
    heads = search()
    picture.draw(draw_head_maps, heads)
    parts = heads_parts(heads, search.keywords["corpus"], intervals=formats.intervals)
    _show(heads, parts, format)


@command_of(library.search_layers, flags={"on": _ON})
def search_layers(
    search: "partial[Search]",
    picture: PictureOptions,
    formats: FormatOptions,
    json: Json = False,
) -> None:
    from promptcli.cli.search_tables import layers_parts

    format = formats.name(json=json)
    picture.check()
    layers = search()
    picture.draw(draw_layers, layers)
    _show(layers, layers_parts(layers, intervals=formats.intervals), format)


@command_of(
    library.search_templates,
    flags={
        "model": Flag("--model -m --backbone", read=lambda name: name),
        "on": _ON,
        "changes": None,
    },
)
def search_templates(
    search: "partial[Search]",
    picture: PictureOptions,
    formats: FormatOptions,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Default to the papers' settings: bert-base-uncased, STS-B:dev."
        ),
    ] = False,
    json: Json = False,
) -> None:
    from promptcli.cli.search_tables import templates_parts

    format = formats.name(json=json)
    picture.check()
    model = search.keywords["model"] or default_backbone(paper=paper)
    task = search.keywords["on"]
    if not task and paper:
        task = PAPER.development
    found = search(model=choice_of(model), on=task or None)
    picture.draw(draw_templates, found)
    _show(found, templates_parts(found, intervals=formats.intervals), format)
    note(
        "the score on the pairs that chose a template is too high; score it on other pairs with"
        " `promptcli eval`"
    )


def _show(search: "Search", parts: "list[Part]", format: str) -> None:
    from promptcli.cli.search_tables import search_records

    if search.saved_as:
        note(f"{search.best.choice} saved as model {search.saved_as!r}")
    else:
        note(f"{search.best.choice} is not saved; keep it with --name NAME")
    print_report(Report(search.to_dict(), parts, search_records(search)), format)
