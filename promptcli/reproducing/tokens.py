"""PromptBERT, table 7: the five most probable tokens at the mask, plain and denoised."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.reproducing.cache import Figure
from promptcli.reproducing.place import Place, Sources
from promptcli.reproducing.subject import Subject


def measure_tokens(
    subjects: Sequence[Subject], sources: Sources, place: Place
) -> Iterator[tuple[Subject, Mapping[str, Figure]]]:
    """Yield the tokens of each subject's sentence."""
    recipe = subjects[0].recipe
    assert recipe is not None
    found = predict_mask_tokens(place.backbone, recipe, [subject.row.argument for subject in subjects])
    for subject, guesses in zip(subjects, found, strict=True):
        lists = {"tokens": guesses.plain, "tokens-denoised": guesses.denoised}
        yield subject, {name: Figure([guess.token for guess in best]) for name, best in lists.items()}
