"""Searches: the best head, layer or template of a model by a development set; stored only where a name is given."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptcli.api.encoders import entry_of, load, open_registry
from promptcli.api.evaluating import Model
from promptcli.data.sources import development_task, fitting_sentences
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.recipe import Recipe
from promptcli.registry.registry import home
from promptcli.searching import heads, layers, template_search
from promptcli.searching.search import Search
from promptcli.searching.search_settings import SearchSettings
from promptcli.settings import BARE
from promptcli.storage.cache import Cache

#: A task's name, a file of graded pairs, or loaded pairs.
Pairs = STSTask | str | Path


def search_heads(
    model: Model = BARE.backbone,
    on: Pairs = BARE.development,
    corpus: Sequence[str] | str | Path = BARE.corpus,
    *,
    states: Sequence[str] = heads.SEARCHED,
    top: int = 10,
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> Search:
    """Find the attention head whose diagonal weighs tokens best (Ditto, section 2): all heads from one pass.

    Args:
        model: Whose heads: an encoder, or what ``load`` takes.
        on: The development set.
        corpus: Sentences that the idf of the TF-IDF correlation is counted on, or a file, a task or ``demo``.
        states: ``static``, ``last``, ``first-last``.
        top: How many heads to describe.
        name: Save the best in the registry under this name.
        force: Replace an entry of that name.
        data_dir: SentEval folder of a task that is named.

    Raises:
        UsageError: Unknown states, pairs that cannot rank anything, no corpus, a name that is taken, or a backbone that
            does not open its attention.
        NotFoundError: A model, a task or a file that is not there.

    Example:
        >>> found = search_heads("mini-bert", states=["first-last"])  # doctest: +SKIP
        >>> found.best.choice, found.best.value  # doctest: +SKIP
    """
    _check_free(name, force)
    task, folder = _development(on, data_dir), _folder(data_dir)
    sentences = fitting_sentences(str(corpus), folder) if isinstance(corpus, str | Path) else corpus
    return _kept(heads.search_heads(_opened(model), task, sentences, states=states, top=top), name, force)


def search_layers(
    model: Model = BARE.backbone,
    on: Pairs = BARE.development,
    *,
    weights: Sequence[str] = (),
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
) -> Search:
    """Find the states that a model's recipe reads best: every layer and the usual means of two, from one pass.

    Args:
        model: An encoder, or what ``load`` takes; a backbone's name stands for its plain recipe.
        on: The development set.
        weights: Of ``STATES/WEIGHTS``, e.g. ``avg``, ``last-token``; without any those of the model's recipe.
        name: Save the best in the registry under this name.
        force: Replace an entry of that name.
        data_dir: SentEval folder of a task that is named.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a name that is taken, or pairs that cannot rank anything.
        NotFoundError: A model, a task or a file that is not there.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """
    _check_free(name, force)
    return _kept(layers.search_layers(_opened(model), _development(on, data_dir), weights=weights), name, force)


def search_templates(
    model: Model = BARE.backbone,
    on: Pairs = BARE.development,
    *,
    settings: SearchSettings | None = None,
    period: bool = True,
    denoise: str = "none",
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
    **changes: Any,
) -> Search:
    """Find the template that suits a backbone best (PromptBERT, section 4.2); a search that was killed goes on.

    Args:
        model: Whose backbone: an encoder, or what ``load`` takes.
        on: The development set.
        settings: What is tried.
        period: A sentence without an end mark gets a "." (PromptBERT's evaluation).
        denoise: ``none``, or ``hidden``: minus the template's own bias.
        name: Save the best in the registry under this name.
        force: Replace an entry of that name.
        data_dir: SentEval folder of a task that is named.
        changes: Of single settings, e.g. ``mode="free"``, ``limit=100``.

    Raises:
        UsageError: Settings that do not go together, a name that is taken, or a backbone, templates or pairs that
            cannot be searched.
        NotFoundError: A model, a file or a task that is not there.

    Example:
        >>> search_templates("mini-bert", mode="free", limit=12).best.choice  # doctest: +SKIP
    """
    _check_free(name, force)
    settings = (settings or SearchSettings()).replace(**changes)
    template_search.choose_strategy(settings)
    cache = Cache(home(os.environ) / "cache" / "search")
    options: dict[str, Any] = {"period": period, "denoise": denoise, "cache": cache}
    found = template_search.search_templates(_opened(model), _development(on, data_dir), settings, **options)
    return _kept(found, name, force)


def _opened(model: Model) -> Encoder:
    if isinstance(model, Encoder):
        return model
    entry = entry_of(model)
    recipe = entry.recipe
    # a backbone's name stands for its plain recipe, so that what is found is a recipe of that backbone
    plain = Recipe(backbone=recipe.backbone) if str(model) == recipe.backbone else model
    return load(plain)


def _development(on: Pairs, data_dir: str | Path | None) -> STSTask:
    return development_task(on, _folder(data_dir))


def _folder(data_dir: str | Path | None) -> Path | None:
    return None if data_dir is None else Path(data_dir)


def _check_free(name: str | None, force: bool) -> None:
    if name is not None:
        open_registry().check_free(name, force=force)


def _kept(found: Search, name: str | None, force: bool) -> Search:
    if name is not None:
        open_registry().save(found.entry(name), force=force)
    return found
