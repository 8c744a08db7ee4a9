"""Looking inside models: the table of analyses, and the function that runs one.

Imports nothing heavy, since the command line reads the table; an analysis imports its module when it runs.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from promptcli.data.senteval import reads_data_dir, senteval_folder
from promptcli.errors import NotFoundError, UsageError, look_up, unknown
from promptcli.notes import note, working
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.analysis.geometry import Anisotropy, Uniformity
    from promptcli.analysis.mask_tokens import MaskTokens
    from promptcli.analysis.sentence import Attention, Impact, ImpactStudy
    from promptcli.analysis.sentence_map import SentenceMap
    from promptcli.analysis.token_bias import TokenBias
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.scores import Label
    from promptcli.models.loading import Model, Sentences

    Encoders = Sequence[Encoder]
    Found: TypeAlias = (
        Anisotropy | Uniformity | TokenBias | SentenceMap | list[MaskTokens] | Impact | ImpactStudy | Attention
    )

#: A value of a setting of an analysis.
Setting = str | int | bool | Sequence[str]


@dataclass(frozen=True)
class Analysis:
    """One way of looking at models."""

    help: str  #: its result, with its place in the papers
    takes: str  #: ``sentence``, ``texts`` (sentences), ``sentences`` (or their name), ``pairs`` (tasks), ``nothing``
    run: Callable[..., list[Any]]  #: encoders, the input, and typed settings by keyword -> a result for each encoder
    of_backbone: bool = False  #: whether the recipe is of no matter

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The settings by their names, with their types and defaults."""
        parameters = inspect.signature(self.run).parameters
        return {name: item for name, item in parameters.items() if item.kind is inspect.Parameter.KEYWORD_ONLY}


def _anisotropy(
    encoders: "Encoders",
    texts: Sequence[str],
    *,
    first: int = 100_000,
    sample: int = 0,
    seed: int = 0,
    lower: bool = True,
    words: int = 32,
) -> "list[Anisotropy]":
    from promptcli.analysis.geometry import Preparation, sentence_anisotropy

    preparation = Preparation(first, sample or None, seed, lower, words or None)
    return sentence_anisotropy(encoders, preparation.apply(texts))


def _vocabulary(encoders: "Encoders", _: None) -> "list[Anisotropy]":
    from promptcli.analysis.geometry import token_anisotropy

    return [token_anisotropy(encoder.backbone) for encoder in encoders]


def _uniformity(encoders: "Encoders", tasks: "Sequence[STSTask]") -> "list[Uniformity]":
    from promptcli.analysis.geometry import measure_uniformity

    return measure_uniformity(encoders, tasks)


def _token_bias(encoders: "Encoders", texts: Sequence[str], *, states: str = "static") -> "list[TokenBias]":
    from promptcli.analysis.token_bias import token_bias

    return [token_bias(encoder.backbone, texts, states=states) for encoder in encoders]


def _mask_tokens(encoders: "Encoders", texts: Sequence[str], *, top: int = 5) -> "list[list[MaskTokens]]":
    from promptcli.analysis.mask_tokens import predict_mask_tokens

    return [predict_mask_tokens(encoder.backbone, encoder.recipe, texts, count=top) for encoder in encoders]


def _impact(encoders: "Encoders", text: str) -> "list[Impact]":
    from promptcli.analysis.sentence import impact

    return [impact(encoder.backbone, text) for encoder in encoders]


def _impact_tfidf(
    encoders: "Encoders", texts: Sequence[str], *, corpus: str | Sequence[str] = "demo", first: int = 1000
) -> "list[ImpactStudy]":
    from promptcli.analysis.sentence import compare_with_tfidf

    studies = [compare_with_tfidf(encoder.backbone, texts[:first], list(corpus)) for encoder in encoders]
    if studies[0].left_out:
        note(f"{studies[0].left_out:,} sentences are left out: empty, or longer than the longest input")
    return studies


def _attention(encoders: "Encoders", text: str, *, head: str = "") -> "list[Attention]":
    from promptcli.analysis.sentence import attention

    return [attention(encoder.backbone, text, head or None) for encoder in encoders]


def _map(encoders: "Encoders", texts: Sequence[str], *, first: int = 2000) -> "list[SentenceMap]":
    from promptcli.analysis.sentence_map import sentence_map
    from promptcli.encoder.encoder import encode_together

    texts = [text for text in texts if text.strip()][:first]
    with working("map", len(encoders) * len(texts)) as advance:
        encoded = encode_together(list(encoders), texts, progress=advance)
        return [sentence_map(each.vectors, texts) for each in encoded]


