"""``promptcli analyze``: looks inside models; each analysis with its JSON, tables and picture."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.analysis.analyze import ANALYSES
from promptcli.cli.console import note, out, result_json, result_table, rounded
from promptcli.cli.options import (
    DataDir,
    Json,
    RecipeOptions,
    Section,
    SentenceField,
    choice_of,
    data_folder,
    parsed_by,
    value_typed,
)
from promptcli.cli.pictures import analyses as pictures
from promptcli.cli.pictures.maps import text_bar, token_map
from promptcli.cli.pictures.plots import PictureOptions, draw_bars
from promptcli.errors import UsageError, look_up
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.analysis.anisotropy import Anisotropy
    from promptcli.analysis.impact import Impact, ImpactStudy
    from promptcli.analysis.mask_tokens import MaskTokens
    from promptcli.analysis.sentence import Attention
    from promptcli.analysis.sentence_map import SentenceMap
    from promptcli.analysis.token_bias import TokenBias
    from promptcli.evaluation.scores import Label

#: What an analysis takes, as its arguments are written.
_TAKES = {"sentence": "[SENTENCE]", "texts": "SENTENCE...", "sentences": "[FILE]", "pairs": "[TASK...]", "nothing": ""}
#: The rows of Ditto's table 5 and figure 4; one forward pass serves all.
_ROWS = ("static-avg", "static-ditto", "last-avg", "last-ditto", "first-last-avg", "first-last-ditto")


@dataclass(frozen=True)
class Shown:
    """The results of an analysis, by model."""

    results: "dict[Label, Any]"
    on: Any  #: the input, as it was given
    settings: dict[str, Any]  #: of the analysis, with the defaults

    @property
    def named(self) -> dict[str, Any]:
        """Results by the models' names in a table."""
        from promptcli.cli.tables import table_names

        names = table_names(self.results)
        return {names[label]: result for label, result in self.results.items()}

    @property
    def only(self) -> Any:
        """The result of the first model."""
        return next(iter(self.results.values()))

    @property
    def model(self) -> str:
        """The first model."""
        return next(iter(self.results)).model


@dataclass(frozen=True)
class Display:
    """How an analysis is shown."""

    row: Callable[[Any], dict[str, Any]]  #: result -> JSON-ready values
    write: Callable[[Shown], None]  #: prints tables
    draw: Callable[[Path, Shown], None] | None = None
    models: Sequence[str | None] = (None,)  #: the default models; None: the default backbone


def analyze(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="Name of an analysis, see below.")],
    on: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ON]...", help="Sentences, a file, a task or `demo`, see below. Default: our own."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Model, recipe, folder or hub id; repeatable. Default: --backbone; for anisotropy and uniformity six"
            " recipes on it.",
        ),
    ] = None,
    text_field: SentenceField = None,
    data_dir: DataDir = None,
    json: Json = False,
    *,
    picture: PictureOptions,
    recipe: RecipeOptions,
) -> None:
    """Look inside models: how their vectors lie, what their tokens and heads do."""
    picture.check()
    from promptcli.analysis.analyze import analyze_all

    display, known = look_up("analysis", what, DISPLAYS), ANALYSES[what].settings
    pairs = [pair for pair in recipe.set or () if pair.partition("=")[0].replace("-", "_") in known]
    settings = parsed_by({name: item.annotation for name, item in known.items()}, pairs)
    changes = recipe.changes(but=pairs)
    words: Sequence[str | None] = model or (
        display.models if len(display.models) == 1 or changes.keys() <= {"backbone"} else [None]
    )
    plain = "first-last-avg" if changes.keys() <= {"backbone"} else None
    chosen = [choice_of(word or plain, changes) for word in words]
    folder = data_folder(data_dir)
    given = _given(what, on or [], folder)
    results = analyze_all(
        what, chosen, given, data_dir=folder, text_field=text_field, skip_unfit=not model, settings=settings
    )
    shown = Shown(results, given, {name: settings.get(name, item.default) for name, item in known.items()})
    if display.draw is not None:
        picture.draw(display.draw, shown)
    if json:
        rows = [
            {"model": label.model, "recipe": label.recipe, **display.row(result)} for label, result in results.items()
        ]
        result_json({"analysis": what, "on": given, "settings": shown.settings, "results": rows})
    else:
        display.write(shown)


def _given(what: str, words: Sequence[str], folder: Path | None) -> Any:
    """Return the input: sentences or their name, one sentence, or names of tasks."""
    from promptcli.data.given import are_sentences, check_encodable

    takes = ANALYSES[what].takes
    if takes == "nothing":
        if words:
            raise UsageError(f"{what} takes no input; leave out {words[0]!r}")
        return None
    if takes == "pairs":
        usual = ["STS-B:train", "STS-B:dev", "STS-B"] if folder else ["demo:dev", "demo"]
        return list(words) or _assumed(usual, "demo pairs" if folder is None else "STS-B")
    if takes == "sentence":
        if len(words) > 1:
            raise UsageError(f"{what} takes one sentence, not {len(words)}; put it in quotes")
        return words[0] if words else _assumed(pictures.SENTENCE, pictures.SENTENCE)
    if takes == "texts" and not words:
        raise UsageError(f"{what} takes sentences; give some, in quotes")
    if takes == "texts" or (words and are_sentences(words)):
        for sentence in words:
            check_encodable(sentence)
        return list(words)
    if len(words) > 1:
        raise UsageError(f"{what} takes one file or task, or sentences in quotes; got {' '.join(words)}")
    return words[0] if words else _assumed(BARE.corpus, "demo, shipped sentences")


