"""From a model's name to its encoder: a name, a recipe or a ``ModelChoice`` becomes an entry
(``resolve_entry``), and an entry becomes an encoder (``open_encoder``).
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.backbones.model_folder import (
    SHIPPED_BACKBONES,
    hub_remedy,
    is_word_file,
    locate,
    similar_name,
)
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.encoder.static_encoder import StaticEncoder, averages_words, static_encoder
from promptcli.errors import CheckFailedError, NotFoundError, UsageError, look_up
from promptcli.extensions import Table
from promptcli.grammar import parse_ditto
from promptcli.models.entries import Entry, Registry
from promptcli.models.foreign_formats import read_model
from promptcli.notes import note, silent, without_network
from promptcli.recipe import RECIPES, ModelChoice, Recipe
from promptcli.settings import BUILT_IN, DEFAULT_MODEL, SEARCH_MODEL, home_folder
from promptcli.storage.typed_documents import read_document

if TYPE_CHECKING:
    import torch

    from promptcli.encoder.encoder import TorchEncoder


def build_torch(
    recipe: Recipe, *, folder: Path, rows: int | None, calibration: Iterable[str], **options: Any
) -> "TorchEncoder":
    """Return the encoder of a recipe on torch, on any device.

    Every backend takes these arguments, and raises ``UsageError`` if it does not support the recipe
    or an option.

    Args:
        recipe: The recipe.
        folder: Where a backend may keep files that it makes once for a model.
        rows: Number of sentences that will be encoded; None: unknown.
        calibration: Sentences like those that will be encoded; it may be empty.
        options: Those of ``build_encoder``.
    """
    from promptcli.encoder.encoder import build_encoder

    return build_encoder(recipe, **options)


#: Name of a backend (torch, or another library that computes vectors) -> its function.
BACKENDS: Table[Callable[..., "TorchEncoder"]] = Table("backends", {"torch": build_torch})
#: An encoder, or what ``load`` takes.
Model = Encoder | Entry | Recipe | ModelChoice | str | Path
#: Shipped model -> its languages, as messages name them.
LANGUAGES = {DEFAULT_MODEL: "English", "mini-static": "English", SEARCH_MODEL: "eleven languages"}
_MAX_LISTED_MODELS = 5  #: models that a message lists
_OWNER = "sentence-transformers/"  #: may be omitted in a model's name
#: Fields of a recipe that fitted tensors depend on.
_FITTED = ("backbone", "prompt", "pooling", "transforms", "denoise")
#: A list of sentences, or the name of their source: ``demo``, a task, a file.
Sentences = str | Path | Sequence[str]


def with_language(name: str) -> str:
    """Return a model's name; a shipped model's name comes with its language."""
    return f"{name} ({LANGUAGES[name]})" if name in LANGUAGES else name


def or_search_model(model: Model | None) -> Model:
    """Return the model, or if the user chose none, the default model for search and comparison."""
    if model is None:
        return SEARCH_MODEL
    if isinstance(model, ModelChoice) and not model.changes and model.model is None:
        if model.backbone == BUILT_IN.backbone:
            return dataclasses.replace(model, model=SEARCH_MODEL)
    return model


def open_registry() -> Registry:
    """Return the registry of $PROMPTCLI_HOME, else of the platform's data folder."""
    return Registry(home_folder())


