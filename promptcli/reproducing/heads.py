"""Ditto, table 4: how alike a head's diagonal and TF-IDF are, x 100 over the tokens of the development sentences."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.encoder.recipe import split_spec
from promptcli.reproducing.cache import Figure, rounded
from promptcli.reproducing.place import Place, Sources
from promptcli.reproducing.subject import Subject
from promptcli.reproducing.systems import ranked_heads

_TASK = "STS-B:dev"


def diagonal_sources(place: Place) -> Sources:
    """Return the development pairs, and which sentences idf is counted on."""
    found = place.tasks([_TASK])
    return Sources({**found.data, "idf": place.corpus_facts} if found.data else {}, found.missing)


def measure_diagonals(
    subjects: Sequence[Subject], sources: Sources, place: Place
) -> Iterator[tuple[Subject, Mapping[str, Figure]]]:
    """Yield the correlations of each subject's head; idf is counted on the sentences to fit on.

    They have no interval: the tokens of a sentence are no independent draws.
    """
    alike = {head["head"]: head["tfidf"] for head in ranked_heads(place)}
    for subject in subjects:
        assert subject.recipe is not None
        found = alike[split_spec(subject.recipe.pooling)[1] or ""]
        on = (_TASK, "corpus")
        yield (
            subject,
            {f"diagonal-{kind}": rounded(100 * found[kind], None, on) for kind in ("pearson", "spearman")},
        )
