"""Columns that are no task scores: what the analyses find, what promptcli's tables hold, and the papers' figures."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from promptcli.analysis.anisotropy import Preparation, check_enough, sentence_anisotropy, token_anisotropy
from promptcli.analysis.impact import check_mask, compare_with_tfidf
from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.encoder.pooling.ditto import KNOWN_HEADS
from promptcli.recipe import split_spec
from promptcli.reproducing.figures import Figures, figure, rounded
from promptcli.reproducing.measured_system import Systems
from promptcli.reproducing.measurement_context import MeasureData, MeasurementContext, hash_of
from promptcli.reproducing.published import PublishedRow, short_name
from promptcli.reproducing.systems import ranked_heads
from promptcli.training.methods import find_method

_CORPUS = ["corpus"]
#: How many sentences of the corpus impact matrices are made of.
_FIRST = 1000


def corpus_sentences(preparation: Preparation, described: str) -> Callable[[MeasurementContext], MeasureData]:
    """Return what gets the corpus's sentences as a column of mean cosines takes them; ``content`` is their list."""

    def load(context: MeasurementContext) -> MeasureData:
        sentences = preparation.apply(context.sentences)
        check_enough(len(sentences))
        setting = f"mean cosine over all pairs of {len(sentences):,} sentences {described} of Wikipedia"
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return MeasureData({"corpus": facts}, {}, sentences)

    return load


def measure_cosines(
    systems: Systems, data: MeasureData, context: MeasurementContext, *, column: str
) -> Iterator[Figures]:
    """Yield the mean cosine of each system's sentence vectors (PromptBERT, table 1; Ditto, table 5)."""
    with context.working(column, len(data.content)) as advance:
        found = sentence_anisotropy([system.encoder for system in systems], data.content, progress=advance)
    for one in found:
        yield {column: rounded(one.value, None, _CORPUS)}


def measure_vocabulary(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the mean cosine of all rows of the backbone's word-embedding matrix (PromptBERT, table 2)."""
    value = token_anisotropy(context.backbone).value
    for _ in systems:
        yield {"vocabulary": rounded(value)}


def diagonal_data(context: MeasurementContext) -> MeasureData:
    """Return the development pairs, and which sentences idf is counted on."""
    found = context.tasks(["STS-B:dev"])
    return MeasureData({**found.facts, "idf": context.corpus_facts} if found.facts else {}, found.missing)


def measure_diagonals(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield how alike each head's diagonal and TF-IDF are, x 100 over the development sentences (Ditto, table 4).

    The correlations have no interval: the tokens of a sentence are no independent draws.
    """
    alike = {head["head"]: head["tfidf"] for head in ranked_heads(context)}
    for system in systems:
        assert system.recipe is not None
        found = alike[split_spec(system.recipe.pooling)[1] or ""]
        yield _correlations("diagonal", found["pearson"], found["spearman"], ["STS-B:dev", "corpus"])


def impact_data(context: MeasurementContext) -> MeasureData:
    """Return the corpus: its first sentences are looked at, idf is counted on all.

    Raises:
        UsageError: The backbone has no mask token.
    """
    check_mask(context.backbone)
    sentences = [sentence for sentence in context.sentences if sentence.strip()][:_FIRST]
    setting = f"impact matrices of {len(sentences):,} sentences from the start, idf of all; the paper's: 1,000 of PUD"
    facts = {"sentences": len(sentences), "sha256": context.corpus_facts["sha256"], "setting": setting}
    return MeasureData({"corpus": facts}, {}, sentences)


def measure_impact(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield how alike the impacts of tokens and their TF-IDF are, x 100 over all sentences' tokens (Ditto, table 3).

    The backbone alone decides the correlations. They have no interval: a sentence's tokens are no independent draws.
    """
    with context.working("impact", len(data.content)) as advance:
        found = compare_with_tfidf(context.backbone, data.content, context.sentences, progress=advance).correlation
    for _ in systems:
        yield _correlations("impact", found.pearson, found.spearman, _CORPUS)


def measure_tokens(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield the five most probable tokens at each sentence's mask, plain and denoised (PromptBERT, table 7)."""
    recipe = systems[0].recipe
    assert recipe is not None
    for guesses in predict_mask_tokens(context.backbone, recipe, [system.row.argument for system in systems]):
        lists = {"tokens": guesses.plain, "tokens-denoised": guesses.denoised}
        yield {name: figure([guess.token for guess in best]) for name, best in lists.items()}


def measure_settings(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Yield what promptcli's own tables say for each row's columns; a column that they do not hold is left out."""
    for system in systems:
        held = _HELD.get(system.row.argument, _method_settings)(system.row)
        yield {name: figure(value) for name, value in held.items() if name in system.row.published}


def _method_settings(row: PublishedRow) -> dict[str, Any]:
    method = find_method(row.argument, supervised=row.setting == "sup")
    views = method.variant("roberta" if row.backbone.startswith("roberta") else "bert").views
    return {**vars(method.paper[row.backbone]), "view-1": views[0], "view-2": views[1]}


def _chosen_head(row: PublishedRow) -> dict[str, Any]:
    return {"head": {short_name(name): head for name, head in KNOWN_HEADS.items()}[short_name(row.backbone)]}


_HELD: dict[str, Callable[[PublishedRow], dict[str, Any]]] = {"ditto": _chosen_head}

#: What a picture is counted on.
_DRAWN_ON = {"token-bias": _CORPUS, "token-bias-output": _CORPUS, "uniformity": ["STS-B"]}


def measure_pictures(systems: Systems, data: MeasureData, context: MeasurementContext) -> Iterator[Figures]:
    """Draw each system's picture and yield the name of its file."""
    assert context.draw is not None
    for system in systems:
        name = system.row.argument
        yield {"picture": figure(context.draw(name, context), on=_DRAWN_ON.get(name, []))}


def _correlations(what: str, pearson: float, spearman: float, on: Sequence[str]) -> Figures:
    return {f"{what}-pearson": rounded(100 * pearson, None, on), f"{what}-spearman": rounded(100 * spearman, None, on)}
