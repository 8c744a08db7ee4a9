"""``promptcli analyze anisotropy``: how alike all sentence vectors, or all word embeddings, are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.compared import Compared, ComparedChoice, open_compared
from promptcli.cli.console import note, progress, result_json, result_table
from promptcli.cli.opening import announcer, configure_libraries, data_folder
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.plots import Picture, draw_bars, text_bar
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.analysis.anisotropy import Anisotropy, Preparation


def anisotropy(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SENTENCES]", help="A file, a task (STS-B, ...) or `demo`. Default: demo.", show_default=False
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=2, help="Take so many lines from the start.")] = 100_000,
    sample: Annotated[
        int | None, typer.Option(min=2, help="Take so many at random in their place.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --sample.")] = 0,
    lower: Annotated[bool, typer.Option("--lower/--cased", help="Lower-case the lines, for cased models too.")] = True,
    words: Annotated[int, typer.Option(min=0, help="Cut a line to so many words; 0: do not.")] = 32,
    text_field: Annotated[str | None, typer.Option(help="Field of the sentence in the file.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="SentEval folder of a task.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Of the rows of the word-embedding matrix (PromptBERT, table 2).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    *,
    picture: Picture,
    choice: ComparedChoice,
    runtime: Runtime,
) -> None:
    """Print the mean cosine between sentences (PromptBERT, eq. 1 and table 1; Ditto, table 5): 0 is isotropic.

    Lines are prepared as PromptBERT's code does: the first 100,000, lower-cased, cut to 32 words. The papers' texts
    say random sentences: --sample 1000 --cased --words 0 is Ditto's table 5.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.anisotropy import Preparation

    if tokens:
        compared = open_compared(choice, runtime, ["static-avg"])
        _report(*_of_tokens(compared), {"of": "rows of the word-embedding matrix"}, picture, runtime, json=json)
        return
    preparation = Preparation(first, sample, seed, lower, words or None)
    sentences = _sentences(source, data_dir, text_field, preparation, runtime)
    compared = open_compared(choice, runtime)
    from promptcli.analysis.anisotropy import sentence_anisotropy

    with progress("anisotropy", len(sentences), quiet=runtime.quiet) as advance:
        found = sentence_anisotropy(compared.encoders, sentences, progress=advance)
    rows = [
        {"model": label.model, "recipe": label.recipe, **_figures(one)}
        for label, one in zip(compared.labels, found, strict=True)
    ]
    about = {"of": "sentence vectors", "source": source or BARE.corpus, "prepared": _prepared(preparation)}
    _report(compared.names, rows, about, picture, runtime, json=json)


def _sentences(
    source: str | None, data_dir: Path | None, text_field: str | None, preparation: "Preparation", runtime: Runtime
) -> list[str]:
    from promptcli.analysis.anisotropy import check_enough
    from promptcli.data.sources import read_sentences

    if source is None:
        note("assumed: demo, sentences of our own; the papers': a file of Wikipedia sentences", quiet=runtime.quiet)
    lines = read_sentences(
        source or BARE.corpus,
        data_folder(data_dir),
        text_field=text_field,
        offline=runtime.offline,
        announce=announcer(runtime),
    )
    sentences = preparation.apply(lines)
    check_enough(len(sentences))
    return sentences


def _of_tokens(compared: Compared) -> tuple[list[str], list[dict[str, Any]]]:
    """Return names and figures of each backbone, once; a tuned one goes by its model's name."""
    from promptcli.analysis.anisotropy import token_anisotropy

    once = {id(encoder.backbone): place for place, encoder in reversed(list(enumerate(compared.encoders)))}
    places = sorted(once.values())
    rows = [
        {"model": compared.labels[place].model, **_figures(token_anisotropy(compared.encoders[place].backbone))}
        for place in places
    ]
    return [row["model"] for row in rows], rows


def _figures(found: "Anisotropy") -> dict[str, Any]:
    return {"anisotropy": round(found.value, 6), "vectors": found.vectors, "truncated": found.truncated}


def _prepared(preparation: "Preparation") -> dict[str, Any]:
    drawn = {"first": preparation.first}
    if preparation.sample is not None:
        drawn = {"sample": preparation.sample, "seed": preparation.seed}
    return {**drawn, "lower": preparation.lower, "words": preparation.words}


def _report(
    names: list[str],
    rows: list[dict[str, Any]],
    about: dict[str, Any],
    picture: Picture,
    runtime: Runtime,
    *,
    json: bool,
) -> None:
    values = {name: float(row["anisotropy"]) for name, row in zip(names, rows, strict=True)}
    cut = max(row["truncated"] for row in rows)
    if cut:
        note(f"{cut:,} sentences were cut to the longest input", quiet=runtime.quiet)
    if picture.plot is not None:
        draw_bars(
            picture.plot, values, "mean cosine over all pairs", f"Anisotropy of {rows[0]['vectors']:,} {about['of']}"
        )
        picture.drawn(quiet=runtime.quiet)
    if json:
        result_json({**about, "results": rows})
        return
    note(_caption(about, rows), quiet=runtime.quiet)
    result_table(
        ("", "mean cosine", ""), [(name, f"{value:>11.4f}", text_bar(value)) for name, value in values.items()]
    )


def _caption(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    count = f"{rows[0]['vectors']:,}"
    if "prepared" not in about:
        return f"PromptBERT, table 2: {about['of']}, {count} of them"
    treated = about["prepared"]
    chosen = f"a random sample, seed {treated['seed']}" if "sample" in treated else "from the start"
    cut = f", cut to {treated['words']} words" if treated["words"] else ""
    case = "lower-cased" if treated["lower"] else "as they are"
    return f"PromptBERT, eq. 1: {count} sentences of {about['source']}, {chosen}, {case}{cut}"
