"""Ditto, table 3: how alike the impacts of tokens and their TF-IDF are, x 100 over sentences of the corpus."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.analysis.impact import check_mask, compare_with_tfidf
from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.figures import Figure, rounded
from promptcli.reproducing.measured_system import MeasuredSystem

_FIRST = 1000


def impact_sources(context: MeasurementContext) -> MeasureData:
    """Return the corpus: its first sentences are looked at, idf is counted on all.

    Raises:
        UsageError: The backbone has no mask token.
    """
    check_mask(context.backbone)
    sentences = [sentence for sentence in context.sentences if sentence.strip()][:_FIRST]
    setting = f"impact matrices of {len(sentences):,} sentences from the start, idf of all; the paper's: 1,000 of PUD"
    facts = {"sentences": len(sentences), "sha256": context.corpus_facts["sha256"], "setting": setting}
    return MeasureData({"corpus": facts}, {}, sentences)


def measure_impact(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield the correlations over the tokens of all sentences put together; the backbone alone decides them.

    They have no interval: the tokens of a sentence are no independent draws.
    """
    with context.working("impact", len(sources.content)) as advance:
        found = compare_with_tfidf(context.backbone, sources.content, context.sentences, progress=advance).correlation
    figures = {
        "impact-pearson": rounded(100 * found.pearson, None, ("corpus",)),
        "impact-spearman": rounded(100 * found.spearman, None, ("corpus",)),
    }
    for system in systems:
        yield system, figures
