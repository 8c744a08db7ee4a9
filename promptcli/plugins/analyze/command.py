"""``promptcli analyze``: shows each analysis as JSON, as a table and as a picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli import errors
from promptcli.cli import options
from promptcli.cli.console import note, print_json, print_line, print_table
from promptcli.cli.options import Json
from promptcli.errors import UsageError
from promptcli.plugins import analyze as library
from promptcli.plugins.analyze import ANALYSES, Analysis, pictures
from promptcli.recipe import ModelChoice
from promptcli.settings import BUILT_IN, spell_value

if TYPE_CHECKING:
    from promptcli.evaluation.scores import Label

#: The default sentence.
_SENTENCE = "A baker opens her shop before sunrise and lights the oven."
#: All pairs of STS-B, on which alignment and uniformity are compared.
_ALL_STS_B = ["STS-B:train", "STS-B:dev", "STS-B"]
#: The setting ``states`` of token-bias, as words in a caption.
_EMBEDDINGS = {"static": "word embeddings", "mlm-head": "output embeddings"}
#: An analysis's ``input`` -> the arguments in the help, and the default input: in words, and as the
#: library takes it.
_INPUTS: dict[str, tuple[str, str, str | list[str] | None]] = {
    "sentence": ("[SENTENCE]", f"the sentence {_SENTENCE!r}", _SENTENCE),
    "texts": ("SENTENCE...", "", None),
    "sentences": ("[FILE]", "the shipped demo sentences", BUILT_IN.corpus),
    "pairs": ("[TASK...]", "the shipped demo pairs", ["demo:dev", "demo"]),
    "nothing": ("", "", None),
}


def _help_of(name: str, analysis: Analysis) -> str:
    """Return the arguments, the result and the settings of an analysis, as help text."""
    defaults = [f"{key}={spell_value(default)}" for key, default in analysis.settings.items()]
    settings = f" (--set {', '.join(defaults)})" if defaults else ""
    arguments = f"{name} {_INPUTS[analysis.input][0]}".strip()
    return f"`{arguments}`: {analysis.help}{settings}."


_HELP = "\n\n".join(_help_of(name, analysis) for name, analysis in ANALYSES.items())
#: The recipes of Ditto's table 5 and figure 4; all share one forward pass.
_DITTO_RECIPES = (
    "static-avg",
    "static-ditto",
    "last-avg",
    "last-ditto",
    "first-last-avg",
    "first-last-ditto",
)
_PLAIN_RECIPE = ("first-last-avg",)


@dataclass(frozen=True)
class Findings:
    """The results of an analysis, its input and its settings."""

    results: "dict[Label, Any]"
    on: Any  #: the input, as the user wrote it
    settings: dict[str, Any]  #: the settings of the analysis, including the defaults
    color: str | None  #: the column that colours a map

    @property
    def by_name(self) -> dict[str, Any]:
        """The results by the models' names in a table."""
        from promptcli.cli.tables import table_names

        names = table_names(self.results)
        return {names[label]: result for label, result in self.results.items()}

    @property
    def first_result(self) -> Any:
        """The result of the first model."""
        return next(iter(self.results.values()))

    @property
    def models(self) -> str:
        """The names of all models, without their folders."""
        return ", ".join(dict.fromkeys(label.short_model for label in self.results))

    @property
    def model(self) -> str:
        """The name of the first model, and which of its token embeddings are shown, if any."""
        model = next(iter(self.results)).short_model
        states = self.settings.get("states")
        return model if states is None else f"{model}, {_EMBEDDINGS[states]}"


#: A caption, column headers and rows.
CaptionedTable = tuple[str, Sequence[str], Sequence[Sequence[object]]]


@dataclass(frozen=True)
class Display:
    """How the command shows an analysis."""

    table: Callable[[Findings], CaptionedTable]
    draw: Callable[[Path, Findings], None] | None = None  #: None if the analysis has no picture
    to_json: Callable[[Any], dict[str, Any]] = vars  #: makes the JSON object of one result
    #: the models of a command without ``--model``; None is the library's choice
    models: Sequence[str | None] = _PLAIN_RECIPE


