"""``promptcli analyze``: looks inside what a recipe does, token by token."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import options
from promptcli.cli.console import note, out, progress, result_json, result_table, rounded
from promptcli.cli.opening import configure_libraries, data_folder, default_backbone, open_backbone, sentences_of
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.analyses import (
    EMBEDDINGS,
    SENTENCE,
    draw_attention,
    draw_impact,
    draw_impact_study,
    draw_token_bias,
)
from promptcli.cli.pictures.maps import text_bar, token_map
from promptcli.cli.pictures.plots import PictureOptions
from promptcli.errors import UsageError
from promptcli.recipe import RECIPES
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.analysis.impact import Impact, ImpactStudy
    from promptcli.analysis.mask_tokens import Guess


def mask_tokens(
    sentence: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences.")],
    runtime: Runtime,
    prompt: Annotated[
        str, typer.Option("--prompt", "--template", help="Template with [X] and [MASK], or the name of one.")
    ] = "manual",
    backbone: options.BackboneName = None,
    denoise: Annotated[str, typer.Option(help="Where the template's bias is taken: hidden, head, logits.")] = "hidden",
    top: Annotated[int, typer.Option(min=1, help="Tokens of each list.")] = 5,
    json: options.Json = False,
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
    found = predict_mask_tokens(open_backbone(backbone, runtime), recipe, sentence, count=top)
    for row in found:
        if row.truncated:
            note(f"cut to the longest input: {row.sentence[:60]}...")
    if json:
        rows = [
            {
                "sentence": row.sentence,
                "truncated": row.truncated,
                "tokens": [dataclasses.asdict(guess) for guess in row.plain],
                "tokens_denoised": [dataclasses.asdict(guess) for guess in row.denoised],
            }
            for row in found
        ]
        about = {"backbone": backbone, "template": recipe.prompt, "period": recipe.period, "denoise": denoise}
        result_json({**about, "sentences": rows})
        return
    note(f"{backbone}, {recipe.prompt}; a period is put after a sentence without an end mark; bias taken: {denoise}")
    cells = [(row.sentence, _guesses(row.plain), _guesses(row.denoised)) for row in found]
    result_table(("sentence", "at the mask", "denoised"), cells)


def _guesses(guesses: "Sequence[Guess]") -> str:
    return ", ".join(f"{guess.token} {guess.probability:.2f}" for guess in guesses)


def token_bias(
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="[CORPUS]", help="Sentences to count tokens in: a file, a task or `demo`. Default: demo."
        ),
    ] = None,
    backbone: options.BackboneName = None,
    states: Annotated[
        str, typer.Option(help="static: word embeddings; mlm-head: output embeddings (figure 2, for untied models).")
    ] = "static",
    data_dir: options.DataDir = None,
    json: options.Json = False,
    *,
    picture: PictureOptions,
    runtime: Runtime,
) -> None:
    """Print how token embeddings lie by frequency, subword and case, in the plane of most variance (PromptBERT, fig 1).

    The position of a group is the mean of its tokens; `between` is the share of the plane's variance that lies
    between a bias's groups. The special tokens are left out.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.token_bias import token_bias as find_bias

    if corpus is None:
        note("assumed: frequencies of demo, sentences of our own")
    source = corpus or BARE.corpus
    sentences = sentences_of(source, data_dir, runtime)
    backbone = backbone or default_backbone(paper=False)
    loaded = open_backbone(backbone, runtime)
    with progress("token-bias", len(sentences)) as advance:
        found = find_bias(loaded, sentences, states=states, progress=advance)
    picture.draw(draw_token_bias, found, f"{backbone}, {EMBEDDINGS[states]}")
    if json:
        about = {"backbone": backbone, "states": states, "corpus": source, "sentences": len(sentences)}
        groups = [{**dataclasses.asdict(group), "mean": rounded(group.mean)} for group in found.groups]
        between = {bias: round(share, 6) for bias, share in found.between.items()}
        figures = {"tokens": len(found.points), "variance": rounded(found.variance), "between": between}
        result_json({**about, **figures, "groups": groups})
        return
    first, second = (100 * share for share in found.variance)
    note(
        f"{backbone}, {EMBEDDINGS[states]}, {len(found.points):,} tokens; share of all variance: first axis"
        f" {first:.1f}%, second {second:.1f}%; frequencies: {source}"
    )
    left = {bias: f"{100 * share:.1f}%" for bias, share in found.between.items()}  # said once, with the first group
    rows = [
        (group.bias, group.name, f"{group.tokens:,}", *(f"{at:.3f}" for at in group.mean), left.pop(group.bias, ""))
        for group in found.groups
    ]
    result_table(("bias", "group", "tokens", "first", "second", "between"), rows)


