"""How a published row becomes an encoder here. A new kind of row is one entry of ``SYSTEMS``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from promptcli.encoder.encoder import Encoder
from promptcli.errors import NotFoundError, UsageError
from promptcli.fitting.fits import fit
from promptcli.recipe import RECIPES, Recipe, split_spec
from promptcli.reproducing.measured_system import MeasuredSystem, identity_of, weights_of
from promptcli.reproducing.measurement_context import MeasurementContext
from promptcli.reproducing.published import PublishedRow, same_backbone
from promptcli.reproducing.trained import lacks_training, trained_system
from promptcli.searching.heads import search_heads
from promptcli.storage.files import sha256

Make = Callable[[PublishedRow, MeasurementContext], MeasuredSystem]
Lacks = Callable[[PublishedRow, MeasurementContext], str | None]


@dataclass(frozen=True)
class RowKind:
    """One kind of row."""

    make: Make | None = None  #: from a row and a context to its system; None while it is not built
    time: str = "minutes"  #: how long a row takes on two processor cores, data and weights being there
    absent: str = ""  #: why a row is not measured, as ``REASON: {}``; the braces are the row's argument
    backbone: str = "any"  #: ``any`` one will do; only the row's ``own``; or ``none`` is needed
    lacks: Lacks = lambda row, context: None  #: what is not there for a row, or None: a quick look, nothing is measured
    trains: bool = False  #: only where it is asked for; ``absent`` says so

    def on_backbone(self, *, train: bool) -> bool:
        """Return whether its rows are measured on a backbone, trained ones where ``train`` says so."""
        return self.make is not None and self.backbone != "none" and (train or not self.trains)


def _encodes(recipe_of: Callable[[str], Recipe]) -> Make:
    """Return what makes the system of a recipe that needs no numbers of its own, given the row's argument."""
    return lambda row, context: _plain(recipe_of(row.argument), row, context)