@options.takes_model("model", "dim", "set")
def analyze(
    name: Annotated[str, typer.Argument(metavar="WHAT", help=_HELP)],
    on: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Sentences, a file, a task or `demo`. Default: examples shipped with promptcli.",
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Model, recipe, folder or hub id; repeatable. Default: the backbone; for"
            " anisotropy and uniformity, six recipes on the backbone.",
        ),
    ] = None,
    data_dir: options.DataDir = None,
    text_field: options.TextField = None,
    color: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Colour the points of a map by a column of the file: classes or numbers.",
        ),
    ] = None,
    json: Json = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Draw the result into a .png, .svg or .pdf file (needs matplotlib). A map can also"
                " be drawn into a .html page, whose points show their sentences (needs plotly)."
            ),
            rich_help_panel="Picture",
        ),
    ] = None,
    force: options.Force = False,
    set: options.RecipeFields = None,
    *,
    choice: ModelChoice,
) -> None:
    """Look inside models: their vectors, tokens and attention heads."""
    analysis = errors.look_up("analysis", name, ANALYSES)
    display = DISPLAYS[name]
    if plot is not None:
        pictures.check_picture(plot, force=force, page=analysis.is_map)
        if display.draw is None:
            raise UsageError(f"{name} has no picture; leave out --plot")
    kinds = {key: type(default) for key, default in analysis.settings.items()}
    changes = {**choice.changes, **options.parse_recipe_fields(set or (), kinds)}
    settings = {key: changes.pop(key) for key in kinds if key in changes}
    default_models = display.models
    if default_models in (_PLAIN_RECIPE, _DITTO_RECIPES) and changes.keys() - {"backbone"}:
        default_models = (None,)  # the changes describe one recipe
    folder = options.data_folder(data_dir)
    content = _read_input(name, on or [], folder)
    results: Any = library.analyze(
        name,
        [options.choice_of(model, changes) for model in models or default_models],
        content,
        data_dir=folder,
        text_field=text_field,
        color=color,
        skip_unfit=not models,
        **settings,
    )
    findings = Findings(results, content, {**analysis.settings, **settings}, color)
    if plot is not None and display.draw is not None:
        display.draw(plot, findings)
        note(f"drawn to {plot}")
    if json:
        rows = []
        for label, result in findings.results.items():
            names = {key: value for key, value in label.to_dict().items() if value}
            rows.append({**names, **display.to_json(result)})
        settings = findings.settings
        print_json({"analysis": name, "on": content, "settings": settings, "results": rows})
        return
    caption, headers, table_rows = display.table(findings)
    note(caption)
    if analysis.input == "sentence":
        _print_matrix(findings.first_result)
    print_table(headers, table_rows)


def _print_matrix(sentence: Any) -> None:
    """Print the matrix of a sentence's tokens, in percent of its largest value."""
    matrix = sentence.matrix
    percentages = (100 * matrix / (matrix.max() or 1.0)).round().astype(int).tolist()
    numbers = range(1, len(matrix) + 1)
    rows = []
    for number, token, percentages_of_token in zip(
        numbers, sentence.tokens, percentages, strict=True
    ):
        rows.append([number, token, *percentages_of_token])
    print_table(["", "", *map(str, numbers)], rows)
    print_line("")


def _read_input(name: str, words: list[str], folder: Path | None) -> str | list[str] | None:
    """Return the input as the library takes it: one sentence, sentences, their name, or tasks.

    Without words, it is the default input of the analysis.
    """
    from promptcli.data import arguments

    kind = ANALYSES[name].input
    expected, default_in_words, default = _INPUTS[kind]
    if not words:
        if kind == "texts":
            raise UsageError(f"{name} takes sentences; give at least one, in quotes")
        if kind == "pairs" and folder is not None:
            default_in_words, default = "STS-B", _ALL_STS_B
        if default_in_words:
            note(f"using {default_in_words}; give others after the name of the analysis")
        return default
    if kind == "nothing":
        raise UsageError(f"{name} takes no input; leave out {words[0]!r}")
    if kind == "pairs":
        return words
    if kind == "texts" or (kind == "sentences" and arguments.are_sentences(words)):
        for sentence in words:
            arguments.check_encodable(sentence)
        return words
    if len(words) > 1:
        raise UsageError(
            f"{name} takes {expected}, not {len(words)} words; put a sentence in quotes"
        )
    return words[0]