def _assumed(usual: Any, name: str) -> Any:
    note(f"assumed: {name}")
    return usual


def help_text(_: Sequence[str]) -> Section:
    """Return the table of analyses, for the end of the help page."""
    rows = []
    for name, analysis in ANALYSES.items():
        settings = ", ".join(f"{key}={value_typed(one.default) or 'L-H'}" for key, one in analysis.settings.items())
        says = f"{analysis.help}.{f' --set {settings}.' if settings else ''}"
        rows.append((f"{name} {_TAKES[analysis.takes]}".rstrip(), says))
    return "Analyses", rows


def _write_anisotropy(shown: Shown) -> None:
    values = {name: one.value for name, one in shown.named.items()}
    cut = max(one.truncated for one in shown.results.values())
    if cut:
        note(f"{cut:,} sentences were cut to the longest input")
    note(f"{_anisotropy_of(shown)}; 0 is isotropic (PromptBERT, eq. 1)")
    result_table(("", "mean cosine", ""), [(name, f"{value:.4f}", text_bar(value)) for name, value in values.items()])


def _anisotropy_of(shown: Shown) -> str:
    if not shown.settings:
        return f"{shown.only.vectors:,} rows of the word-embedding matrix"
    settings = shown.settings
    chosen = f"a random sample, seed {settings['seed']}" if settings["sample"] else "from the start"
    cut = f", cut to {settings['words']} words" if settings["words"] else ""
    on = shown.on if isinstance(shown.on, str) else "those given"
    case = "lower-cased" if settings["lower"] else "case unchanged"
    return f"{shown.only.vectors:,} sentences of {on}, {chosen}, {case}{cut}"


def _draw_anisotropy(path: Path, shown: Shown) -> None:
    values = {name: one.value for name, one in shown.named.items()}
    draw_bars(path, values, "mean cosine over all pairs", f"Anisotropy of {_anisotropy_of(shown)}")


def _anisotropy_row(found: "Anisotropy") -> dict[str, Any]:
    return {"anisotropy": round(found.value, 6), "vectors": found.vectors, "truncated": found.truncated}


def _write_uniformity(shown: Shown) -> None:
    note(
        f"{', '.join(shown.on)}; {shown.only.sentences:,} sentences, {shown.only.positives:,} pairs that mean the same;"
        " both figures are better when lower"
    )
    cells = [(name, f"{one.alignment:.4f}", f"{one.uniformity:.4f}") for name, one in shown.named.items()]
    result_table(("", "alignment", "uniformity"), cells)


def _write_token_bias(shown: Shown) -> None:
    found: TokenBias = shown.only
    first, second = (100 * share for share in found.variance)
    note(
        f"{shown.model}, {pictures.EMBEDDINGS[shown.settings['states']]}, {len(found.points):,} tokens; share of all"
        f" variance: first axis {first:.1f}%, second {second:.1f}%; `between`: share that lies between the groups"
    )
    left = {bias: f"{100 * share:.1f}%" for bias, share in found.between.items()}  # said once, with the first group
    rows = [
        (group.bias, group.name, f"{group.tokens:,}", *(f"{at:.3f}" for at in group.mean), left.pop(group.bias, ""))
        for group in found.groups
    ]
    result_table(("bias", "group", "tokens", "first", "second", "between"), rows)


def _token_bias_row(found: "TokenBias") -> dict[str, Any]:
    groups = [{**dataclasses.asdict(group), "mean": rounded(group.mean)} for group in found.groups]
    between = {bias: round(share, 6) for bias, share in found.between.items()}
    return {"tokens": len(found.points), "variance": rounded(found.variance), "between": between, "groups": groups}


def _write_map(shown: Shown) -> None:
    found: SentenceMap = shown.only
    note(
        f"{shown.model}: {len(found.points):,} sentences by {found.method}, trustworthiness"
        f" {found.trustworthiness:.2f}; --plot FILE.png draws them"
    )
    sizes = [str((found.clusters == cluster).sum()) for cluster in range(len(found.words))]
    result_table(
        ("cluster", "sentences"), [(", ".join(words), size) for words, size in zip(found.words, sizes, strict=True)]
    )


def _map_row(found: "SentenceMap") -> dict[str, Any]:
    points, clusters = [rounded(point) for point in found.points.tolist()], found.clusters.tolist()
    about = {"method": found.method, "trustworthiness": round(found.trustworthiness, 6), "words": found.words}
    return {**about, "points": points, "clusters": clusters}


