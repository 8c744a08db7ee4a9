"""Encoders by name: load, compare, list and save them."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone
from promptcli.data.given import check_texts
from promptcli.encoder.encoder import Encoder, tuned_weights
from promptcli.errors import UsageError
from promptcli.models.backends import build_on
from promptcli.models.entries import Entry
from promptcli.models.registry import Card, Registry, home
from promptcli.models.resolving import DEFAULT, changed, is_recipe, named, resolve
from promptcli.notes import note, obeys_offline
from promptcli.recipe import Choice, Recipe

#: An encoder, or what ``load`` takes.
Model = Encoder | Entry | Recipe | Choice | str | Path
#: A list of sentences, or a name for them: ``demo``, a task, a file.
Sentences = str | Path | Sequence[str]


def home_folder() -> Path:
    """Return the program's data folder: $PROMPTCLI_HOME, else the platform's."""
    return home(os.environ)


def open_registry() -> Registry:
    """Return the registry of $PROMPTCLI_HOME, else of the platform's data folder."""
    return Registry(home_folder())


@obeys_offline
def load(
    choice: str | Path | Recipe | Entry = "mini",
    *,
    backbone: str | None = None,
    prompt: str | None = None,
    pooling: str | None = None,
    transforms: Sequence[str] | None = None,
    denoise: str | None = None,
    max_length: int | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "stored",
    offline: bool = False,
    backend: str = "torch",
    rows: int | None = None,
) -> Encoder:
    """Return an encoder.

    Args:
        choice: A model of the registry or its alias, a named recipe, a ``Recipe`` or a file of one, a folder, or a
            hub id. An encoder of promptcli or sentence-transformers keeps its pooling, layers and prompts; of a plain
            language model the first and last layer are averaged, a causal one is read at its last token, with a note.
        backbone: Replaces the recipe's.
        prompt: Replaces the recipe's.
        pooling: Replaces the recipe's.
        transforms: Replace the recipe's.
        denoise: Replaces the recipe's.
        max_length: Replaces the recipe's, in tokens.
        revision: Branch, tag or commit of a model on the hub.
        device: ``auto``, ``cpu``, ``cuda``, ...
        dtype: ``stored`` (float32; for causal models that of their files if the device supports it), ``float32``,
            ``bfloat16``, ``float16``, or ``auto`` (bfloat16 if the hardware is fast in it).
        offline: Never use the network.
        backend: Runtime on a CPU: ``torch``, ``openvino``, ``onnx``, ``onnx-int8``, or ``auto``.
        rows: Number of sentences that will be encoded, for ``auto``.

    Raises:
        NotFoundError: The name is unknown.
        UsageError: The parts do not fit together, or the backend does not support them.

    Example:
        >>> import promptcli as pc
        >>> pc.load("mini").encode(["A cat sleeps."]).shape
        (1, 256)
    """
    given = {"backbone": backbone, "prompt": prompt, "pooling": pooling, "denoise": denoise, "max_length": max_length}
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    if transforms is not None:
        changes["transforms"] = tuple(transforms)
    if revision is not None:
        choice = f"{choice}@{revision}"
    entry = changed(entry_of(choice), changes)
    return open_model(entry, device=device, dtype=dtype, backend=backend, rows=rows)


def entry_of(model: Model) -> Entry:
    """Return a model as an entry."""
    if isinstance(model, Entry):
        return model
    if isinstance(model, Encoder):
        return entry_from(model)
    if isinstance(model, Recipe):
        return Entry("recipe", model)
    if isinstance(model, Choice):
        return resolve(open_registry(), model)
    if not isinstance(model, str | Path):
        raise UsageError(f"{model!r} is not a model; give an encoder, a recipe, or a name, e.g. 'mini'")
    return named(open_registry(), str(model))


def backbone_model(model: Model) -> Model:
    """Return a model for work on its backbone: an unknown name is taken as a backbone with the plain recipe."""
    name = model.model if isinstance(model, Choice) else model
    if not isinstance(name, str | Path):
        return model
    registry, name = open_registry(), str(name)
    if registry.knows(name) or is_recipe(registry, name):
        return model
    if isinstance(model, Choice):
        return dataclasses.replace(model, model=None, changes={**model.changes, "backbone": name})
    return Recipe(backbone=name)