def _anisotropy_table(findings: Findings) -> CaptionedTable:
    _note_cut(findings)
    rows = [
        (name, f"{result.value:.4f}", _bar(result.value))
        for name, result in findings.by_name.items()
    ]
    caption = f"{_vectors_of(findings)}; 0 is isotropic (PromptBERT, eq. 1)"
    return caption, ("", "mean cosine", ""), rows


def _note_cut(findings: Findings) -> None:
    cut = max(result.truncated for result in findings.results.values())
    if cut:
        sentences = errors.with_count(cut, "sentence")
        note(f"{sentences} longer than the model's input: the ends were cut")


def _bar(share: float) -> str:
    return "█" * round(30 * max(0.0, min(share, 1.0)))


def _vectors_of(findings: Findings) -> str:
    """Return the number and the source of the vectors of an anisotropy."""
    if not findings.settings:
        return f"{findings.first_result.vectors:,} rows of the word-embedding matrix"
    settings = findings.settings
    choice = f"a random sample, seed {settings['seed']}" if settings["sample"] else "from the start"
    cut = f", cut to {settings['words']} words" if settings["words"] else ""
    source = findings.on if isinstance(findings.on, str) else "those given"
    case = "lower-cased" if settings["lower"] else "case unchanged"
    return f"{findings.first_result.vectors:,} sentences of {source}, {choice}, {case}{cut}"


def _draw_anisotropy(path: Path, findings: Findings) -> None:
    title = f"{findings.models}: anisotropy of {_vectors_of(findings)}"
    findings.first_result.draw(path, findings.by_name, title)


def _uniformity_table(findings: Findings) -> CaptionedTable:
    first = findings.first_result
    counts = f"{first.sentences:,} sentences, {first.positives:,} pairs that mean the same"
    rows = [
        (name, f"{result.alignment:.4f}", f"{result.uniformity:.4f}")
        for name, result in findings.by_name.items()
    ]
    caption = f"{', '.join(findings.on)}; {counts}; for both, lower is better"
    return caption, ("", "alignment", "uniformity"), rows


def _token_bias_table(findings: Findings) -> CaptionedTable:
    bias = findings.first_result
    first, second = (100 * share for share in bias.variance)
    axes = f"share of all variance: first axis {first:.1f}%, second {second:.1f}%"
    caption = f"{findings.model}, {len(bias.points):,} tokens; {axes}"
    rows = [
        (group.bias, group.name, f"{group.tokens:,}", *(f"{value:.3f}" for value in group.mean))
        for group in bias.groups
    ]
    return caption, ("bias", "group", "tokens", "first", "second"), rows


def _token_bias_json(bias: Any) -> dict[str, Any]:
    return {"tokens": len(bias.points), "variance": bias.variance, "groups": bias.groups}


def _map_table(findings: Findings) -> CaptionedTable:
    _note_cut(findings)
    rows = [
        (name, plane.method, f"{len(plane.points):,}", f"{plane.trustworthiness:.2f}")
        for name, plane in findings.by_name.items()
    ]
    caption = "trustworthiness is 1 if neighbours in the plane are neighbours in the model"
    return caption, ("", "method", "sentences", "trustworthiness"), rows


def _mask_tokens_table(findings: Findings) -> CaptionedTable:
    def text_of(guesses: Sequence[Any]) -> str:
        return ", ".join(f"{guess.token} {guess.probability:.2f}" for guess in guesses)

    rows = []
    for tokens in findings.first_result:
        if tokens.truncated:
            note(f"longer than the model's input, the end was cut: {tokens.sentence[:60]}...")
        rows.append((tokens.sentence, text_of(tokens.plain), text_of(tokens.denoised)))
    caption = f"{findings.model}, {next(iter(findings.results)).recipe}"
    return caption, ("sentence", "at the mask", "denoised"), rows


