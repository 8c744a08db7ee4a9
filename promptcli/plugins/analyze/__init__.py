"""The analyses of models, and the public function that runs one.

The command line reads this table for its help, so the module of an analysis is imported only when
the analysis runs.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli import errors
from promptcli.errors import NotFoundError, UsageError
from promptcli.recipe import ModelChoice
from promptcli.settings import BUILT_IN

if TYPE_CHECKING:
    from promptcli.models import loading
    from promptcli.models.loading import Model

_MAX_INTEGER = (1 << 32) - 1  #: of a setting, since a seed of scikit-learn has 32 bits
#: The value of a setting of an analysis.
Setting = str | int | bool | Sequence[str]


@dataclass(frozen=True)
class Analysis:
    """One analysis of models."""

    help: str  #: describes the result, and where the papers have it
    #: ``sentence``, ``texts`` (several sentences), ``sentences`` (sentences or the name of a file),
    #: ``pairs`` (tasks of graded pairs) or ``nothing``
    input: str
    #: ``MODULE:FUNCTION``; it takes encoders or a backbone, the input, and the settings by keyword
    function: str
    #: True: it takes one backbone, without a recipe, and returns its result; False: it takes all
    #: encoders and returns a list with the result of each
    takes_backbone: bool = False
    settings: Mapping[str, str | int | bool] = field(default_factory=dict)  #: with their defaults
    #: whether it takes a column of the file, and chooses its model by the sentences' language
    is_map: bool = False


#: The analyses by name.
ANALYSES: dict[str, Analysis] = {
    "anisotropy": Analysis(
        "Mean cosine between sentences (PromptBERT, table 1; Ditto, table 5)",
        "sentences",
        "geometry:sentence_anisotropy",
        settings={"first": 100_000, "sample": 0, "seed": 0, "lower": True, "words": 32},
    ),
    "vocabulary": Analysis(
        "Mean cosine between word embeddings (PromptBERT, table 2)",
        "nothing",
        "geometry:token_anisotropy",
        takes_backbone=True,
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
        takes_backbone=True,
        settings={"states": "static"},
    ),
    "map": Analysis(
        "Sentences in a plane, by tsne, umap or pca (needs scikit-learn)",
        "sentences",
        "sentence_map:map_sentences",
        settings={"method": "tsne", "first": 2000, "seed": 0},
        is_map=True,
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
        takes_backbone=True,
    ),
    "impact-tfidf": Analysis(
        "Correlation of impacts with TF-IDF (Ditto, table 3)",
        "sentences",
        "sentence:compare_with_tfidf",
        takes_backbone=True,
        settings={"corpus": "demo", "first": 1000},
    ),
    "attention": Analysis(
        "One head on a sentence; its diagonal is Ditto's weights (Ditto, figure 2)",
        "sentence",
        "sentence:attention",
        takes_backbone=True,
        settings={"head": ""},
    ),
}


def analyze(
    name: str,
    model: "Model | Sequence[Model] | None" = None,
    on: "loading.Sentences | None" = None,
    *,
    data_dir: str | Path | None = None,
    text_field: str | None = None,
    color: str | None = None,
    skip_unfit: bool = False,
    **settings: Setting,
) -> Any:
    """Look inside models: the geometry of their vectors, their tokens and attention heads.

    Args:
        name: ``anisotropy``, ``vocabulary``, ``uniformity``, ``token-bias``, ``map``,
            ``mask-tokens``, ``impact``, ``impact-tfidf``, ``attention``: a row of ``ANALYSES``.
        model: Models, recipes, folders, hub ids or encoders. Default: the backbone; for a map, the
            model for the language of the sentences, see ``similarity``.
        on: A sentence (``impact``, ``attention``); tasks or files of graded pairs
            (``uniformity``); for the others sentences, a file, a task or ``demo`` (the default).
        data_dir: SentEval folder of the tasks.
        text_field: Column of the sentence. Default: ``text``, else ``sentence``, else the only one.
        color: Column of the file that colours a map.
        skip_unfit: Of several models, leave out those that do not fit their backbone, with a note.
        **settings: The analysis's: ``first``, ``sample``, ``seed``, ``lower``, ``words`` for
            anisotropy, ``states`` for token-bias, ``method``, ``first`` and ``seed`` for map,
            ``top`` for mask-tokens, ``corpus`` and ``first`` for impact-tfidf, ``head`` for
            attention.

    Returns:
        The result of the analysis: an ``Anisotropy``, ``Uniformity``, ``TokenBias``,
        ``SentenceMap``, list of ``MaskTokens``, ``Impact``, ``ImpactStudy`` or ``Attention``. For a
        list of models: the results by label.

    Raises:
        UsageError: An unknown analysis or setting, or a model that does not fit it.
        NotFoundError: Data are missing.

    Example:
        >>> import promptcli as pc
        >>> pc.analyze("attention", "mini", "A cat sleeps.").tokens[1]
        'a'
    """
    from promptcli.data import senteval, training_data
    from promptcli.evaluation import candidates
    from promptcli.evaluation.scores import Label
    from promptcli.models import loading

    analysis = errors.look_up("analysis", name, ANALYSES)
    for setting, value in settings.items():
        if setting not in analysis.settings:
            raise errors.unknown_name_error(f"setting of {name}", setting, analysis.settings)
        if isinstance(value, int) and not 0 <= value <= _MAX_INTEGER:
            raise UsageError(f"must be 0 to {_MAX_INTEGER}, got {value}", parameter=setting)
    if color is not None and not analysis.is_map:
        raise UsageError(f"applies to map, not to {name}; leave it out", parameter="color")
    on = BUILT_IN.corpus if on is None else on
    values: dict[str, Any] = {**analysis.settings, **settings}
    with senteval.tasks_from(data_dir):
        if color is None:
            content = _read_input(analysis.input, on, text_field)
        else:
            content, values["values"] = training_data.sentences_with_column(
                str(on), color, text_field=text_field
            )
        if isinstance(values.get("corpus"), str):
            values["corpus"] = training_data.fitting_sentences(values["corpus"])
        models = [] if model is None else loading.as_list(model)
        is_single = not models or models[0] is model
        if analysis.is_map:
            models = list(map(loading.or_search_model, models or [ModelChoice()]))
        _, opened, refused = candidates.open_candidates(models or [BUILT_IN.backbone])
        if refused and not (skip_unfit and opened):
            raise next(iter(refused.values()))
        module, _, function = analysis.function.partition(":")
        run = getattr(importlib.import_module(f"promptcli.plugins.analyze.{module}"), function)
        inputs = [] if content is None else [content]
        encoders = [candidate.encoder for candidate in opened.values()]
        if analysis.takes_backbone:
            results = [run(encoder.backbone, *inputs, **values) for encoder in encoders]
        else:
            results = run(encoders, *inputs, **values)
    if is_single:
        return results[0]
    labels = list(opened)
    if analysis.takes_backbone:
        labels = [Label(label.model, "") for label in labels]
    return dict(zip(labels, results, strict=True))


def _read_input(kind: str, on: "loading.Sentences", text_field: str | None) -> Any:
    """Return the input of an analysis as its function takes it."""
    from promptcli.data import senteval, training_data
    from promptcli.data.tasks import load_graded_tasks

    if kind == "nothing":
        return None
    if kind == "sentence":
        if not isinstance(on, str):
            raise UsageError(
                f"the analysis takes one sentence, not {type(on).__name__}; give a string"
            )
        return on
    if kind == "sentences" and isinstance(on, str | Path):
        return training_data.fitting_sentences(str(on), text_field=text_field)
    words = [str(on)] if isinstance(on, str | Path) else list(on)
    if kind != "pairs":
        return words
    loaded = load_graded_tasks(senteval.senteval_folder(), words)
    for label, reason in loaded.missing.items():
        raise NotFoundError(f"{label} is missing: {reason}")
    return loaded.tasks
