"""How a published row becomes an encoder here. A new kind of row is one entry of ``SYSTEMS``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.recipe import RECIPES, Recipe, split_spec
from promptcli.errors import NotFoundError, UsageError
from promptcli.fitting.fits import fit
from promptcli.reproducing.context import MeasurementContext
from promptcli.reproducing.measured_system import MeasuredSystem, identity_of, weights_of
from promptcli.reproducing.picture_columns import lacks_picture
from promptcli.reproducing.published import PublishedRow, same_backbone
from promptcli.reproducing.trained import lacks_training, trained_subject

#: What the heads of another backbone than the published one are ranked by (Ditto, table 4).
_RANKED_BY = "STS-B:dev"


@dataclass(frozen=True)
class RowKind:
    """One kind of row.

    Attributes:
        time: How long a row takes on two processor cores, data and weights being there.
        make: From a row and a context to its system; None while it is not built.
        absent: Why a row is not measured, as ``REASON: {}``; the braces are the row's argument.
        backbone: ``any`` one will do; only the row's ``own``; or ``none`` is needed.
        lacks: What this context lacks for a row, or None: a quick look, nothing is measured.
        trains: Only where it is asked for; ``absent`` says so.
    """

    time: str
    make: Callable[[PublishedRow, MeasurementContext], MeasuredSystem] | None = None
    absent: str = ""
    backbone: str = "any"
    lacks: Callable[[PublishedRow, MeasurementContext], str | None] = lambda row, context: None
    trains: bool = False

    def on_backbone(self, *, train: bool) -> bool:
        """Return whether its rows are measured on a backbone, trained ones where ``train`` says so."""
        return self.make is not None and self.backbone != "none" and (train or not self.trains)


def _plain(recipe: Recipe, row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the system of a recipe that needs no numbers of its own."""
    encoder = Encoder(_on(recipe, context), context.backbone, {})
    return MeasuredSystem(row, identity_of(encoder.recipe, context), encoder.recipe, lambda: encoder)


def _fitted(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    return _fitted_on(context.sentences, {"corpus": context.corpus_facts["sha256"]}, row, context)


def _fitted_nli(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return what was published fitted on both sides of NLI pairs: on the triplets' where they are given."""
    if context.triplets is None:
        return _fitted(row, context)
    first, second, *_ = context.examples(supervised=True).columns
    return _fitted_on([*first, *second], {"triplets": context.triplet_facts["sha256"]}, row, context)


def _fitted_on(
    sentences: list[str], source: dict[str, str], row: PublishedRow, context: MeasurementContext
) -> MeasuredSystem:
    recipe = _on(RECIPES[row.argument], context)
    return MeasuredSystem(
        row,
        {**identity_of(recipe, context), **source},
        recipe,
        lambda: fit(recipe, sentences, backbone=context.backbone).encoder,
    )


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


def _tokens(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    recipe = _on(RECIPES["prompt-denoised"], context)
    return MeasuredSystem(row, {**identity_of(recipe, context), "sentence": row.argument}, recipe)


def _settings(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    return MeasuredSystem(row, {"settings": [row.run, row.backbone, row.setting]})


def _picture(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    return MeasuredSystem(row, {"picture": row.argument, **weights_of(context)})


def _word_vectors(row: PublishedRow, context: MeasurementContext) -> MeasuredSystem:
    """Return the average of word vectors, the one thing that they can do."""
    return _plain(Recipe(pooling="static/avg"), row, context)


def ranked_heads(context: MeasurementContext) -> list[dict[str, Any]]:
    """Return all heads on first-last states, the best first: ``RankedHead.to_dict``.

    Raises:
        NotFoundError: The development pairs are not there.
    """
    from promptcli.evaluation.evaluator import distinct_sentences
    from promptcli.searching.heads import search_heads

    found = context.tasks([_RANKED_BY])
    if found.missing:
        raise NotFoundError(f"no data: {_RANKED_BY}")
    key = {"search": "heads", **weights_of(context), "data": found.data, "corpus": context.corpus_facts["sha256"]}
    kept = context.cache.get(key)
    if kept is None:
        task: STSTask = found.content[0]
        backbone = context.backbone
        with context.working("heads", len(distinct_sentences([task]))) as advance:
            search = search_heads(
                backbone,
                task,
                context.sentences,
                states=["first-last"],
                top=backbone.n_layers * backbone.n_heads,
                progress=advance,
            )
        kept = {"heads": [head.to_dict() for head in search.heads]}
        context.cache.put(key, kept)
    heads: list[dict[str, Any]] = kept["heads"]
    return heads


def _lacks_tie(tied: bool) -> Callable[[PublishedRow, MeasurementContext], str | None]:
    """PublishedTable 12's rows are of two models of one's own, the one with output embeddings tied to the input's."""

    def lacks(row: PublishedRow, context: MeasurementContext) -> str | None:
        head = context.backbone.head
        if torch.equal(head.rows.cpu(), context.backbone.token_rows.cpu()) is tied:
            return None
        wanted = "tied" if tied else "untied"
        return f"needs a backbone with {wanted} output embeddings: promptcli pretrain{'' if tied else ' --untie'}"

    return lacks


def _lacks_recipe(row: PublishedRow, context: MeasurementContext) -> str | None:
    return None if row.argument in RECIPES else f"not built here: {row.argument}"


def _on(recipe: Recipe, context: MeasurementContext) -> Recipe:
    return recipe.replace(backbone=context.backbone.name).explicit()


_MINUTES, _HOURS = "minutes", "hours, GPU"

SYSTEMS: dict[str, RowKind] = {
    "recipe": RowKind(_MINUTES, lambda row, context: _plain(RECIPES[row.argument], row, context)),
    "pooling": RowKind(_MINUTES, lambda row, context: _plain(Recipe(pooling=row.argument), row, context)),
    "template": RowKind(
        _MINUTES, lambda row, context: _plain(RECIPES["prompt"].replace(prompt=row.argument), row, context)
    ),
    "own": RowKind(_MINUTES, lambda row, context: _plain(RECIPES[row.argument], row, context), backbone="own"),
    "fitted": RowKind(_MINUTES, _fitted, lacks=_lacks_recipe),
    "fitted-nli": RowKind(_MINUTES, _fitted_nli, lacks=_lacks_recipe),
    "head": RowKind(_MINUTES, _head),
    "tokens": RowKind(_MINUTES, _tokens),
    "tied": RowKind(
        _MINUTES, lambda row, context: _plain(Recipe(pooling=row.argument), row, context), lacks=_lacks_tie(True)
    ),
    "untied": RowKind(
        _MINUTES, lambda row, context: _plain(Recipe(pooling=row.argument), row, context), lacks=_lacks_tie(False)
    ),
    "backbone": RowKind(_MINUTES, lambda row, context: MeasuredSystem(row, weights_of(context))),
    "settings": RowKind("seconds", _settings, backbone="none"),
    "trained": RowKind(_HOURS, trained_subject, "training: ask for it by --train", lacks=lacks_training, trains=True),
    "picture": RowKind(_MINUTES, _picture, lacks=lacks_picture),
    "word-vectors": RowKind(_MINUTES, _word_vectors, backbone="own"),
    "list": RowKind("-", absent="a list of words, no figures: held in {}", backbone="none"),
    "absent": RowKind("-", absent="not built here: {}", backbone="none"),
}