def _mask_tokens_json(results: Sequence[Any]) -> dict[str, Any]:
    sentences = [
        {
            "sentence": tokens.sentence,
            "tokens": tokens.plain,
            "tokens_denoised": tokens.denoised,
            "truncated": tokens.truncated,
        }
        for tokens in results
    ]
    return {"sentences": sentences}


def _impact_table(findings: Findings) -> CaptionedTable:
    impact = findings.first_result
    caption = (
        f"{findings.model}: impact of the token above on the token of the row, in % of"
        f" {impact.matrix.max():.3f}"
    )
    means = enumerate(zip(impact.tokens, impact.means, strict=True), 1)
    rows = [(number, token, f"{mean:.4f}") for number, (token, mean) in means]
    return caption, ("", "token", "mean impact on all tokens"), rows


def _impact_study_table(findings: Findings) -> CaptionedTable:
    study = findings.first_result
    counts = f"{study.sentences:,} sentences, {len(study.means):,} tokens"
    by_name = {"all tokens together": study.correlation, "mean of sentences": study.by_sentence}
    rows = [
        (name, f"{correlation.pearson:.4f}", f"{correlation.spearman:.4f}")
        for name, correlation in by_name.items()
    ]
    caption = f"{findings.model}: mean impact of tokens against their TF-IDF; {counts}"
    return caption, ("", "Pearson", "Spearman"), rows


def _impact_study_json(study: Any) -> dict[str, Any]:
    counts = {"sentences": study.sentences, "left_out": study.left_out, "tokens": len(study.means)}
    return {**counts, "correlation": study.correlation, "mean_of_sentences": study.by_sentence}


def _attention_table(findings: Findings) -> CaptionedTable:
    attention = findings.first_result
    caption = (
        f"{findings.model}, head {attention.head}: attention of the token of the row to the token"
        f" above, in % of {attention.matrix.max():.3f}; below, the diagonal"
    )
    weights = attention.diagonal
    tokens = enumerate(zip(attention.tokens, weights, strict=True), 1)
    rows = [
        (number, token, f"{weight:.4f}", _bar(weight / weights.max()))
        for number, (token, weight) in tokens
    ]
    return caption, ("", "token", "to itself", ""), rows


def _anisotropy_json(result: Any) -> dict[str, Any]:
    return {"anisotropy": result.value, "vectors": result.vectors, "truncated": result.truncated}


def _draw(path: Path, findings: Findings) -> None:
    """Draw the result of the first model, under the model's name."""
    findings.first_result.draw(path, findings.model)


def _draw_uniformity(path: Path, findings: Findings) -> None:
    title = f"{findings.models}: alignment and uniformity on {' + '.join(findings.on)}"
    findings.first_result.draw(path, findings.by_name, title)


def _draw_map(path: Path, findings: Findings) -> None:
    from promptcli.plugins.analyze.sentence_map import draw_map

    draw_map(path, findings.by_name, findings.color)


#: How each of ``ANALYSES`` is shown, by name.
DISPLAYS: dict[str, Display] = {
    "anisotropy": Display(_anisotropy_table, _draw_anisotropy, _anisotropy_json, _DITTO_RECIPES),
    "vocabulary": Display(_anisotropy_table, _draw_anisotropy, _anisotropy_json),
    "uniformity": Display(_uniformity_table, _draw_uniformity, models=_DITTO_RECIPES),
    "token-bias": Display(_token_bias_table, _draw, _token_bias_json),
    "map": Display(_map_table, _draw_map, models=(None,)),
    "mask-tokens": Display(
        _mask_tokens_table, to_json=_mask_tokens_json, models=("prompt-denoised",)
    ),
    "impact": Display(_impact_table, _draw),
    "impact-tfidf": Display(_impact_study_table, _draw, _impact_study_json),
    "attention": Display(_attention_table, _draw),
}
