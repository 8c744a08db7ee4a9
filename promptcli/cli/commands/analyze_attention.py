"""``promptcli analyze attention``: what one attention head does on one sentence."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import note, out, result_json, result_table
from promptcli.cli.opening import configure_libraries, default_backbone, open_backbone
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.plots import GREY, RED, Picture, drawing, rounded, text_bar
from promptcli.cli.pictures.token_map import SENTENCE, draw_token_map, token_map

if TYPE_CHECKING:
    from promptcli.analysis.attention import Attention


def attention(
    sentence: Annotated[
        str | None, typer.Argument(metavar="[SENTENCE]", help="What the head looks at.", show_default=False)
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="L-H", help="Layer-head, 1-based. Default: the best known one of the backbone."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A local folder or a hub id. Default: mini.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    *,
    picture: Picture,
    runtime: Runtime,
) -> None:
    """Print one head's attention on a sentence and its diagonal, the weights of Ditto pooling (Ditto, figure 2).

    The figure in row i and column j: how much token i attends to token j.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.attention import attention as find_attention

    if sentence is None:
        note(f"assumed: a sentence of our own: {SENTENCE}", quiet=runtime.quiet)
    backbone = backbone or default_backbone(paper=False)
    found = find_attention(open_backbone(backbone, runtime), sentence or SENTENCE, head)
    if picture.plot is not None:
        draw_attention(picture.plot, found, backbone)
        picture.drawn(quiet=runtime.quiet)
    diagonal = found.diagonal.tolist()
    if json:
        result_json(
            {
                "backbone": backbone,
                "head": found.head,
                "sentence": sentence or SENTENCE,
                "tokens": found.tokens,
                "diagonal": rounded(diagonal),
                "matrix": [rounded(row) for row in found.matrix.tolist()],
            }
        )
        return
    note(
        f"{backbone}, head {found.head}: attention of the token beside to the token above, in % of"
        f" {found.matrix.max():.3f}; below, the diagonal",
        quiet=runtime.quiet,
    )
    for line in token_map(found.tokens, found.matrix.tolist()):
        out.print(line)
    greatest = max(diagonal)
    cells = [
        (f"{number:>3}", token, f"{value:.4f}", text_bar(value / greatest))
        for number, (token, value) in enumerate(zip(found.tokens, diagonal, strict=True), 1)
    ]
    result_table(("", "token", "to itself", ""), cells)


def draw_attention(path: Path, found: "Attention", backbone: str) -> None:
    """Draw the matrix, and beside it the diagonal as bars."""
    count = len(found.tokens)
    high = max(1.6 + 0.24 * count, 4.0)
    with drawing(path, high + 3.4, high) as figure:
        matrix, bars = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1))
        drawn = draw_token_map(matrix, found.tokens, found.matrix.tolist())
        matrix.set(xlabel="token attended to", ylabel="token that attends", title="attention")
        figure.colorbar(drawn, ax=matrix, location="left", shrink=0.8)
        bars.barh(range(count), found.diagonal, color=RED)
        bars.set(xlabel="attention to itself", title="diagonal: Ditto's weights")
        bars.tick_params(labelleft=False)
        bars.grid(axis="x", color=GREY, alpha=0.5)
        figure.suptitle(f"{backbone}, head {found.head}")