def load(
    model: Model = DEFAULT_MODEL,
    *,
    backbone: str | None = None,
    prompt: str | None = None,
    pooling: str | None = None,
    transforms: str | Sequence[str] | None = None,
    denoise: str | None = None,
    max_length: int | None = None,
    dim: int | None = None,
    revision: str | None = None,
    device: "str | torch.device | int | None" = "auto",
    dtype: "str | torch.dtype | None" = "auto",
    offline: bool = False,
    backend: str = "torch",
    rows: int | None = None,
    calibration: Iterable[str] = (),
) -> Encoder:
    """Return an encoder.

    Args:
        model: A model of the registry, a named recipe, a ``Recipe`` or a recipe file, a folder, or
            a hub id (``sentence-transformers/`` may be omitted). An encoder of promptcli or
            sentence-transformers keeps its pooling, layers and prompts. Of a plain language model
            the first and the last layer are averaged, a causal one is read at its last token; a
            note says so.
        backbone: Replaces the recipe's.
        prompt: Replaces the recipe's.
        pooling: Replaces the recipe's.
        transforms: Replace the recipe's.
        denoise: Replaces the recipe's.
        max_length: Replaces the recipe's, in tokens.
        dim: Keep the first dimensions of each vector, of a model that was trained for it (``dims``
            of ``train``).
        revision: Branch, tag or commit of a model on the hub.
        device: ``auto`` (or None), ``cpu``, ``cuda``, ..., a ``torch.device``, or the number of a
            GPU.
        dtype: ``auto`` (bfloat16 if the hardware is fast in it, else float32), ``stored`` (float32;
            for causal models the dtype of their files if the device supports it), ``float32``,
            ``tf32`` (on a GPU), ``bfloat16`` or ``float16``. ``int8`` takes a backend's 8 bits,
            however much they lose.
        offline: Never use the network.
        backend: Runtime on a CPU: ``torch``, ``openvino``, ``openvino-int8``, ``onnx``,
            ``onnx-int8``, or ``auto``.
        rows: Number of sentences that will be encoded, for ``auto``.
        calibration: 300 sentences like those that will be encoded, for the first use of
            ``openvino-int8`` with a model. Default: demo sentences.

    Raises:
        NotFoundError: The name is unknown.
        UsageError: The components do not fit together, or the backend does not support them.

    Example:
        >>> import promptcli as pc
        >>> pc.load("mini").encode(["A cat sleeps."]).shape
        (1, 256)
    """
    arguments = {
        "backbone": backbone,
        "prompt": prompt,
        "pooling": pooling,
        "transforms": transforms,
        "denoise": denoise,
        "max_length": max_length,
    }
    changes = {field: value for field, value in arguments.items() if value is not None}
    if revision is not None:
        if not isinstance(model, str | Path) or _parse_recipe(str(model)):
            raise UsageError(
                "a revision can be given only with the name of a model on the hub",
                parameter="revision",
            )
        model = f"{model}@{revision}"
    with without_network(offline):
        chosen = ModelChoice(
            resolve_entry(model),
            changes,
            device=f"cuda:{device}" if isinstance(device, int) else str(device or "auto"),
            dtype=str(dtype or "auto").removeprefix("torch."),
            backend=backend,
            dim=dim,
        )
        return open_encoder(chosen, rows=rows, calibration=calibration)


def as_list(models: Model | Sequence[Model]) -> list[Model]:
    """Return one or several models as a list."""
    if isinstance(models, Sequence) and not isinstance(models, str):
        return list(models)
    return [models]


def resolve_entry(model: Model) -> Entry:
    """Return a model as an entry."""
    if isinstance(model, Entry):
        return model
    if isinstance(model, Encoder):
        return entry_from_encoder(model)
    if isinstance(model, Recipe):
        return Entry("recipe", model)
    if isinstance(model, ModelChoice):
        return _entry_of_choice(model)
    if not isinstance(model, str | Path):
        raise UsageError(
            f"{model!r} is not a model; give an encoder, a recipe, or a name, e.g. 'mini'"
        )
    return _find_entry(str(model))


def _entry_of_choice(choice: ModelChoice) -> Entry:
    """Return the entry of a choice, with the choice's changes of its recipe.

    If the user names no model, it is the default model; but the plain recipe if the user names a
    backbone or a field that the default model's tensors are fitted to. A recipe that names no
    backbone has the choice's.
    """
    changes = dict(choice.changes)
    model = choice.model
    if model is None:
        keeps_default = choice.backbone == BUILT_IN.backbone and changes.keys().isdisjoint(_FITTED)
        model = DEFAULT_MODEL if keeps_default else Recipe()
    entry = resolve_entry(model)
    if not entry.provenance and entry.recipe.backbone == BUILT_IN.backbone:
        changes = {"backbone": choice.backbone, **changes}
    entry = _with_changes(entry, changes)
    if choice.dim is None:
        return entry
    return dataclasses.replace(
        entry,
        name=f"{entry.name} dim={choice.dim}",
        recipe=entry.recipe.truncate(choice.dim),
        scores=[],
        transfer=None,
    )


