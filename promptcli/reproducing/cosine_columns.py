"""Columns of mean cosines: of sentence vectors (PromptBERT, table 1; Ditto, table 5) and of token rows (table 2)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from promptcli.analysis.anisotropy import Preparation, check_enough, sentence_anisotropy, token_anisotropy
from promptcli.reproducing.context import MeasureData, MeasurementContext, hash_of
from promptcli.reproducing.figures import Figure, rounded
from promptcli.reproducing.measured_system import MeasuredSystem


@dataclass(frozen=True)
class _Sentences:
    """Which sentences of the corpus a column takes, and how a caption says it."""

    preparation: Preparation
    said: str


_COLUMNS = {
    "anisotropy": _Sentences(Preparation(), "from the start, lower-cased, cut to 32 words; the paper's: 100,000"),
    "mean-cosine": _Sentences(
        Preparation(sample=1000, lower=False, words=None), "at random, seed 0, as they are; the paper's: 1,000"
    ),
}


def sentence_sources(column: str) -> Callable[[MeasurementContext], MeasureData]:
    """Return what gets the corpus's sentences as a column takes them; ``content`` is their list."""
    chosen = _COLUMNS[column]

    def load(context: MeasurementContext) -> MeasureData:
        sentences = chosen.preparation.apply(context.sentences)
        check_enough(len(sentences))
        setting = f"mean cosine over all pairs of {len(sentences):,} sentences {chosen.said} of Wikipedia"
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return MeasureData({"corpus": facts}, {}, sentences)

    return lambda context: context.once(column, lambda: load(context))


def measure_sentences(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield the mean cosine of each system's sentence vectors; rows with the same model input share a pass."""
    (column,) = (name for name in _COLUMNS if name in systems[0].row.published)
    groups: dict[object, list[MeasuredSystem]] = {}
    for system in systems:
        groups.setdefault(system.encoder.input_key, []).append(system)
    with context.working(column, len(groups) * len(sources.content)) as advance:
        for members in groups.values():
            encoders = [system.encoder for system in members]
            found = sentence_anisotropy(encoders, sources.content, progress=advance)
            for system, one in zip(members, found, strict=True):
                yield system, {column: rounded(one.value, None, ("corpus",))}


def measure_vocabulary(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield the mean cosine of all rows of the backbone's word-embedding matrix."""
    value = token_anisotropy(context.backbone).value
    for system in systems:
        yield system, {"vocabulary": rounded(value, None, ())}
