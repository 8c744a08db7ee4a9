"""``promptcli analyze impact``: which tokens matter to the others' states, by perturbed masking."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import note, out, progress, result_json, result_table
from promptcli.cli.opening import announcer, configure_libraries, data_folder, default_backbone, open_backbone
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.plots import BLUE, Picture, drawing, rounded
from promptcli.cli.pictures.token_map import SENTENCE, draw_token_map, token_map
from promptcli.errors import UsageError

if TYPE_CHECKING:
    from promptcli.analysis.impact import Impact, ImpactStudy
    from promptcli.backbones.backbone import Backbone


def impact(
    sentence: Annotated[
        str | None, typer.Argument(metavar="[SENTENCE]", help="Whose matrix to print.", show_default=False)
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SENTENCES",
            help="Compare with TF-IDF over many sentences (table 3): a file, a task or `demo`.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=1, help="Take so many of them.")] = 1000,
    corpus: Annotated[str, typer.Option(help="Sentences to count idf on: a file, a task or `demo`.")] = "demo",
    backbone: Annotated[
        str | None, typer.Option(help="A local folder or a hub id. Default: mini.", show_default=False)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="SentEval folder of a task.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    *,
    picture: Picture,
    runtime: Runtime,
) -> None:
    """Print how much each token matters to each other one's state (perturbed masking: Ditto, 2.3 and table 3).

    The figure in row i and column j: how far the last-layer state at the masked i moves when j is masked, too. With
    --on: how alike the column means and TF-IDF are. N tokens take N(N+1)/2 forward passes.
    """
    configure_libraries(runtime)
    picture.check()
    if sentence is not None and on is not None:
        raise UsageError("give a sentence, or sentences by --on, not both")
    if sentence is None and on is None:
        note(f"assumed: a sentence of our own; many of them: --on FILE (or --on demo): {SENTENCE}", quiet=runtime.quiet)
    backbone = backbone or default_backbone(paper=False)
    if on is None:
        _one(open_backbone(backbone, runtime), sentence or SENTENCE, picture, runtime, json=json)
        return
    from promptcli.analysis.impact import compare_with_tfidf
    from promptcli.data.sources import fitting_sentences, read_sentences

    folder = data_folder(data_dir)
    sentences = list(
        itertools.islice(read_sentences(on, folder, offline=runtime.offline, announce=announcer(runtime)), first)
    )
    documents = fitting_sentences(corpus, folder, offline=runtime.offline, announce=announcer(runtime))
    loaded = open_backbone(backbone, runtime)
    with progress("impact", len(sentences), quiet=runtime.quiet) as advance:
        found = compare_with_tfidf(loaded, sentences, documents, progress=advance)
    about = {"backbone": backbone, "source": on, "idf": {"source": corpus, "sentences": len(documents)}}
    _many(found, about, picture, runtime, json=json)


def _one(backbone: "Backbone", sentence: str, picture: Picture, runtime: Runtime, *, json: bool) -> None:
    from promptcli.analysis.impact import impact as find_impact

    with progress("impact", None, quiet=runtime.quiet) as advance:
        found = find_impact(backbone, sentence, progress=advance)
    if picture.plot is not None:
        draw_impact(picture.plot, found, backbone.name)
        picture.drawn(quiet=runtime.quiet)
    if json:
        matrix = [rounded(row) for row in found.matrix.tolist()]
        result_json(
            {
                "backbone": backbone.name,
                "sentence": sentence,
                "tokens": found.tokens,
                "matrix": matrix,
                "means": rounded(found.means.tolist()),
            }
        )
        return
    note(
        f"{backbone.name}: impact of the token above on the token beside, in % of {found.matrix.max():.3f}",
        quiet=runtime.quiet,
    )
    for line in token_map(found.tokens, found.matrix.tolist()):
        out.print(line)
    cells = [
        (f"{number:>3}", token, f"{mean:.4f}")
        for number, (token, mean) in enumerate(zip(found.tokens, found.means, strict=True), 1)
    ]
    result_table(("", "token", "mean impact on all"), cells)


def _many(found: "ImpactStudy", about: dict[str, Any], picture: Picture, runtime: Runtime, *, json: bool) -> None:
    if found.left_out:
        note(f"{found.left_out:,} sentences are left out: blank, or longer than the longest input", quiet=runtime.quiet)
    if picture.plot is not None:
        _draw_many(picture.plot, found, about["backbone"])
        picture.drawn(quiet=runtime.quiet)
    if json:
        result_json({**about, **_figures(found)})
        return
    note(
        f"{about['backbone']}: column means of the impact matrix against TF-IDF (idf: {about['idf']['source']});"
        f" {found.sentences:,} sentences of {about['source']}, {len(found.means):,} tokens",
        quiet=runtime.quiet,
    )
    rows = {"all tokens together": found.correlation, "mean of sentences": found.by_sentence}
    cells = [(name, f"{one.pearson:>7.4f}", f"{one.spearman:>8.4f}") for name, one in rows.items()]
    result_table(("", "Pearson", "Spearman"), cells)


def _figures(found: "ImpactStudy") -> dict[str, Any]:
    return {
        "sentences": found.sentences,
        "left_out": found.left_out,
        "tokens": len(found.means),
        "correlation": found.correlation.to_dict(),
        "mean_of_sentences": found.by_sentence.to_dict(),
    }


def draw_impact(path: Path, found: "Impact", backbone: str) -> None:
    """Draw the impact matrix of a sentence."""
    side = 1.6 + 0.26 * len(found.tokens)
    with drawing(path, max(side + 1.0, 5.0), max(side, 4.2)) as figure:
        panel = figure.subplots()
        image = draw_token_map(panel, found.tokens, found.matrix.tolist())
        panel.set(
            xlabel="token that is masked, too", ylabel="masked token whose state moves", title=f"Impact, {backbone}"
        )
        figure.colorbar(image, ax=panel, label="Euclidean distance", shrink=0.8)


def _draw_many(path: Path, found: "ImpactStudy", backbone: str) -> None:
    with drawing(path, 6.4, 4.6) as figure:
        panel = figure.subplots()
        panel.scatter(found.weights, found.means, s=4, linewidths=0, alpha=0.4, color=BLUE, rasterized=True)
        one = found.correlation
        title = f"{backbone}: Pearson {one.pearson:.2f}, Spearman {one.spearman:.2f} over {len(found.means):,} tokens"
        panel.set(xlabel="TF-IDF", ylabel="mean impact of the token", title=title)
