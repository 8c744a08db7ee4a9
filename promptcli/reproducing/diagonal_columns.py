"""Ditto, table 4: how alike a head's diagonal and TF-IDF are, x 100 over the tokens of the development sentences."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.encoder.recipe import split_spec
from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.figures import Figure, rounded
from promptcli.reproducing.measured_system import MeasuredSystem
from promptcli.reproducing.systems import ranked_heads

_TASK = "STS-B:dev"


def diagonal_sources(context: MeasurementContext) -> MeasureData:
    """Return the development pairs, and which sentences idf is counted on."""
    found = context.tasks([_TASK])
    return MeasureData({**found.data, "idf": context.corpus_facts} if found.data else {}, found.missing)


def measure_diagonals(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield the correlations of each system's head; idf is counted on the sentences to fit on.

    They have no interval: the tokens of a sentence are no independent draws.
    """
    alike = {head["head"]: head["tfidf"] for head in ranked_heads(context)}
    for system in systems:
        assert system.recipe is not None
        found = alike[split_spec(system.recipe.pooling)[1] or ""]
        on = (_TASK, "corpus")
        yield (
            system,
            {f"diagonal-{kind}": rounded(100 * found[kind], None, on) for kind in ("pearson", "spearman")},
        )
