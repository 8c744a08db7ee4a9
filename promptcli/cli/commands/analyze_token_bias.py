"""``promptcli analyze token-bias``: where tokens lie by frequency, subword and case."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, progress, result_json, result_table
from promptcli.cli.opening import announcer, configure_libraries, data_folder, default_backbone, open_backbone
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.plots import BLUE, GREY, ORANGE, Picture, drawing, rounded
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.analysis.token_bias import TokenBias


def token_bias(
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="[CORPUS]",
            help="Sentences to count tokens in: a file, a task or `demo`. Default: demo.",
            show_default=False,
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A local folder or a hub id. Default: mini.", show_default=False)
    ] = None,
    states: Annotated[
        str, typer.Option(help="static: word embeddings; mlm-head: output embeddings (figure 2, for untied models).")
    ] = "static",
    data_dir: Annotated[Path | None, typer.Option(help="SentEval folder of a task.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    *,
    picture: Picture,
    runtime: Runtime,
) -> None:
    """Print how token embeddings lie by frequency, subword and case, in the plane of most variance (PromptBERT, fig 1).

    The position of a group is the mean of its tokens; `between` is the share of the plane's variance that lies
    between a bias's groups. The special tokens are left out.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.token_bias import token_bias as find_bias
    from promptcli.data.sources import fitting_sentences

    if corpus is None:
        note("assumed: frequencies of demo, sentences of our own", quiet=runtime.quiet)
    source = corpus or BARE.corpus
    sentences = fitting_sentences(source, data_folder(data_dir), offline=runtime.offline, announce=announcer(runtime))
    backbone = backbone or default_backbone(paper=False)
    loaded = open_backbone(backbone, runtime)
    with progress("token-bias", len(sentences), quiet=runtime.quiet) as advance:
        found = find_bias(loaded, sentences, states=states, progress=advance)
    if picture.plot is not None:
        draw_bias(picture.plot, found, f"{backbone}, {EMBEDDINGS[states]}")
        picture.drawn(quiet=runtime.quiet)
    if json:
        about = {"backbone": backbone, "states": states, "corpus": source, "sentences": len(sentences)}
        groups = [{**dataclasses.asdict(group), "mean": rounded(group.mean)} for group in found.groups]
        between = {bias: round(share, 6) for bias, share in found.between.items()}
        figures = {"tokens": len(found.points), "variance": rounded(found.variance), "between": between}
        result_json({**about, **figures, "groups": groups})
        return
    first, second = (100 * share for share in found.variance)
    note(
        f"{backbone}, {EMBEDDINGS[states]}, {len(found.points):,} tokens; share of all variance: first axis"
        f" {first:.1f}%, second {second:.1f}%; frequencies: {source}",
        quiet=runtime.quiet,
    )
    rows = [
        (group.bias, group.name, f"{group.tokens:>6,}", *(f"{value:>7.3f}" for value in group.mean), "")
        for group in found.groups
    ]
    seen: set[str] = set()
    for place, row in enumerate(rows):
        if row[0] not in seen:
            seen.add(row[0])
            rows[place] = (*row[:-1], f"{100 * found.between[row[0]]:>6.1f}%")
    result_table(("bias", "group", "tokens", "  first", " second", "between"), rows)


#: What the states are called.
EMBEDDINGS = {"static": "word embeddings", "mlm-head": "output embeddings"}


def draw_bias(path: Path, found: "TokenBias", title: str) -> None:
    """Draw a panel for each bias that has two groups; pieces inside words, and capitals, lie on top."""
    import numpy as np

    flags = [("continues a word", "starts a word", found.subword)]
    if found.capital.any():
        flags.append(("with a capital", "no capital", found.capital))
    with drawing(path, 4.0 * (1 + len(flags)), 4.2, dpi=100) as figure:
        panels = figure.subplots(1, 1 + len(flags), sharex=True, sharey=True)
        dots = {"s": 3, "linewidths": 0, "rasterized": True, "antialiased": False}
        seen = found.counts > 0
        panels[0].scatter(*found.points[~seen].T, color=GREY, label="never", **dots)
        order = np.argsort(found.counts[seen], kind="stable")
        logs = np.log10(found.counts[seen])[order]
        image = panels[0].scatter(*found.points[seen][order].T, c=logs, cmap="cividis_r", **dots)
        figure.colorbar(image, ax=panels[0], label="log10 of the count; grey: never")
        panels[0].set_title("frequency", fontsize="medium")
        for panel, (with_it, without, flag) in zip(panels[1:], flags, strict=True):
            for chosen, name, colour in ((~flag, without, BLUE), (flag, with_it, ORANGE)):
                panel.scatter(*found.points[chosen].T, color=colour, label=name, **dots)
            above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}
            panel.legend(**above, markerscale=3, frameon=False, borderaxespad=0, handletextpad=0, columnspacing=1)
        for panel in panels:
            panel.set_xlabel(f"first component ({100 * found.variance[0]:.1f}%)")
        panels[0].set_ylabel(f"second component ({100 * found.variance[1]:.1f}%)")
        figure.suptitle(title)