#: By the name that ``promptcli.analyze`` takes.
ANALYSES: dict[str, Analysis] = {
    "anisotropy": Analysis(
        "Mean cosine between sentences (PromptBERT, table 1; Ditto, table 5)", "sentences", _anisotropy
    ),
    "vocabulary": Analysis("Mean cosine between word embeddings (PromptBERT, table 2)", "nothing", _vocabulary, True),
    "uniformity": Analysis("Alignment and uniformity of unit vectors (Ditto, figure 4)", "pairs", _uniformity),
    "token-bias": Analysis(
        "Token embeddings by frequency, subword and case (PromptBERT, figures 1 and 2)", "sentences", _token_bias, True
    ),
    "map": Analysis("A map of sentences and their clusters (needs scikit-learn)", "sentences", _map),
    "mask-tokens": Analysis(
        "Most probable tokens at the mask, with and without denoising (PromptBERT, table 7)", "texts", _mask_tokens
    ),
    "impact": Analysis("Impact of each token on each other one (Ditto, section 2.3)", "sentence", _impact, True),
    "impact-tfidf": Analysis("Correlation of impacts with TF-IDF (Ditto, table 3)", "sentences", _impact_tfidf, True),
    "attention": Analysis(
        "One head on a sentence; its diagonal is Ditto's weights (Ditto, figure 2)", "sentence", _attention, True
    ),
}


@reads_data_dir
def analyze(
    name: str,
    model: "Model | Sequence[Model] | None" = None,
    on: "Sentences | None" = None,
    *,
    data_dir: str | Path | None = None,
    text_field: str | None = None,
    skip_unfit: bool = False,
    **settings: Setting,
) -> "Found | dict[Label, Found]":
    """Look inside models: how their vectors lie, what their tokens and heads do.

    Args:
        name: ``anisotropy``, ``vocabulary``, ``uniformity``, ``token-bias``, ``map``, ``mask-tokens``,
            ``impact``, ``impact-tfidf``, ``attention``: a row of ``analysis.ANALYSES``, which says what each finds.
        model: Model, recipe, folder or hub id; repeatable. Default: --backbone; for anisotropy and uniformity six
            recipes on it.
        on: A sentence (``impact``, ``attention``); tasks or files of graded pairs (``uniformity``); else sentences, or
            their name: ``demo`` (default), a task, a file.
        data_dir: SentEval folder of the tasks.
        text_field: Column of the sentence. Default: `text`, else `sentence`, else the only one.
        skip_unfit: Of several models, report those that do not fit their backbone, and leave them out.
        settings: Of the analysis: ``first``, ``sample``, ``seed``, ``lower``, ``words`` of anisotropy, ``states`` of
            token-bias, ``first`` of map, ``top`` of mask-tokens, ``corpus`` and ``first`` of impact-tfidf, ``head`` of
            attention.

    Returns:
        The analysis's own result: an ``Anisotropy``, ``Uniformity``, ``TokenBias``, ``SentenceMap``, list of
        ``MaskTokens``, ``Impact``, ``ImpactStudy`` or ``Attention``; of a list of models a result by label.

    Raises:
        UsageError: An unknown analysis or setting, or a model that does not fit it.
        NotFoundError: Data are missing.

    Example:
        >>> import promptcli as pc
        >>> pc.analyze("attention", "mini", "A cat sleeps.").tokens[1]
        'a'
    """
    from promptcli.data.sources import fitting_sentences
    from promptcli.evaluation.candidates import candidates_of, open_candidates
    from promptcli.evaluation.scores import Label
    from promptcli.models.loading import as_list

    analysis = look_up("analysis", name, ANALYSES)
    for setting in settings:
        if setting not in analysis.settings:
            raise unknown(f"setting of {name}", setting, analysis.settings)
    content = _content(analysis.takes, BARE.corpus if on is None else on, text_field)
    values, corpus = dict(settings), settings.get("corpus", BARE.corpus)
    if "corpus" in analysis.settings and isinstance(corpus, str):
        values["corpus"] = fitting_sentences(corpus)
    models = as_list(BARE.backbone if model is None else model)
    opened, refused = open_candidates(dict(candidates_of(models)))
    if refused and not (skip_unfit and opened):
        raise next(iter(refused.values()))
    results: list[Found] = analysis.run([encoder for _, encoder in opened.values()], content, **values)
    if model is None or model is models[0]:
        return results[0]
    labels = [Label(row.model, "") if analysis.of_backbone else row for row in opened]
    return dict(zip(labels, results, strict=True))


def _content(takes: str, on: "Sentences", text_field: str | None) -> Any:
    """Return the input of an analysis; tasks by their names, all splits of one by ``STS-B:all``, or files of pairs."""
    from promptcli.data.sources import fitting_sentences
    from promptcli.data.tasks import fitting_task, load_tasks, task_names

    if takes == "nothing":
        return None
    if takes == "pairs":
        names = [str(on)] if isinstance(on, str | Path) else list(on)
        tasks = [fitting_task(name) if name.endswith(":all") else task_names([name])[0] for name in names]
        loaded = load_tasks(senteval_folder(), tasks)
        for label, reason in loaded.missing.items():
            raise NotFoundError(f"{label} is missing: {reason}")
        return loaded.tasks
    if takes == "sentence":
        if not isinstance(on, str):
            raise UsageError(f"the analysis takes one sentence, not {type(on).__name__}; give a string")
        return on
    if takes == "texts" and isinstance(on, str):
        return [on]
    if isinstance(on, str | Path):
        return fitting_sentences(str(on), text_field=text_field)
    return list(on)
