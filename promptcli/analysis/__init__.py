"""Looking inside models: the table of analyses. Light: what computes is loaded when it is called."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from promptcli.notes import note, working

if TYPE_CHECKING:
    from promptcli.analysis.anisotropy import Anisotropy
    from promptcli.analysis.impact import Impact, ImpactStudy
    from promptcli.analysis.mask_tokens import MaskTokens
    from promptcli.analysis.sentence import Attention
    from promptcli.analysis.sentence_map import SentenceMap
    from promptcli.analysis.token_bias import TokenBias
    from promptcli.analysis.uniformity import Uniformity
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import Encoder

    Encoders = Sequence[Encoder]


@dataclass(frozen=True)
class Analysis:
    """One way of looking at models."""

    help: str  #: what is found, and where the papers have it
    #: ``sentence``, ``texts`` (sentences), ``sentences`` (or what names them), ``pairs`` (tasks of them), ``nothing``
    takes: str
    #: Encoders, what it takes, and settings by keyword, typed -> what was found of each encoder.
    run: Callable[..., list[Any]]

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The settings by their names, with their types and defaults."""
        parameters = inspect.signature(self.run).parameters.values()
        return {one.name: one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


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
    from promptcli.analysis.anisotropy import Preparation, sentence_anisotropy

    prepared = Preparation(first, sample or None, seed, lower, words or None).apply(texts)
    return sentence_anisotropy(encoders, prepared)


def _vocabulary(encoders: "Encoders", _: None) -> "list[Anisotropy]":
    from promptcli.analysis.anisotropy import token_anisotropy

    return [token_anisotropy(encoder.backbone) for encoder in encoders]


def _uniformity(encoders: "Encoders", tasks: "Sequence[STSTask]") -> "list[Uniformity]":
    from promptcli.analysis.uniformity import measure

    return measure(encoders, tasks)


def _token_bias(encoders: "Encoders", texts: Sequence[str], *, states: str = "static") -> "list[TokenBias]":
    from promptcli.analysis.token_bias import token_bias

    return [token_bias(encoder.backbone, texts, states=states) for encoder in encoders]


def _mask_tokens(encoders: "Encoders", texts: Sequence[str], *, top: int = 5) -> "list[list[MaskTokens]]":
    from promptcli.analysis.mask_tokens import predict_mask_tokens

    return [predict_mask_tokens(encoder.backbone, encoder.recipe, texts, count=top) for encoder in encoders]


def _impact(encoders: "Encoders", text: str) -> "list[Impact]":
    from promptcli.analysis.impact import impact

    with working("impact", None) as advance:
        return [impact(encoder.backbone, text, progress=advance) for encoder in encoders]


def _impact_tfidf(
    encoders: "Encoders", texts: Sequence[str], *, corpus: str | Sequence[str] = "demo", first: int = 1000
) -> "list[ImpactStudy]":
    from promptcli.analysis.impact import compare_with_tfidf

    found = [compare_with_tfidf(encoder.backbone, texts[:first], list(corpus)) for encoder in encoders]
    if found[0].left_out:
        note(f"{found[0].left_out:,} sentences are left out: blank, or longer than the longest input")
    return found


def _attention(encoders: "Encoders", text: str, *, head: str = "") -> "list[Attention]":
    from promptcli.analysis.sentence import attention

    return [attention(encoder.backbone, text, head or None) for encoder in encoders]


def _map(encoders: "Encoders", texts: Sequence[str], *, first: int = 2000) -> "list[SentenceMap]":
    from promptcli.analysis.sentence_map import sentence_map
    from promptcli.encoder.encoder import encode_together

    chosen = [text for text in texts if text.strip()][:first]
    with working("map", len(encoders) * len(chosen)) as advance:
        return [sentence_map(one.vectors, chosen) for one in encode_together(list(encoders), chosen, progress=advance)]


#: By the name that ``promptcli.analyze`` takes.
ANALYSES: dict[str, Analysis] = {
    "anisotropy": Analysis(
        "Mean cosine between sentences (PromptBERT, table 1; Ditto, table 5)", "sentences", _anisotropy
    ),
    "vocabulary": Analysis("Mean cosine between word embeddings (PromptBERT, table 2)", "nothing", _vocabulary),
    "uniformity": Analysis("Alignment and uniformity of unit vectors (Ditto, figure 4)", "pairs", _uniformity),
    "token-bias": Analysis(
        "Where tokens lie by frequency, subword and case (PromptBERT, figures 1 and 2)", "sentences", _token_bias
    ),
    "map": Analysis(
        "Sentences in a plane, near ones near each other, and their clusters (needs scikit-learn)", "sentences", _map
    ),
    "mask-tokens": Analysis(
        "Most probable tokens at the mask, with and without denoising (PromptBERT, table 7)", "texts", _mask_tokens
    ),
    "impact": Analysis("How much each token matters to each other one (Ditto, section 2.3)", "sentence", _impact),
    "impact-tfidf": Analysis("How alike impacts and TF-IDF are (Ditto, table 3)", "sentences", _impact_tfidf),
    "attention": Analysis(
        "One head on a sentence; its diagonal is Ditto's weights (Ditto, figure 2)", "sentence", _attention
    ),
}