def _plain(recipe: Recipe, row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    encoder = Encoder(_on(recipe, context), context.backbone, {})
    return MeasuredSystem(row, identity_of(encoder.recipe, context), encoder.recipe, lambda: encoder)


def _fitted(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    return _fitted_on(context.sentences, {"corpus": context.corpus_facts["sha256"]}, row, context)


def _fitted_nli(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return what was published fitted on both sides of NLI pairs: on the triplets' where they are given."""
    if context.texts.triplets is None:
        return _fitted(row, context)
    first, second, *_ = context.examples("triplets").columns
    return _fitted_on([*first, *second], {"triplets": context.example_facts("triplets")["sha256"]}, row, context)


def _fitted_on(
    sentences: list[str], source: dict[str, str], row: PublishedRow, context: MeasurementContext
) -> MeasuredSystem:
    recipe = _on(RECIPES[row.argument], context)
    identity = {**identity_of(recipe, context), **source}
    return MeasuredSystem(row, identity, recipe, lambda: fit(recipe, sentences, backbone=context.backbone).encoder)


def _head(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the published head on the published backbone; on another one the head of the same rank there."""
    rank, head = split_spec(row.argument)
    if not same_backbone(row.backbone, context.backbone_name):
        ranked = ranked_heads(context)
        if int(rank) > len(ranked):
            raise UsageError(
                f"backbone {context.backbone_name!r} has {len(ranked)} heads, this row is the {rank}. best"
            )
        head = ranked[int(rank) - 1]["head"]
    return _plain(Recipe(pooling=f"first-last/ditto:{head}"), row, context)


def _external(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    path = vector_file(row, context)
    return MeasuredSystem(row, {"vectors": sha256(path)}, vectors=path, slow=True)


def vector_file(row: PublishedRow, context: MeasurementContext) -> Path:
    """Return the file of another program's vectors for the sentences of a row's table.

    Raises:
        NotFoundError: There is none, or no folder was given.
    """
    found = sorted(context.vectors.glob(f"{row.argument}.*")) if context.vectors is not None else []
    if not found:
        raise NotFoundError(f"another program's vectors, by --list-sentences and --vectors FOLDER: {row.argument}.npy")
    return found[0]


def _lacks_vectors(row: PublishedRow, context: MeasurementContext) -> str | None:
    try:
        vector_file(row, context)
    except NotFoundError as error:
        return str(error)
    return None


def _tokens(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    recipe = _on(RECIPES["prompt-denoised"], context)
    return MeasuredSystem(row, {**identity_of(recipe, context), "sentence": row.argument}, recipe)


class RankedHead(TypedDict):
    """A head and how alike its diagonal and TF-IDF are."""

    head: str
    tfidf: dict[str, float]


class _Heads(TypedDict):
    heads: list[RankedHead]


def ranked_heads(context: MeasurementContext) -> list[RankedHead]:
    """Return all heads on first-last states, the best on the development pairs first.

    Raises:
        NotFoundError: The development pairs are not there.
    """
    task, backbone = context.development(), context.backbone
    facts = context.tasks([task.label]).facts
    key = {"search": "heads", **weights_of(context), "data": facts, "corpus": context.corpus_facts["sha256"]}
    kept: Any = context.cache.get(key, _Heads)
    every = {f"{layer}-{head}" for layer in range(1, backbone.n_layers + 1) for head in range(1, backbone.n_heads + 1)}
    if kept is None or {head["head"] for head in kept["heads"]} != every:
        encoder = Encoder(Recipe(backbone=backbone.name), backbone, {})
        ranked = search_heads(encoder, task, context.sentences, states=["first-last"], top=len(every)).ranked
        heads = [{"head": row.choice.partition(":")[2], "tfidf": row.tfidf and row.tfidf.to_dict()} for row in ranked]
        kept = {"heads": heads}
        context.cache.put(key, kept)
    found_heads: list[RankedHead] = kept["heads"]
    return found_heads


def _lacks_tie(tied: bool) -> Lacks:
    """PromptBERT, table 12: rows of two models of one's own, one with output embeddings tied to the input's."""

    def lacks(row: PublishedRow, context: MeasurementContext) -> str | None:
        head = context.backbone.head
        if torch.equal(head.rows.cpu(), context.backbone.token_rows.cpu()) is tied:
            return None
        wanted = "tied" if tied else "untied"
        return f"needs a backbone with {wanted} output embeddings: promptcli pretrain{'' if tied else ' --untie'}"

    return lacks


def _lacks_recipe(row: PublishedRow, context: MeasurementContext) -> str | None:
    return None if row.argument in RECIPES else f"not built here: {row.argument}"


def _lacks_drawing(row: PublishedRow, context: MeasurementContext) -> str | None:
    return "drawing: needs matplotlib: pip install 'promptcli[plot]'" if context.draw is None else None


def _on(recipe: Recipe, context: MeasurementContext) -> Recipe:
    return recipe.replace(backbone=context.backbone.name).explicit()


_named = _encodes(lambda name: RECIPES[name])
_pooled = _encodes(lambda pooling: Recipe(pooling=pooling))

#: By the kind that rows are of.
SYSTEMS: dict[str, RowKind] = {
    "recipe": RowKind(_named),
    "own": RowKind(_named, backbone="own"),
    "pooling": RowKind(_pooled),
    "tied": RowKind(_pooled, lacks=_lacks_tie(True)),
    "untied": RowKind(_pooled, lacks=_lacks_tie(False)),
    "template": RowKind(_encodes(lambda template: RECIPES["prompt"].replace(prompt=template))),
    "word-vectors": RowKind(_encodes(lambda name: Recipe(pooling="static/avg")), backbone="own"),
    "fitted": RowKind(_fitted, lacks=_lacks_recipe),
    "fitted-nli": RowKind(_fitted_nli, lacks=_lacks_recipe),
    "head": RowKind(_head),
    "tokens": RowKind(_tokens),
    "backbone": RowKind(lambda row, context: MeasuredSystem(row, weights_of(context))),
    "picture": RowKind(
        lambda row, context: MeasuredSystem(row, {"picture": row.argument, **weights_of(context)}), lacks=_lacks_drawing
    ),
    "settings": RowKind(
        lambda row, context: MeasuredSystem(row, {"settings": [row.run, row.backbone, row.setting]}),
        "seconds",
        backbone="none",
    ),
    "trained": RowKind(
        trained_system, "hours, GPU", "training: ask for it by --train", lacks=lacks_training, trains=True
    ),
    "vectors": RowKind(_external, "that program's", lacks=_lacks_vectors, backbone="none"),
    "list": RowKind(time="-", absent="a list of words, no figures: held in {}", backbone="none"),
}
