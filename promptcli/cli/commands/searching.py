"""``promptcli ditto-search``, ``search-layers`` and ``search-templates``."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import note
from promptcli.cli.options import Json, choice_of, default_backbone
from promptcli.cli.pictures import PictureOptions, draw_head_maps, draw_layers, draw_templates
from promptcli.cli.result_files import FormatOptions, Report, print_report
from promptcli.searching import HeadSearchJob, LayerSearchJob, TemplateSearchJob
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.cli.result_files import Part
    from promptcli.searching.search import Search


def ditto_search(
    job: HeadSearchJob,
    picture: PictureOptions,
    formats: FormatOptions,
    json: Json = False,
) -> None:
    from promptcli.cli.search_tables import heads_parts

    format = formats.name(json=json)
    picture.check()
    heads = job.run()
    picture.draw(draw_head_maps, heads)
    _show(heads, heads_parts(heads, str(job.corpus), intervals=formats.intervals), format)


def search_layers(
    job: LayerSearchJob,
    picture: PictureOptions,
    formats: FormatOptions,
    json: Json = False,
) -> None:
    from promptcli.cli.search_tables import layers_parts

    format = formats.name(json=json)
    picture.check()
    layers = job.run()
    picture.draw(draw_layers, layers)
    _show(layers, layers_parts(layers, intervals=formats.intervals), format)


def search_templates(
    job: TemplateSearchJob,
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
    named = job.model or default_backbone(paper=paper)
    task = job.on
    if not task and paper:
        task = PAPER.development
    result = dataclasses.replace(job, model=choice_of(str(named)), on=task or None).run()
    picture.draw(draw_templates, result)
    _show(result, templates_parts(result, intervals=formats.intervals), format)
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
