"""Searches: the best head, layer or template of a model by a development set; stored only where a name is given."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from promptcli.data.sources import development_task, fitting_sentences
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import Encoder
from promptcli.models.loading import Model, backbone_model, entry_of, home_folder, open_model, open_registry
from promptcli.searching import heads, layers, template_search, template_space
from promptcli.searching.search import Search
from promptcli.searching.search_settings import SearchSettings
from promptcli.settings import BARE
from promptcli.storage.cache import Cache
from promptcli.storage.files import check_output, write_text

#: A value of a setting of a template search.
Setting = str | int | Path | tuple[str, ...] | None
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
    device: str = "auto",
    dtype: str = "stored",
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
        device: See ``load``.
        dtype: See ``load``.

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
    encoder = _opened(model, device, dtype)
    return _kept(heads.search_heads(encoder, task, sentences, states=states, top=top), name, force)


def search_layers(
    model: Model = BARE.backbone,
    on: Pairs = BARE.development,
    *,
    weights: Sequence[str] = (),
    name: str | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
) -> Search:
    """Find the states that a model's recipe reads best: every layer and the usual means of two, from one pass.

    Args:
        model: An encoder, or what ``load`` takes; a backbone's name stands for its plain recipe.
        on: The development set.
        weights: Of ``STATES/WEIGHTS``, e.g. ``avg``, ``last-token``; without any those of the model's recipe.
        name: Save the best in the registry under this name.
        force: Replace an entry of that name.
        data_dir: SentEval folder of a task that is named.
        device: See ``load``.
        dtype: See ``load``.

    Raises:
        UsageError: Unknown weights, transforms in the recipe, a name that is taken, or pairs that cannot rank anything.
        NotFoundError: A model, a task or a file that is not there.

    Example:
        >>> search_layers("mini-bert").best.choice  # doctest: +SKIP
    """
    _check_free(name, force)
    task = _development(on, data_dir)
    return _kept(layers.search_layers(_opened(model, device, dtype), task, weights=weights), name, force)


def search_templates(
    model: Model = BARE.backbone,
    on: Pairs = BARE.development,
    *,
    settings: SearchSettings | None = None,
    period: bool = True,
    denoise: str = "none",
    name: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
    **changes: Setting,
) -> Search:
    """Find the template that suits a backbone best (PromptBERT, section 4.2); a search that was killed is resumed.

    Args:
        model: Whose backbone: an encoder, or what ``load`` takes.
        on: The development set.
        settings: What is tried.
        period: A sentence without an end mark gets a "." (PromptBERT's evaluation).
        denoise: ``none``, or ``hidden``: minus the template's own bias.
        name: Save the best in the registry under this name.
        output: File of the best templates; with a name by default one in the registry's folder.
        force: Replace an entry or a file of that name.
        data_dir: SentEval folder of a task that is named.
        device: See ``load``.
        dtype: See ``load``.
        changes: Of single settings, e.g. ``mode="free"``, ``limit=100``.

    Raises:
        UsageError: Settings that do not go together, a name that is taken, or a backbone, templates or pairs that
            cannot be searched.
        NotFoundError: A model, a file or a task that is not there.

    Example:
        >>> search_templates("mini-bert", mode="free", limit=12).best.choice  # doctest: +SKIP
    """
    settings = (settings or SearchSettings()).replace(**changes)
    where: dict[str, Any] = {"data_dir": data_dir, "device": device, "dtype": dtype}
    how: dict[str, Any] = {"period": period, "denoise": denoise, "name": name, "output": output, "force": force}
    return search_all_templates([model], on, settings, **how, **where)[0]


def search_all_templates(
    models: Sequence[Model],
    on: Pairs = BARE.development,
    settings: SearchSettings = SearchSettings(),  # noqa: B008 - frozen
    *,
    period: bool = True,
    denoise: str = "none",
    name: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    data_dir: str | Path | None = None,
    device: str = "auto",
    dtype: str = "stored",
) -> list[Search]:
    """Find the best template of each of several models; see ``search_templates``.

    With a name each best is saved as NAME-BACKBONE; one file holds the best templates of all.
    """
    template_search.choose_strategy(settings)
    backbones = [
        one.recipe.backbone if isinstance(one, Encoder) else entry_of(backbone_model(one)).recipe.backbone
        for one in models
    ]
    names = template_search.entry_names(name or "template", backbones)
    for one in names if name else ():
        _check_free(one, force)
    file = templates_file(name) if output is None and name else output and Path(output)
    if file:
        check_output(file, force=force)
    # before anything is loaded
    candidates = None if settings.candidates is None else template_space.read_candidates(settings.candidates)
    task = _development(on, data_dir)
    cache = Cache(home_folder() / "cache" / "search")
    options: dict[str, Any] = {"period": period, "denoise": denoise, "cache": cache, "candidates": candidates}
    found = []
    for encoder, saved_as in zip([_opened(one, device, dtype) for one in models], names, strict=True):
        search = template_search.search_templates(encoder, task, settings, **options)
        found.append(_kept(search, saved_as if name else None, force))
    if file:
        rows = [one.named_templates(called) for called, one in zip(names, found, strict=True)]
        write_text(file, template_space.template_file({key: row for part in rows for key, row in part.items()}))
    return found


def saved_names(name: str | None, found: Sequence[Search]) -> list[str | None]:
    """Return what the best of each search is saved as."""
    if name is None:
        return [None] * len(found)
    return list(template_search.entry_names(name, [one.recipe.backbone for one in found]))


def templates_file(name: str) -> Path:
    """Return where the best templates of a search are written that is saved under a name."""
    folder = home_folder() / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.toml"


def _opened(model: Model, device: str, dtype: str) -> Encoder:
    if isinstance(model, Encoder):
        return model
    return open_model(backbone_model(model), device=device, dtype=dtype)


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