def _with_changes(entry: Entry, changes: dict[str, Any]) -> Entry:
    """Return an entry with fields of its recipe changed; refuse a change of a field that its
    tensors are fitted to.

    A changed entry has another name and no scores.
    """
    # a new prompt has its own default of the period
    fields = {"period": None, **changes} if "prompt" in changes else changes
    recipe = entry.recipe.replace(**fields)
    if recipe.resolve() == entry.recipe.resolve():
        return entry
    differing = [
        field for field in vars(recipe) if getattr(recipe, field) != getattr(entry.recipe, field)
    ]
    forbidden = [field for field in _FITTED if field in differing]
    if entry.tensors and forbidden:
        raise UsageError(
            f"model {entry.name!r} was trained or fitted for its recipe; to change its"
            f" {' or '.join(forbidden)}, start from its backbone, {entry.recipe.backbone!r}"
        )
    shown_changes = [f"{field}={getattr(recipe, field)}" for field in changes if field in differing]
    return dataclasses.replace(
        entry,
        name=" ".join([entry.name, *shown_changes]),
        recipe=recipe,
        scores=[],
        transfer=entry.transfer and entry.transfer.replace(**fields),
    )


def _find_entry(name: str) -> Entry:
    """Return the entry of a name.

    It is, in this order: a model of the registry, a folder, a recipe (by name, as text, in a file),
    OWNER/NAME on the hub, a file, NAME on the hub, and NAME of the owner sentence-transformers.
    """
    registry = open_registry()
    names = registry.names()
    if name in names:
        return registry.load(name)
    is_folder = os.path.isdir(name)
    if not is_folder and (entry := _parse_recipe(name)):
        return entry
    if is_folder or "/" in name:
        return read_model(locate(name))
    known_names = [*names, *RECIPES]
    similar = similar_name(name, [*known_names, *SHIPPED_BACKBONES])
    if "@" in name or f"{_OWNER}{name}?" in similar:
        similar = ""
    reasons = list[str]()
    for hub_name in [name] if os.path.exists(name) else [name, _OWNER + name]:
        # a name that looks mistyped is not looked up on the hub; the note about the first request
        # announces the second one, too
        with without_network(bool(similar)), silent(bool(reasons)):
            try:
                return read_model(locate(hub_name))
            except NotFoundError as error:
                reasons.append(str(error).partition(";")[0])
    reason = f"no model {name!r}{similar} {hub_remedy(name)}" if similar else reasons[0]
    first_names = ", ".join(known_names[:_MAX_LISTED_MODELS])
    commands = "`promptcli models list`, `promptcli models list --recipes`"
    raise NotFoundError(
        f"{reason}; models: {first_names}, ... (all: {commands}); or give a folder, or a hub id"
    )


def _parse_recipe(text: str) -> Entry | None:
    """Return the recipe of a name, of JSON or TOML text, or of a recipe file; None for any other
    text.
    """
    if text in RECIPES:
        return Entry(text, RECIPES[text])
    if text in SHIPPED_BACKBONES:
        return Entry(text, Recipe(text))
    if is_word_file(text):
        return Entry(text, RECIPES["static-avg"].replace(backbone=text))
    if parse_ditto(text) is not None:
        return Entry(text, Recipe(pooling=text))
    path = Path(text)
    if path.suffix in (".json", ".toml") and "{" not in text:
        hint = "give JSON or TOML text, a file of it, or a name: `promptcli models list --recipes`"
        values = read_document(path, dict[str, Any], hint=hint, error=UsageError)
        return Entry(path.stem, Recipe.from_dict(values))
    return Entry("recipe", Recipe.from_text(text)) if {"{", "="} & set(text) else None


def backbone_model(model: Model) -> Model:
    """Return a model for work on its backbone: a name that is neither a model nor a recipe is taken
    for a backbone, which gets the plain recipe.
    """
    word = model.model if isinstance(model, ModelChoice) else model
    name = str(word)
    if not isinstance(word, str | Path) or name in open_registry().names():
        return model
    if not os.path.isdir(name) and _parse_recipe(name):
        return model
    recipe = Recipe(name)
    return dataclasses.replace(model, model=recipe) if isinstance(model, ModelChoice) else recipe


