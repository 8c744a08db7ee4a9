"""How a published row becomes an encoder here. A new kind of row is one entry of ``SYSTEMS``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from promptcli.data.sts import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.recipe import RECIPES, Recipe, split_spec
from promptcli.errors import NotFoundError, UsageError
from promptcli.fitting.fit import fit
from promptcli.reproducing.pictures import lacks_picture
from promptcli.reproducing.place import Place
from promptcli.reproducing.published import Row, same_backbone
from promptcli.reproducing.subject import Subject, identity_of, weights_of
from promptcli.reproducing.trained import lacks_training, trained_subject

#: What the heads of another backbone than the published one are ranked by (Ditto, table 4).
_RANKED_BY = "STS-B:dev"


@dataclass(frozen=True)
class System:
    """One kind of row.

    Attributes:
        time: How long a row takes on two processor cores, data and weights being there.
        make: From a row and a place to its subject; None while it is not built.
        absent: Why a row is not measured, as ``REASON: {}``; the braces are the row's argument.
        backbone: ``any`` one will do; only the row's ``own``; or ``none`` is needed.
        lacks: What this place lacks for a row, or None: a quick look, nothing is measured.
        trains: Only where it is asked for; ``absent`` says so.
    """

    time: str
    make: Callable[[Row, Place], Subject] | None = None
    absent: str = ""
    backbone: str = "any"
    lacks: Callable[[Row, Place], str | None] = lambda row, place: None
    trains: bool = False

    def on_backbone(self, *, train: bool) -> bool:
        """Return whether its rows are measured on a backbone, trained ones where ``train`` says so."""
        return self.make is not None and self.backbone != "none" and (train or not self.trains)


def _plain(recipe: Recipe, row: Row, place: Place) -> Subject:
    """Return the subject of a recipe that needs no numbers of its own."""
    encoder = Encoder(_on(recipe, place), place.backbone, {})
    return Subject(row, identity_of(encoder.recipe, place), encoder.recipe, lambda: encoder)


def _fitted(row: Row, place: Place) -> Subject:
    return _fitted_on(place.sentences, {"corpus": place.corpus_facts["sha256"]}, row, place)


def _fitted_nli(row: Row, place: Place) -> Subject:
    """Return what was published fitted on both sides of NLI pairs: on the triplets' where they are given."""
    if place.triplets is None:
        return _fitted(row, place)
    first, second, *_ = place.examples(supervised=True).columns
    return _fitted_on([*first, *second], {"triplets": place.triplet_facts["sha256"]}, row, place)


def _fitted_on(sentences: list[str], source: dict[str, str], row: Row, place: Place) -> Subject:
    recipe = _on(RECIPES[row.argument], place)
    return Subject(
        row,
        {**identity_of(recipe, place), **source},
        recipe,
        lambda: fit(recipe, sentences, backbone=place.backbone).encoder,
    )


def _head(row: Row, place: Place) -> Subject:
    """Return the published head on the published backbone; on another one the head of the same rank there."""
    rank, head = split_spec(row.argument)
    if not same_backbone(row.backbone, place.backbone_name):
        ranked = ranked_heads(place)
        if int(rank) > len(ranked):
            raise UsageError(f"backbone {place.backbone_name!r} has {len(ranked)} heads, this row is the {rank}. best")
        head = ranked[int(rank) - 1]["head"]
    return _plain(Recipe(pooling=f"first-last/ditto:{head}"), row, place)


def _tokens(row: Row, place: Place) -> Subject:
    recipe = _on(RECIPES["prompt-denoised"], place)
    return Subject(row, {**identity_of(recipe, place), "sentence": row.argument}, recipe)


def _settings(row: Row, place: Place) -> Subject:
    return Subject(row, {"settings": [row.run, row.backbone, row.setting]})


def _picture(row: Row, place: Place) -> Subject:
    return Subject(row, {"picture": row.argument, **weights_of(place)})