def impact(
    sentence: Annotated[str | None, typer.Argument(metavar="[SENTENCE]", help="Whose matrix to print.")] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SENTENCES", help="Compare with TF-IDF over many sentences (table 3): a file, a task or `demo`."
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=1, help="Take so many of them.")] = 1000,
    corpus: options.Corpus = "demo",
    backbone: options.BackboneName = None,
    data_dir: options.DataDir = None,
    json: options.Json = False,
    *,
    picture: PictureOptions,
    runtime: Runtime,
) -> None:
    """Print how much each token matters to each other one's state (perturbed masking: Ditto, 2.3 and table 3).

    The figure in row i and column j: how far the last-layer state at the masked i moves when j is masked, too. With
    --on: how alike the column means and TF-IDF are. N tokens take N(N+1)/2 forward passes.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.impact import compare_with_tfidf
    from promptcli.analysis.impact import impact as find_impact
    from promptcli.data.sources import read_sentences

    if sentence is not None and on is not None:
        raise UsageError("give a sentence, or sentences by --on, not both")
    if sentence is None and on is None:
        note(f"assumed: a sentence of our own; many of them: --on FILE (or --on demo): {SENTENCE}")
    backbone = backbone or default_backbone(paper=False)
    if on is None:
        given = sentence or SENTENCE
        loaded = open_backbone(backbone, runtime)
        with progress("impact", None) as advance:
            found = find_impact(loaded, given, progress=advance)
        picture.draw(draw_impact, found, backbone)
        _print_impact(found, backbone, given, json=json)
        return
    lines = read_sentences(on, data_folder(data_dir))
    sentences = list(itertools.islice(lines, first))
    documents = sentences_of(corpus, data_dir, runtime)
    loaded = open_backbone(backbone, runtime)
    with progress("impact", len(sentences)) as advance:
        study = compare_with_tfidf(loaded, sentences, documents, progress=advance)
    if study.left_out:
        note(f"{study.left_out:,} sentences are left out: blank, or longer than the longest input")
    picture.draw(draw_impact_study, study, backbone)
    about = {"backbone": backbone, "source": on, "idf": {"source": corpus, "sentences": len(documents)}}
    _print_study(study, about, json=json)


def _print_impact(found: "Impact", backbone: str, sentence: str, *, json: bool) -> None:
    if json:
        about = {"backbone": backbone, "sentence": sentence, "tokens": found.tokens}
        matrix = [rounded(row) for row in found.matrix.tolist()]
        result_json({**about, "matrix": matrix, "means": rounded(found.means.tolist())})
        return
    caption = f"impact of the token above on the token of the row, in % of {found.matrix.max():.3f}"
    note(f"{backbone}: {caption}")
    for line in token_map(found.tokens, found.matrix.tolist()):
        out.print(line)
    means = enumerate(zip(found.tokens, found.means, strict=True), 1)
    result_table(
        ("", "token", "mean impact on all"), [(str(number), token, f"{mean:.4f}") for number, (token, mean) in means]
    )


def _print_study(found: "ImpactStudy", about: dict[str, Any], *, json: bool) -> None:
    rows = {"all tokens together": found.correlation, "mean of sentences": found.by_sentence}
    if json:
        counts = {"sentences": found.sentences, "left_out": found.left_out, "tokens": len(found.means)}
        figures = {"correlation": found.correlation.to_dict(), "mean_of_sentences": found.by_sentence.to_dict()}
        result_json({**about, **counts, **figures})
        return
    note(
        f"{about['backbone']}: column means of the impact matrix against TF-IDF (idf: {about['idf']['source']});"
        f" {found.sentences:,} sentences of {about['source']}, {len(found.means):,} tokens"
    )
    cells = [(name, f"{one.pearson:.4f}", f"{one.spearman:.4f}") for name, one in rows.items()]
    result_table(("", "Pearson", "Spearman"), cells)


def attention(
    sentence: Annotated[str | None, typer.Argument(metavar="[SENTENCE]", help="What the head looks at.")] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="L-H", help="Layer-head, 1-based. Default: the best known one of the backbone."),
    ] = None,
    backbone: options.BackboneName = None,
    json: options.Json = False,
    *,
    picture: PictureOptions,
    runtime: Runtime,
) -> None:
    """Print one head's attention on a sentence and its diagonal, the weights of Ditto pooling (Ditto, figure 2).

    The figure in row i and column j: how much token i attends to token j.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.sentence import attention as find_attention

    if sentence is None:
        note(f"assumed: a sentence of our own: {SENTENCE}")
    backbone = backbone or default_backbone(paper=False)
    found = find_attention(open_backbone(backbone, runtime), sentence or SENTENCE, head)
    picture.draw(draw_attention, found, backbone)
    diagonal = found.diagonal.tolist()
    if json:
        about = {"backbone": backbone, "head": found.head, "sentence": sentence or SENTENCE, "tokens": found.tokens}
        matrix = [rounded(row) for row in found.matrix.tolist()]
        result_json({**about, "diagonal": rounded(diagonal), "matrix": matrix})
        return
    caption = f"attention of the token of the row to the token above, in % of {found.matrix.max():.3f}"
    note(f"{backbone}, head {found.head}: {caption}; below, the diagonal")
    for line in token_map(found.tokens, found.matrix.tolist()):
        out.print(line)
    rows = enumerate(zip(found.tokens, diagonal, strict=True), 1)
    cells = [(str(number), token, f"{one:.4f}", text_bar(one / max(diagonal))) for number, (token, one) in rows]
    result_table(("", "token", "to itself", ""), cells)