def open_encoder(
    model: Model,
    *,
    device: str = "auto",
    dtype: str = "auto",
    rows: int | None = None,
    calibration: Iterable[str] = (),
    backbone_donors: Iterable[Encoder] = (),
) -> Encoder:
    """Return a model's encoder, without torch if the model is static; see ``load``.

    The device and the dtype of a ``ModelChoice`` override the arguments, which are the work's
    defaults; an encoder keeps its own. If one of ``backbone_donors`` has the same backbone and did
    not tune it, the encoder shares it.
    """
    if isinstance(model, Encoder):
        return model
    choice = model if isinstance(model, ModelChoice) else ModelChoice(model)
    entry = resolve_entry(model)
    recipe = entry.recipe
    device = device if choice.device == "auto" else choice.device
    dtype = choice.dtype or dtype
    # fewer bits do not make an average of rows faster; float32 is equal on every processor
    if dtype == "auto" and device in ("auto", "cpu") and averages_words(recipe, entry.prompts):
        dtype = "float32"
    donated = (encoder.loaded_backbone for encoder in backbone_donors)
    shareable = (backbone for backbone in donated if backbone and backbone.name == recipe.backbone)
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "leading": entry.prompts,
        "name": entry.name,
    }
    build_by_backend = functools.partial(
        look_up("backend", choice.backend, BACKENDS),
        recipe,
        folder=home_folder() / "cache" / "graphs",
        rows=rows,
        calibration=calibration,
        backbone=next(shareable, None),
        tensors=entry.tensors,
        **options,
    )
    encoder: Encoder | None = None
    if choice.backend == "torch":
        encoder = static_encoder(recipe, entry.tensors, on_torch=build_by_backend, **options)
    encoder = encoder or build_by_backend()
    _note_default(choice, entry)
    return encoder


def open_torch_encoder(model: Model, **options: Any) -> "TorchEncoder":
    """Return a model's encoder with all its parts, on torch; see ``open_encoder``."""
    encoder = open_encoder(model, **options)
    on_torch: TorchEncoder = encoder.on_torch() if isinstance(encoder, StaticEncoder) else encoder  # type: ignore[assignment]
    return on_torch


def _note_default(choice: ModelChoice, entry: Entry) -> None:
    """Note which model is used if the user chose none."""
    if choice.model is not None or choice.changes.keys() == {"backbone"}:
        return
    plain = f"{entry.recipe.backbone}, {entry.recipe.prompt} {entry.recipe.pooling}"
    default = f"the default model {with_language(DEFAULT_MODEL)}"
    if not choice.changes:
        note(
            f"using {default if entry.name == DEFAULT_MODEL else plain}; choose another by its name"
        )
    elif not entry.tensors:  # the plain recipe took the place of the default entry
        note(f"using {plain}, not {default}")


def list_models() -> list[Entry]:
    """Return all shipped and saved models, without their tensors; a damaged one is left out with a
    note.

    Example:
        >>> import promptcli as pc
        >>> pc.list_models()[0].name
        'mini'
    """
    registry = open_registry()
    models = []
    for name in registry.names():
        try:
            models.append(registry.load_manifest(name))
        except CheckFailedError as error:
            note(str(error))
    return models


def register(encoder: Model, name: str, *, force: bool = False, **about: object) -> None:
    """Save an encoder in the registry; ``load(name)`` and ``--model name`` open it from then on.

    Args:
        encoder: An encoder, or what ``load`` takes.
        name: Up to 100 of ``A-Z a-z 0-9 . _ -``.
        force: Replace a model of that name.
        about: Further provenance of the encoder.
    """
    entry = entry_from_encoder(open_encoder(encoder), name)
    open_registry().save(
        dataclasses.replace(entry, provenance={**entry.provenance, **about}), force=force
    )


def entry_from_encoder(encoder: Encoder, name: str = "encoder") -> Entry:
    """Return an encoder as an entry of that name."""
    about = {**encoder.provenance, "width": encoder.width}
    return Entry(name, encoder.recipe, encoder.tensors(), about, prompts=encoder.leading)
