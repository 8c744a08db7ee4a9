"""``promptcli analyze``: looks inside what a recipe does. Options, calls, tables; no arithmetic."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import console
from promptcli.cli.commands.analyze_anisotropy import anisotropy
from promptcli.cli.commands.analyze_attention import attention
from promptcli.cli.commands.analyze_impact import impact
from promptcli.cli.commands.analyze_token_bias import token_bias
from promptcli.cli.commands.analyze_uniformity import uniformity
from promptcli.cli.opening import configure_libraries, default_backbone, open_backbone
from promptcli.cli.options import Runtime, expand
from promptcli.encoder.recipe import RECIPES

if TYPE_CHECKING:
    from promptcli.analysis.mask_tokens import Guess, MaskTokens


def mask_tokens(
    sentence: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences.", show_default=False)],
    runtime: Runtime,
    prompt: Annotated[
        str, typer.Option("--prompt", "--template", help="Template with [X] and [MASK], or the name of one.")
    ] = "manual",
    backbone: Annotated[
        str | None,
        typer.Option(help="A local folder or a hub id; with its masked-LM head. Default: mini.", show_default=False),
    ] = None,
    denoise: Annotated[str, typer.Option(help="Where the template's bias is taken: hidden, head, logits.")] = "hidden",
    top: Annotated[int, typer.Option(min=1, help="Tokens of each list.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Print the most probable tokens at the mask, with and without template denoising (PromptBERT, table 7)."""
    configure_libraries(runtime)
    from promptcli.analysis.mask_tokens import predict_mask_tokens
    from promptcli.encoder.prompts.checking import check_masked
    from promptcli.encoder.prompts.named import template_text

    backbone = backbone or default_backbone(paper=False)
    recipe = (
        RECIPES["prompt-denoised"].replace(backbone=backbone, prompt=template_text(prompt), denoise=denoise).explicit()
    )
    check_masked(recipe.prompt)  # before anything is loaded
    loaded = open_backbone(backbone, runtime)
    found = predict_mask_tokens(loaded, recipe, sentence, count=top)
    for row in found:
        if row.truncated:
            console.note(f"cut to the longest input: {row.sentence[:60]}...", quiet=runtime.quiet)
    if json:
        console.result_json(
            {
                "backbone": backbone,
                "template": recipe.prompt,
                "period": recipe.period,
                "denoise": denoise,
                "sentences": [_document(row) for row in found],
            }
        )
        return
    console.note(
        f"{backbone}, {recipe.prompt}; a period is put behind a sentence without an end mark; bias taken: {denoise}",
        quiet=runtime.quiet,
    )
    console.result_table(
        ("sentence", "at the mask", "denoised"),
        [(row.sentence, _line(row.plain), _line(row.denoised)) for row in found],
    )


def _document(row: "MaskTokens") -> dict[str, Any]:
    return {
        "sentence": row.sentence,
        "truncated": row.truncated,
        "tokens": [asdict(guess) for guess in row.plain],
        "tokens_denoised": [asdict(guess) for guess in row.denoised],
    }


def _line(guesses: "Sequence[Guess]") -> str:
    return ", ".join(f"{guess.token} {guess.probability:.2f}" for guess in guesses)


app = typer.Typer(help="Look inside what a recipe does.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Look inside what a recipe does."""


app.command("mask-tokens")(expand(mask_tokens))
app.command("anisotropy")(expand(anisotropy))
app.command("uniformity")(expand(uniformity))
app.command("token-bias")(expand(token_bias))
app.command("impact")(expand(impact))
app.command("attention")(expand(attention))