def _word_vectors(row: Row, place: Place) -> Subject:
    """Return the average of word vectors, the one thing that they can do."""
    return _plain(Recipe(pooling="static/avg"), row, place)


def ranked_heads(place: Place) -> list[dict[str, Any]]:
    """Return all heads on first-last states, the best first: ``RankedHead.to_dict``.

    Raises:
        NotFoundError: The development pairs are not there.
    """
    from promptcli.evaluation.evaluator import distinct_sentences
    from promptcli.searching.heads import search_heads

    found = place.tasks([_RANKED_BY])
    if found.missing:
        raise NotFoundError(f"no data: {_RANKED_BY}")
    key = {"search": "heads", **weights_of(place), "data": found.data, "corpus": place.corpus_facts["sha256"]}
    kept = place.cache.get(key)
    if kept is None:
        task: STSTask = found.content[0]
        backbone = place.backbone
        with place.working("heads", len(distinct_sentences([task]))) as advance:
            search = search_heads(
                backbone,
                task,
                place.sentences,
                states=["first-last"],
                top=backbone.n_layers * backbone.n_heads,
                progress=advance,
            )
        kept = {"heads": [head.to_dict() for head in search.heads]}
        place.cache.put(key, kept)
    heads: list[dict[str, Any]] = kept["heads"]
    return heads


def _lacks_tie(tied: bool) -> Callable[[Row, Place], str | None]:
    """Table 12's rows are of two models of one's own, the one with output embeddings tied to the input's."""

    def lacks(row: Row, place: Place) -> str | None:
        head = place.backbone.head
        if torch.equal(head.rows.cpu(), place.backbone.token_rows.cpu()) is tied:
            return None
        wanted = "tied" if tied else "untied"
        return f"needs a backbone with {wanted} output embeddings: promptcli pretrain{'' if tied else ' --untie'}"

    return lacks


def _lacks_recipe(row: Row, place: Place) -> str | None:
    return None if row.argument in RECIPES else f"not built here: {row.argument}"


def _on(recipe: Recipe, place: Place) -> Recipe:
    return recipe.replace(backbone=place.backbone.name)


_MINUTES, _HOURS = "minutes", "hours, GPU"

SYSTEMS: dict[str, System] = {
    "recipe": System(_MINUTES, lambda row, place: _plain(RECIPES[row.argument], row, place)),
    "pooling": System(_MINUTES, lambda row, place: _plain(Recipe(pooling=row.argument), row, place)),
    "template": System(_MINUTES, lambda row, place: _plain(RECIPES["prompt"].replace(prompt=row.argument), row, place)),
    "own": System(_MINUTES, lambda row, place: _plain(RECIPES[row.argument], row, place), backbone="own"),
    "fitted": System(_MINUTES, _fitted, lacks=_lacks_recipe),
    "fitted-nli": System(_MINUTES, _fitted_nli, lacks=_lacks_recipe),
    "head": System(_MINUTES, _head),
    "tokens": System(_MINUTES, _tokens),
    "tied": System(
        _MINUTES, lambda row, place: _plain(Recipe(pooling=row.argument), row, place), lacks=_lacks_tie(True)
    ),
    "untied": System(
        _MINUTES, lambda row, place: _plain(Recipe(pooling=row.argument), row, place), lacks=_lacks_tie(False)
    ),
    "backbone": System(_MINUTES, lambda row, place: Subject(row, weights_of(place))),
    "settings": System("seconds", _settings, backbone="none"),
    "trained": System(_HOURS, trained_subject, "training: ask for it by --train", lacks=lacks_training, trains=True),
    "picture": System(_MINUTES, _picture, lacks=lacks_picture),
    "word-vectors": System(_MINUTES, _word_vectors, backbone="own"),
    "list": System("-", absent="a list of words, no figures: held in {}", backbone="none"),
    "absent": System("-", absent="not built here: {}", backbone="none"),
}
