"""Columns of mean cosines: of sentence vectors (PromptBERT, table 1; Ditto, table 5) and of token rows (table 2)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from promptcli.analysis.anisotropy import Preparation, check_enough, sentence_anisotropy, token_anisotropy
from promptcli.reproducing.cache import Figure, rounded
from promptcli.reproducing.place import Place, Sources, hash_of
from promptcli.reproducing.subject import Subject


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


def sentence_sources(column: str) -> Callable[[Place], Sources]:
    """Return what gets the corpus's sentences as a column takes them; ``content`` is their list."""
    chosen = _COLUMNS[column]

    def load(place: Place) -> Sources:
        sentences = chosen.preparation.apply(place.sentences)
        check_enough(len(sentences))
        setting = f"mean cosine over all pairs of {len(sentences):,} sentences {chosen.said} of Wikipedia"
        facts = {"sentences": len(sentences), "sha256": hash_of(sentences), "setting": setting}
        return Sources({"corpus": facts}, {}, sentences)

    return lambda place: place.once(column, lambda: load(place))


def measure_sentences(
    subjects: Sequence[Subject], sources: Sources, place: Place
) -> Iterator[tuple[Subject, Mapping[str, Figure]]]:
    """Yield the mean cosine of each subject's sentence vectors; rows with the same model input share a pass."""
    (column,) = (name for name in _COLUMNS if name in subjects[0].row.published)
    groups: dict[object, list[Subject]] = {}
    for subject in subjects:
        groups.setdefault(subject.encoder.input_key, []).append(subject)
    with place.working(column, len(groups) * len(sources.content)) as advance:
        for members in groups.values():
            encoders = [subject.encoder for subject in members]
            found = sentence_anisotropy(encoders, sources.content, progress=advance)
            for subject, one in zip(members, found, strict=True):
                yield subject, {column: rounded(one.value, None, ("corpus",))}


def measure_vocabulary(
    subjects: Sequence[Subject], sources: Sources, place: Place
) -> Iterator[tuple[Subject, Mapping[str, Figure]]]:
    """Yield the mean cosine of all rows of the backbone's word-embedding matrix."""
    value = token_anisotropy(place.backbone).value
    for subject in subjects:
        yield subject, {"vocabulary": rounded(value, None, ())}
