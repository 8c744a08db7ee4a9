"""From options to encoders: the one place where the entrance reads the environment and sets up the run."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.cli.console import note
from promptcli.cli.options import ModelChoice, Runtime
from promptcli.errors import UsageError
from promptcli.settings import BARE, PAPER, expand_user, read_settings

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.registry.registry import Entry, Registry


def configure_libraries(runtime: Runtime) -> None:
    """Set what libraries read at import: quiet, and no network where ``--offline`` is given."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if runtime.quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if runtime.offline:
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    if runtime.threads is not None:
        from promptcli.backbones.devices import set_threads

        os.environ["RAYON_NUM_THREADS"] = str(runtime.threads)
        set_threads(runtime.threads)


def open_registry() -> "Registry":
    """Return the registry of $PROMPTCLI_HOME, else of the platform's data folder."""
    from promptcli.registry.registry import Registry, home

    return Registry(home(os.environ))


def open_encoder(
    choice: ModelChoice,
    runtime: Runtime,
    *,
    default_dtype: str = "stored",
    backend: str = "torch",
    rows: int | None = None,
) -> "Encoder":
    """Return the encoder that the options name.

    Args:
        choice: Entry or recipe, and changes.
        runtime: Device, precision, threads, network.
        default_dtype: What ``--dtype auto`` means for this command.
        backend: What computes it.
        rows: How many will be encoded, where that is known, for the backend ``auto``.
    """
    configure_libraries(runtime)
    entry = chosen_entry(choice, offline=runtime.offline)
    encoder = open_entries([entry], runtime, default_dtype=default_dtype, backend=backend, rows=rows)[0]
    if choice.model is None and choice.recipe is None and not choice.changes():
        papers = "" if choice.paper else f"; the papers' setting: --paper ({PAPER.backbone})"
        shown = f"{entry.recipe.backbone}, {entry.recipe.prompt} {entry.recipe.pooling}"
        note(f"assumed: {shown}{papers}")
    return encoder


def chosen_entry(choice: ModelChoice, *, offline: bool = False) -> "Entry":
    """Return the entry that the options name."""
    from promptcli.registry.resolving import resolve

    recipe = choice.recipe
    if choice.paper and choice.model is None and recipe is None and not choice.changes().keys() & {"prompt", "pooling"}:
        recipe = PAPER.recipe
    return resolve(
        open_registry(),
        model=choice.model,
        recipe=recipe,
        changes=choice.changes(),
        backbone=default_backbone(paper=choice.paper),
        offline=offline,
    )


def open_backbone(name: str, runtime: Runtime, *, dtype: str | None = None, words: bool = False) -> "Backbone":
    """Load a backbone without any recipe.

    Args:
        name: A shipped name, a folder or a hub id.
        runtime: Device, precision, network.
        dtype: Of the weights whatever the runtime says; else its own, ``auto`` meaning ``stored``.
        words: Word vectors will do.
    """
    from promptcli.backbones.devices import TF32, choose_device, weights_dtype
    from promptcli.backbones.loading import load_backbone

    device = choose_device(runtime.device)
    wanted = dtype or ("stored" if runtime.dtype == "auto" else runtime.dtype)
    backbone = load_backbone(
        name, device=device, dtype=weights_dtype(wanted, device), offline=runtime.offline, words=words
    )
    backbone.tf32 = wanted == TF32
    return backbone


def default_backbone(*, paper: bool) -> str:
    """Return the backbone where none is named: the papers', or what the user's settings say."""
    return PAPER.backbone if paper else str(read_settings(os.environ)["backbone"].value)


def default_development(data_dir: Path | None, *, paper: bool = False) -> str:
    """Return the development task where none is named: the papers' where their data can be, else our own pairs."""
    return PAPER.development if paper or data_dir is not None else BARE.development


def open_development_set(on: str | None, data_dir: Path | None, runtime: Runtime, *, paper: bool = False) -> "STSTask":
    """Return the pairs that a search ranks by, and say what was assumed."""
    from promptcli.data.sources import development_task

    folder = data_folder(data_dir)
    named = on or default_development(folder, paper=paper)
    task = development_task(named, folder)
    if on is None and not paper:
        note(
            f"assumed: --on {task.label}, {len(task.pairs()):,} pairs; the papers' setting:"
            f" --backbone {PAPER.backbone} --data-dir FOLDER --on {PAPER.development}"
        )
    return task


def data_folder(given: Path | None) -> Path | None:
    """Return the SentEval folder: the one given, else the settings', else none."""
    stored = read_settings(os.environ)["data_dir"].value
    return given or (expand_user(stored) if stored else None)


def sentences_of(source: str, data_dir: Path | None, runtime: Runtime, *, text_field: str | None = None) -> list[str]:
    """Return the sentences to fit or count on: of a file, a task or ``demo``."""
    from promptcli.data.sources import fitting_sentences

    return fitting_sentences(source, data_folder(data_dir), text_field=text_field)


def open_entries(
    entries: "Sequence[Entry]",
    runtime: Runtime,
    *,
    default_dtype: str = "stored",
    backend: str = "torch",
    rows: int | None = None,
    refused: "Callable[[Entry, UsageError], None] | None" = None,
) -> "list[Encoder]":
    """Return one encoder per entry; entries of the same backbone share it.

    Args:
        entries: What to open.
        runtime: Device, precision, network.
        default_dtype: What ``--dtype auto`` means for this command.
        backend: What computes them.
        rows: How many will be encoded, where that is known, for the backend ``auto``.
        refused: Called with each entry that cannot be made on its backbone, which is then left out; without it that is
            an error.
    """
    build = _builder(backend, rows)
    dtype = default_dtype if runtime.dtype == "auto" else runtime.dtype
    encoders: list[Encoder] = []
    for entry in entries:
        shared = [made.backbone for made in encoders if made.backbone.name == entry.recipe.backbone]
        try:
            encoder = build(
                entry.recipe,
                device=runtime.device,
                dtype=dtype,
                offline=runtime.offline,
                tensors=entry.tensors,
                prompts=entry.prompts,
                backbone=shared[0] if shared else None,
            )
        except UsageError as error:
            if refused is None:
                raise
            refused(entry, error)
        else:
            encoders.append(encoder)
    return encoders


def _builder(backend: str, rows: int | None) -> "Callable[..., Encoder]":
    if backend == "torch":
        from promptcli.encoder.encoder import build_encoder

        return build_encoder
    from promptcli.interchange.backends import build_on

    return functools.partial(build_on, backend, folder=open_registry().graphs_folder, rows=rows)