def _write_mask_tokens(shown: Shown) -> None:
    def likely(guesses: Sequence[Any]) -> str:
        return ", ".join(f"{guess.token} {guess.probability:.2f}" for guess in guesses)

    for row in (row for row in shown.only if row.truncated):
        note(f"cut to the longest input: {row.sentence[:60]}...")
    note(f"{shown.model}, {next(iter(shown.results)).recipe}")
    cells = [(row.sentence, likely(row.plain), likely(row.denoised)) for row in shown.only]
    result_table(("sentence", "at the mask", "denoised"), cells)


def _mask_tokens_row(found: "Sequence[MaskTokens]") -> dict[str, Any]:
    rows = [
        {
            "sentence": row.sentence,
            "truncated": row.truncated,
            "tokens": [dataclasses.asdict(guess) for guess in row.plain],
            "tokens_denoised": [dataclasses.asdict(guess) for guess in row.denoised],
        }
        for row in found
    ]
    return {"sentences": rows}


def _write_impact(shown: Shown) -> None:
    found: Impact = shown.only
    note(f"{shown.model}: impact of the token above on the token of the row, in % of {found.matrix.max():.3f}")
    for line in token_map(found.tokens, found.matrix.tolist()):
        out.print(line)
    means = enumerate(zip(found.tokens, found.means, strict=True), 1)
    rows = [(str(number), token, f"{mean:.4f}") for number, (token, mean) in means]
    result_table(("", "token", "mean impact on all"), rows)


def _impact_row(found: "Impact") -> dict[str, Any]:
    matrix = [rounded(row) for row in found.matrix.tolist()]
    return {"tokens": found.tokens, "matrix": matrix, "means": rounded(found.means.tolist())}


def _write_impact_study(shown: Shown) -> None:
    found: ImpactStudy = shown.only
    note(
        f"{shown.model}: mean impact of tokens against their TF-IDF; {found.sentences:,} sentences,"
        f" {len(found.means):,} tokens"
    )
    rows = {"all tokens together": found.correlation, "mean of sentences": found.by_sentence}
    cells = [(name, f"{one.pearson:.4f}", f"{one.spearman:.4f}") for name, one in rows.items()]
    result_table(("", "Pearson", "Spearman"), cells)


def _impact_study_row(found: "ImpactStudy") -> dict[str, Any]:
    counts = {"sentences": found.sentences, "left_out": found.left_out, "tokens": len(found.means)}
    return {**counts, "correlation": found.correlation.to_dict(), "mean_of_sentences": found.by_sentence.to_dict()}


def _write_attention(shown: Shown) -> None:
    found: Attention = shown.only
    note(
        f"{shown.model}, head {found.head}: attention of the token of the row to the token above, in % of"
        f" {found.matrix.max():.3f}; below, the diagonal"
    )
    for line in token_map(found.tokens, found.matrix.tolist()):
        out.print(line)
    diagonal = found.diagonal.tolist()
    rows = enumerate(zip(found.tokens, diagonal, strict=True), 1)
    cells = [(str(number), token, f"{one:.4f}", text_bar(one / max(diagonal))) for number, (token, one) in rows]
    result_table(("", "token", "to itself", ""), cells)


def _attention_row(found: "Attention") -> dict[str, Any]:
    matrix, diagonal = [rounded(row) for row in found.matrix.tolist()], rounded(found.diagonal.tolist())
    return {"head": found.head, "tokens": found.tokens, "diagonal": diagonal, "matrix": matrix}


def _drawn(paint: Callable[[Path, Any, str], None]) -> Callable[[Path, Shown], None]:
    """Return what draws what was found of the first model, under the model's name."""
    return lambda path, shown: paint(path, shown.only, shown.model)


#: By the names of ``analysis.ANALYSES``.
DISPLAYS: dict[str, Display] = {
    "anisotropy": Display(_anisotropy_row, _write_anisotropy, _draw_anisotropy, _ROWS),
    "vocabulary": Display(_anisotropy_row, _write_anisotropy, _draw_anisotropy),
    "uniformity": Display(
        lambda found: found.to_dict(),
        _write_uniformity,
        lambda path, shown: pictures.draw_uniformity(path, shown.named, shown.on),
        _ROWS,
    ),
    "token-bias": Display(
        _token_bias_row,
        _write_token_bias,
        lambda path, shown: pictures.draw_token_bias(
            path, shown.only, f"{shown.model}, {pictures.EMBEDDINGS[shown.settings['states']]}"
        ),
    ),
    "map": Display(_map_row, _write_map, _drawn(pictures.draw_map), ("mini",)),
    "mask-tokens": Display(_mask_tokens_row, _write_mask_tokens, models=("prompt-denoised",)),
    "impact": Display(_impact_row, _write_impact, _drawn(pictures.draw_impact)),
    "impact-tfidf": Display(_impact_study_row, _write_impact_study, _drawn(pictures.draw_impact_study)),
    "attention": Display(_attention_row, _write_attention, _drawn(pictures.draw_attention)),
}
