"""Encoders: loaded, compared, fitted and saved."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from promptcli.data.sources import development_task, fitting_sentences
from promptcli.encoder.embedder import check_texts
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError
from promptcli.fitting import fits
from promptcli.interchange.backends import build_on
from promptcli.notes import offline as without_network
from promptcli.recipe import Recipe
from promptcli.registry.entries import Card, Entry
from promptcli.registry.registry import Registry, home
from promptcli.registry.resolving import changed, named
from promptcli.settings import BARE

#: Sentences: a list, or what names them: ``demo``, a task, a file.
Sentences = str | Path | Sequence[str]


def open_registry() -> Registry:
    """Return the registry of $PROMPTCLI_HOME, else of the platform's data folder."""
    return Registry(home(os.environ))


def load(
    choice: str | Path | Recipe = "mini",
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
            model's id on the hub. What a folder or repository says of itself is believed: an encoder of ours, or a
            sentence-transformers model with its pooling, layers and prompts; a plain language model is averaged over
            first and last layer, a causal one read at its last token, and that is said.
        backbone: In place of the recipe's.
        prompt: In place of the recipe's.
        pooling: In place of the recipe's.
        transforms: In place of the recipe's.
        denoise: In place of the recipe's.
        max_length: In place of the recipe's, in tokens.
        revision: Of a model on the hub.
        device: ``auto``, ``cpu``, ``cuda``, ...
        dtype: ``stored``: float32, and for causal models that of their files where the device computes in it;
            ``float32``, ``bfloat16``, ``float16``, or ``auto``: bfloat16 where the hardware computes in it.
        offline: Never use the network.
        backend: What computes it on a processor: ``torch``, ``openvino``, ``onnx``, ``onnx-int8``, or ``auto``.
        rows: How many will be encoded, for ``auto``.

    Raises:
        NotFoundError: Nothing of that name is known; with what there is.
        UsageError: Its parts do not fit together, or the backend does not compute it.

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
    entry = changed(entry_of(choice, offline=offline), changes)
    options: dict[str, Any] = {"device": device, "dtype": dtype, "offline": offline}
    options |= {"tensors": entry.tensors, "prompts": entry.prompts}
    graphs = open_registry().graphs_folder
    return build_on(backend, entry.recipe, folder=graphs, rows=rows, **options)


def entry_of(choice: str | Path | Recipe, *, offline: bool = False) -> Entry:
    """Return the entry of a choice; a nameless one where it can only be a backbone."""
    if isinstance(choice, Recipe):
        return Entry("recipe", choice)
    return named(open_registry(), str(choice), offline=offline)


def similarity(first: str | Sequence[str], second: str | Sequence[str], encoder: Encoder | str = "mini") -> Any:
    """Return the cosine of two sentences, -1 to 1; of two lists of n, the n cosines of their pairs.

    Example:
        >>> import promptcli as pc
        >>> bool(pc.similarity("A dog runs.", "A puppy is running.") > pc.similarity("A dog runs.", "Prices fell."))
        True
    """
    left, right = check_texts(first), check_texts(second)
    if len(left) != len(right):
        raise UsageError(f"{len(left)} and {len(right)} sentences make no pairs; give equally many")
    vectors = _encoder(encoder).encode([*left, *right], normalize_embeddings=True)
    cosines = np.sum(vectors[: len(left)] * vectors[len(left) :], axis=1)
    return float(cosines[0]) if isinstance(first, str) else cosines


def fit(
    recipe: str | Recipe,
    on: Sentences = BARE.corpus,
    *,
    select: str | Path | None = None,
    name: str | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    offline: bool = False,
    force: bool = False,
) -> Encoder:
    """Return the encoder of a recipe with TF-IDF weights or a transform fitted on sentences.

    Args:
        recipe: A named one (``whitening``, ``flow``, ``first-last-tfidf``) or a ``Recipe``.
        on: Sentences, or what names them: ``demo``, a task, a file.
        select: Development pairs by which the numbers of the last transform are chosen, which then has none:
            ``STS-B:dev``, ``demo:dev``, or a file of graded pairs.
        name: Save it in the registry under this name.
        data_dir: SentEval folder of a task.
        device: ``auto``, ``cpu``, ``cuda``, ...
        offline: Never use the network.
        force: Replace an entry of that name.

    Raises:
        UsageError: The recipe has nothing to fit, there are too few sentences, or a test set is to choose.

    Example:
        >>> import promptcli as pc
        >>> pc.fit("first-last-tfidf", on=["A cat sleeps.", "A dog runs."]).recipe.pooling
        'first-last/tfidf'
    """
    if name is not None:
        open_registry().check_free(name, force=force)
    folder = None if data_dir is None else Path(data_dir)
    with without_network(offline):
        sentences = check_texts(on) if not isinstance(on, str | Path) else fitting_sentences(str(on), folder)
        pairs = None if select is None else development_task(str(select), folder)
    chosen = entry_of(recipe).recipe
    made = fits.fit(chosen, sentences, choose_by=pairs, device=device, dtype="stored", offline=offline)
    source = str(on) if isinstance(on, str | Path) else "a list"
    if name is not None:
        fitted_on = {"source": source, "sentences": made.sentences}
        register(made.encoder, name, force=force, fitted_on=fitted_on, **made.selected_on)
    return made.encoder


def models() -> list[Card]:
    """Return what is known of every model that ``load`` finds by name, shipped and saved.

    Example:
        >>> import promptcli as pc
        >>> pc.models()[0].name
        'mini'
    """
    registry = open_registry()
    return [registry.card(name) for name in registry.names()]


def _encoder(encoder: Encoder | str) -> Encoder:
    return encoder if isinstance(encoder, Encoder) else load(encoder)


def register(encoder: Encoder, name: str, *, force: bool = False, **about: Any) -> None:
    """Keep an encoder in the registry; ``about`` says more of where it came from."""
    entry = entry_from(encoder, name)
    open_registry().save(dataclasses.replace(entry, provenance={**entry.provenance, **about}), force=force)


def entry_from(encoder: Encoder, name: str = "encoder") -> Entry:
    """Return an encoder as an entry of that name."""
    about = {**encoder.provenance, "width": encoder.width}
    return Entry(name, encoder.recipe, encoder.tensors(), about, prompts=encoder.texts)


def _save(encoder: Encoder, folder: str | Path, *, force: bool = False) -> None:
    from promptcli.interchange.saving import save_folder

    save_folder(entry_from(encoder, Path(folder).name), encoder, Path(folder), force=force)


def _push(encoder: Encoder, repo: str, **options: Any) -> Any:
    from promptcli.interchange import hub

    return hub.push(hub.client(), entry_from(encoder), repo, **options)


Encoder.face = SimpleNamespace(load=load, register=register, save=_save, push=_push)
