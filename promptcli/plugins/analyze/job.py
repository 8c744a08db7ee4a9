"""The public interface of analysis: ways to look inside models, and the function that runs one.

It imports nothing heavy, since the command line reads the table; an analysis imports its module
when it runs.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from promptcli import NotFoundError, UsageError
from promptcli.extending import (
    BARE,
    Job,
    argument,
    errors,
    function_of,
    keyword,
    option,
    senteval,
)

if TYPE_CHECKING:
    from promptcli.extending import Label, Model, TorchEncoder, loading
    from promptcli.plugins.analyze.geometry import Anisotropy, Uniformity
    from promptcli.plugins.analyze.mask_tokens import MaskTokens
    from promptcli.plugins.analyze.sentence import Attention, Impact, ImpactStudy
    from promptcli.plugins.analyze.sentence_map import SentenceMap
    from promptcli.plugins.analyze.token_bias import TokenBias

    Found: TypeAlias = (
        Anisotropy
        | Uniformity
        | TokenBias
        | SentenceMap
        | list[MaskTokens]
        | Impact
        | ImpactStudy
        | Attention
    )

#: A value of a setting of an analysis.
Setting = str | int | bool | Sequence[str]


@dataclass(frozen=True)
class Analysis:
    """One way of looking at models."""

    help: str  #: its result, with its place in the papers
    #: ``sentence``, ``texts`` (sentences), ``sentences`` (or their name), ``pairs`` (tasks),
    #: ``nothing``
    takes: str
    #: ``MODULE:FUNCTION`` of encoders, or of a backbone, the input, and the settings by keyword
    run: str
    #: takes one backbone, whatever the recipe; else all encoders, a result for each
    of_backbone: bool = False
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)  #: with their defaults
    coloured: bool = False  #: takes a column beside the sentences

    def run_on(
        self, encoders: "Sequence[TorchEncoder]", content: Any, values: Mapping[str, Any]
    ) -> "list[Found]":
        """Return the result for each encoder, of an input and the settings."""
        module, _, function = self.run.partition(":")
        run = getattr(importlib.import_module(f"promptcli.plugins.analyze.{module}"), function)
        arguments = [] if content is None else [content]
        if self.of_backbone:
            return [run(encoder.backbone, *arguments, **values) for encoder in encoders]
        results: list[Found] = run(encoders, *arguments, **values)
        return results


#: By the name that ``promptcli.analyze`` takes.
ANALYSES: dict[str, Analysis] = {
    "anisotropy": Analysis(
        "Mean cosine between sentences (PromptBERT, table 1; Ditto, table 5)",
        "sentences",
        "geometry:prepared_anisotropy",
        settings={"first": 100_000, "sample": 0, "seed": 0, "lower": True, "words": 32},
    ),
    "vocabulary": Analysis(
        "Mean cosine between word embeddings (PromptBERT, table 2)",
        "nothing",
        "geometry:token_anisotropy",
        True,
    ),
    "uniformity": Analysis(
        "Alignment and uniformity of unit vectors (Ditto, figure 4)",
        "pairs",
        "geometry:measure_uniformity",
    ),
    "token-bias": Analysis(
        "Token embeddings by frequency, subword and case (PromptBERT, figures 1 and 2)",
        "sentences",
        "token_bias:token_bias",
        True,
        {"states": "static"},
    ),
    "map": Analysis(
        "Sentences in a plane, by tsne, umap or pca (needs scikit-learn)",
        "sentences",
        "sentence_map:map_sentences",
        settings={"method": "tsne", "first": 2000, "seed": 0},
        coloured=True,
    ),
    "mask-tokens": Analysis(
        "Most probable tokens at the mask, with and without denoising (PromptBERT, table 7)",
        "texts",
        "mask_tokens:mask_tokens",
        settings={"top": 5},
    ),
    "impact": Analysis(
        "Impact of each token on each other one (Ditto, section 2.3)",
        "sentence",
        "sentence:impact",
        True,
    ),
    "impact-tfidf": Analysis(
        "Correlation of impacts with TF-IDF (Ditto, table 3)",
        "sentences",
        "sentence:compare_with_tfidf",
        True,
        {"corpus": "demo", "first": 1000},
    ),
    "attention": Analysis(
        "One head on a sentence; its diagonal is Ditto's weights (Ditto, figure 2)",
        "sentence",
        "sentence:attention",
        True,
        {"head": ""},
    ),
}


@dataclass(frozen=True)
class AnalyzeJob(Job["Found | dict[Label, Found]"]):
    """Look inside models: how their vectors lie, what their tokens and heads do.

    Returns:
        The analysis's own result: an ``Anisotropy``, ``Uniformity``, ``TokenBias``,
        ``SentenceMap``, list of ``MaskTokens``, ``Impact``, ``ImpactStudy`` or ``Attention``; of a
        list of models a result by label.

    Raises:
        UsageError: An unknown analysis or setting, or a model that does not fit it.
        NotFoundError: Data are missing.

    Example:
        >>> import promptcli as pc
        >>> pc.analyze("attention", "mini", "A cat sleeps.").tokens[1]
        'a'
    """

    further = "settings"

    name: str = argument(
        "Name of an analysis, see below.",
        in_python="`anisotropy`, `vocabulary`, `uniformity`, `token-bias`, `map`, `mask-tokens`,"
        " `impact`, `impact-tfidf`, `attention`: a row of `analysis.ANALYSES`, which says the"
        " result of each.",
        metavar="WHAT",
    )
    model: "Model | Sequence[Model] | None" = option(
        None,
        "Model, recipe, folder or hub id; repeatable. Default: the backbone; for anisotropy"
        " and uniformity six recipes on it.",
        names="model m",
        typed=list[str],
    )
    on: "loading.Sentences | None" = argument(
        "Sentences, a file, a task or `demo`, see below. Default: our own.",
        None,
        in_python="A sentence (`impact`, `attention`); tasks or files of graded pairs"
        " (`uniformity`); else sentences, or their name: `demo` (default), a task, a file.",
        metavar="[ON]",
        typed=list[str],
    )
    _: KW_ONLY
    data_dir: str | Path | None = option(
        None, "SentEval folder of the tasks.", typed=Path, kind="data folder"
    )
    text_field: str | None = option(
        None, "Column of the sentence. Default: `text`, else `sentence`, else the only one."
    )
    color: str | Sequence[object] | None = option(
        None,
        "Column of the file that colours a map: classes or numbers.",
        in_python="Also a value for each sentence.",
        metavar="COLUMN",
        typed=str,
    )
    skip_unfit: bool = option(
        False,
        "Of several models, report those that do not fit their backbone, and leave them out.",
        hidden=True,
    )
    settings: Mapping[str, Setting] = option(
        {},
        "Of the analysis, also as keywords: `first`, `sample`, `seed`, `lower`, `words` of"
        " anisotropy, `states` of token-bias, `method`, `first` and `seed` of map, `top` of"
        " mask-tokens, `corpus` and `first` of impact-tfidf, `head` of attention.",
        hidden=True,
    )

    def run(self) -> "Found | dict[Label, Found]":
        from promptcli.extending import Label, candidates, loading, sources

        with senteval.tasks_from(self.data_dir):
            analysis = errors.look_up("analysis", self.name, ANALYSES)
            for setting in self.settings:
                if setting not in analysis.settings:
                    raise errors.unknown(f"setting of {self.name}", setting, analysis.settings)
            on = BARE.corpus if self.on is None else self.on
            values: dict[str, Any] = {**analysis.settings, **self.settings}
            if self.color is None:
                content = _content(analysis.takes, on, self.text_field)
            elif analysis.coloured:
                content, values["values"] = _coloured(on, self.color, self.text_field)
            else:
                raise UsageError(f"{keyword('color')} is of map, not of {self.name}; leave it out")
            corpus = values.get("corpus")
            if isinstance(corpus, str):
                values["corpus"] = sources.fitting_sentences(corpus)
            models = loading.as_list(BARE.backbone if self.model is None else self.model)
            opened, refused = candidates.open_candidates(dict(candidates.candidates_of(models)))
            if refused and not (self.skip_unfit and opened):
                raise next(iter(refused.values()))
            encoders = [encoder for _, encoder in opened.values()]
            results = analysis.run_on(encoders, content, values)
            if self.model is None or self.model is models[0]:
                return results[0]
            labels = [Label(row.model, "") if analysis.of_backbone else row for row in opened]
            return dict(zip(labels, results, strict=True))


analyze = function_of(AnalyzeJob, "analyze")


def _coloured(
    on: "loading.Sentences", color: str | Sequence[object], text_field: str | None
) -> tuple[list[str], list[str]]:
    """Return sentences and the values that colour them."""
    from promptcli.extending import sources

    if isinstance(on, str | Path):
        if not isinstance(color, str):
            raise UsageError(f"of a file, {keyword('color')} is the name of a column")
        return sources.sentences_with_column(str(on), color, text_field=text_field)
    sentences = list(on)
    if isinstance(color, str):
        raise UsageError(
            f"{keyword('color')} {color!r} is a column of a file; of sentences it is a value for"
            " each"
        )
    if len(color) != len(sentences):
        raise UsageError(
            f"{keyword('color')} has {len(color):,} values for {len(sentences):,} sentences; give"
            " one for each"
        )
    return sentences, ["" if value is None else str(value) for value in color]


def _content(takes: str, on: "loading.Sentences", text_field: str | None) -> Any:
    """Return the input of an analysis.

    Tasks by their names, all splits of one by ``STS-B:all``, or files of pairs.
    """
    from promptcli.extending import load_tasks, sources

    if takes == "nothing":
        return None
    if takes == "pairs":
        if isinstance(on, str | Path):
            names = [str(on)]
        else:
            names = list(on)
        loaded = load_tasks(senteval.senteval_folder(), names)
        for label, reason in loaded.missing.items():
            raise NotFoundError(f"{label} is missing: {reason}")
        return loaded.tasks
    if takes == "sentence":
        if not isinstance(on, str):
            raise UsageError(
                f"the analysis takes one sentence, not {type(on).__name__}; give a string"
            )
        return on
    if takes == "texts" and isinstance(on, str):
        return [on]
    if isinstance(on, str | Path):
        return sources.fitting_sentences(str(on), text_field=text_field)
    return list(on)