def open_model(
    model: Model,
    *,
    device: str = "auto",
    dtype: str = "stored",
    backend: str = "torch",
    rows: int | None = None,
    backbone: Backbone | None = None,
) -> Encoder:
    """Return a model's encoder; ``backbone``: a loaded one to share. See ``load``."""
    if isinstance(model, Encoder):
        return model
    if isinstance(model, Choice):
        device = model.device if device == "auto" else device
        dtype = model.dtype or dtype
        backend = model.backend if backend == "torch" else backend
    entry = entry_of(model)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "backbone": backbone}
    options |= {"tensors": entry.tensors, "prompts": entry.prompts}
    encoder = build_on(backend, entry.recipe, folder=open_registry().graphs_folder, rows=rows, **options)
    if isinstance(model, Choice) and model.model is None and model.changes.keys() != {"backbone"}:
        plain = f"{entry.recipe.backbone}, {entry.recipe.prompt} {entry.recipe.pooling}"
        if not model.changes:
            note(f"assumed: {DEFAULT if entry.name == DEFAULT else plain}; another: `model` NAME")
        elif not entry.tensors:  # the changes leave nothing of the default entry
            note(f"assumed: {plain}, not {DEFAULT}; another: `model` NAME")
    return encoder


def open_models(models: Sequence[Model], *, dtype: str = "stored") -> list[Encoder]:
    """Return the encoders of several models; those on one backbone share it unless they tuned it."""
    encoders: list[Encoder] = []
    for model in models:
        entry = model if isinstance(model, Encoder) else entry_of(model)
        backbone = shared_backbone(encoders, entry.recipe.backbone)
        encoders.append(open_model(model if isinstance(model, Choice) else entry, dtype=dtype, backbone=backbone))
    return encoders


def shared_backbone(encoders: Iterable[Encoder], name: str) -> Backbone | None:
    """Return the backbone of that name of an encoder that did not tune it."""
    peers = (encoder for encoder in encoders if encoder.backbone.name == name)
    return next((peer.backbone for peer in peers if not tuned_weights(peer.tensors())), None)


@overload  # a text is a sequence of texts, too
def similarity(first: str, second: str, encoder: Encoder | str = ...) -> float: ...  # type: ignore[overload-overlap]
@overload
def similarity(first: Sequence[str], second: Sequence[str], encoder: Encoder | str = ...) -> NDArray[np.float32]: ...
def similarity(
    first: str | Sequence[str], second: str | Sequence[str], encoder: Encoder | str = "mini"
) -> float | NDArray[np.float32]:
    """Return the cosine of two sentences, -1 to 1; of two lists of n, the n cosines of their pairs.

    Example:
        >>> import promptcli as pc
        >>> bool(pc.similarity("A dog runs.", "A puppy is running.") > pc.similarity("A dog runs.", "Prices fell."))
        True
    """
    left, right = check_texts(first), check_texts(second)
    if len(left) != len(right):
        raise UsageError(f"{len(left)} and {len(right)} sentences do not make pairs; give two lists of one length")
    vectors = open_model(encoder).encode([*left, *right], normalize_embeddings=True)
    cosines: NDArray[np.float32] = np.sum(vectors[: len(left)] * vectors[len(left) :], axis=1)
    return float(cosines[0]) if isinstance(first, str) else cosines


def list_models() -> list[Card]:
    """Return the cards of all shipped and saved models.

    Example:
        >>> import promptcli as pc
        >>> pc.list_models()[0].name
        'mini'
    """
    registry = open_registry()
    return [registry.card(name) for name in registry.names()]


def save(encoder: Encoder, folder: str | Path, *, force: bool = False) -> None:
    """Write an encoder into a folder that ``load`` and sentence-transformers open, completely or not at all.

    Args:
        encoder: Any encoder.
        folder: The folder to make.
        force: Replace an encoder in it.

    Raises:
        UsageError: The folder exists.
    """
    from promptcli.models.saving import save_folder

    save_folder(entry_from(encoder, Path(folder).name), encoder, Path(folder), force=force)


def register(encoder: Encoder, name: str, *, force: bool = False, **about: object) -> None:
    """Save an encoder in the registry: from then on ``load(name)`` and ``--model name`` open it.

    Args:
        encoder: Any encoder.
        name: Up to 100 of ``A-Z a-z 0-9 . _ -``.
        force: Replace a model of that name.
        about: More about its origin, for its provenance.
    """
    entry = entry_from(encoder, name)
    open_registry().save(dataclasses.replace(entry, provenance={**entry.provenance, **about}), force=force)


def entry_from(encoder: Encoder, name: str = "encoder") -> Entry:
    """Return an encoder as an entry of that name."""
    about = {**encoder.provenance, "width": encoder.width}
    return Entry(name, encoder.recipe, encoder.tensors(), about, prompts=encoder.texts)
