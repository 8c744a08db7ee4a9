"""PromptBERT, table 7: the five most probable tokens at the mask, plain and denoised."""

from collections.abc import Iterator, Mapping, Sequence

from promptcli.analysis.mask_tokens import predict_mask_tokens
from promptcli.reproducing.context import MeasureData, MeasurementContext
from promptcli.reproducing.figures import Figure
from promptcli.reproducing.measured_system import MeasuredSystem


def measure_tokens(
    systems: Sequence[MeasuredSystem], sources: MeasureData, context: MeasurementContext
) -> Iterator[tuple[MeasuredSystem, Mapping[str, Figure]]]:
    """Yield the tokens of each system's sentence."""
    recipe = systems[0].recipe
    assert recipe is not None
    found = predict_mask_tokens(context.backbone, recipe, [system.row.argument for system in systems])
    for system, guesses in zip(systems, found, strict=True):
        lists = {"tokens": guesses.plain, "tokens-denoised": guesses.denoised}
        yield system, {name: Figure([guess.token for guess in best]) for name, best in lists.items()}
