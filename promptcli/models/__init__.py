"""Models as folders: save, export, import, and the Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.data.given import check_arguments
from promptcli.notes import without_network

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import SentenceEncoder
    from promptcli.models.entries import Entry
    from promptcli.models.hub import Pushed
    from promptcli.models.loading import Model
    from promptcli.models.sentence_transformers_format import Exported


@check_arguments
def save(encoder: "SentenceEncoder", folder: str | Path, *, force: bool = False) -> None:
    """Write an encoder into a folder that ``load`` and sentence-transformers open, completely or
    not at all.

    Args:
        encoder: Any encoder.
        folder: The folder to make.
        force: Replace an encoder in it.

    Raises:
        UsageError: The folder exists.
    """
    from promptcli.models.card import write_card
    from promptcli.models.entries import MANIFEST
    from promptcli.models.loading import entry_from, open_model
    from promptcli.models.saving import save_encoder
    from promptcli.storage.folders import atomic_folder

    target = Path(folder)
    entry = entry_from(encoder, target.name)
    with atomic_folder(target, marker=MANIFEST, force=force) as temporary:
        save_encoder(entry, open_model(encoder), temporary)
        use = f'import promptcli as pc\n\nvectors = pc.load("{target.name}").encode(sentences)'
        write_card(temporary, entry, encoder.recipe, use=use)


@check_arguments
def export(
    encoder: "Model",
    folder: str | Path,
    to: str = "sentence-transformers",
    *,
    base: str | None = None,
    int8: bool = False,
    offline: bool = False,
    force: bool = False,
) -> "Exported":
    """Write an encoder as another program loads it, in float32, and compare that program's vectors
    with its own.

    The folder is written only if it holds the encoder exactly: every cosine is at least 0.99999.

    Args:
        encoder: An encoder, or what ``load`` takes.
        folder: Folder to write.
        to: ``sentence-transformers``; ``onnx`` or ``openvino``: the complete encoder as one graph;
            ``model2vec``: a static recipe as a table of words; ``peft``: a deep prefix or a LoRA;
            ``merged``: a tuned backbone as a plain checkpoint.
        base: For peft: the hub id to record as the base, e.g. OWNER/NAME@REVISION.
        int8: For onnx: also write 8-bit weights, and measure what they lose.
        offline: Never use the network.
        force: Overwrite an existing export.

    Raises:
        UsageError: No such target, or it cannot hold the encoder exactly; with the reason.
        CheckFailedError: The other program's vectors are not the encoder's.
    """
    from promptcli.models import exporting
    from promptcli.models.loading import entry_of

    with without_network(offline):
        return exporting.export(
            entry_of(encoder), to, Path(folder), base=base, int8=int8, force=force
        )


@check_arguments
def import_model(
    source: str | Path,
    name: str,
    *,
    convert: bool = False,
    offline: bool = False,
    force: bool = False,
    **changes: str | int | bool | Sequence[str] | None,
) -> "Entry":
    """Import a model trained elsewhere into the registry; its recipe is recognised from its files.

    Supported: checkpoints of SimCSE, PromptBERT and PromCSE, models of sentence-transformers and
    model2vec, peft's prefix tuning and LoRA, plain language models.

    Args:
        source: A folder, or a hub id, with @REVISION after it.
        name: Name of the model in the registry.
        convert: Convert pickled weights to safetensors, by a process that reads only tensors.
        offline: Never use the network.
        force: Replace a model of that name.
        changes: Fields of the recipe that replace the recognised ones, e.g. ``pooling="last/avg"``.

    Returns:
        The saved entry; the kind of the model is in its ``provenance``, under ``imported``.

    Raises:
        NotFoundError: No such folder or hub id.
        UsageError: The model is not supported.
    """
    from promptcli.models import importing
    from promptcli.models.loading import open_registry

    with without_network(offline):
        return importing.import_model(
            open_registry(), str(source), name, changes=changes, convert=convert, force=force
        )


@check_arguments
def push(
    encoder: "Model", repo: str, *, private: bool = False, revision: str | None = None
) -> "Pushed":
    """Send a model to the Hugging Face hub in one commit: card, recipe, learned tensors.

    A backbone from the hub is named by id and revision; any other is sent as well. Sending the same
    model again makes no new commit; a changed one replaces the files of the last, and other files
    in the repository stay. The token is that of ``hf auth login`` or $HF_TOKEN.

    Args:
        encoder: Name of a model or recipe, or a folder.
        repo: Repository of the hub.
        private: Create the repository as private.
        revision: Branch, created if it is missing. Default: the main branch.

    Raises:
        UsageError: No token, or one that may not write there.
        NotFoundError: The hub cannot be reached.
    """
    from promptcli.models import hub
    from promptcli.models.loading import entry_of

    return hub.push(hub.client(), entry_of(encoder), repo, private=private, revision=revision)


@check_arguments
def pull(repo: str, name: str, *, revision: str | None = None, force: bool = False) -> "Entry":
    """Save a model that was pushed to the hub: the same encoder, by its fingerprint.

    No code in it is run.

    Args:
        repo: Repository of the hub.
        name: Name of the model to save.
        revision: Branch, tag or commit. Default: the main branch.
        force: Overwrite an existing model of that name.

    Returns:
        The saved entry; the commit is in its ``provenance``, under ``pulled``.

    Raises:
        NotFoundError: No such repository or revision, or the hub cannot be reached.
        CheckFailedError: It is not what was pushed; nothing is saved.
    """
    from promptcli.models import hub
    from promptcli.models.loading import open_registry

    return hub.pull(hub.client(), open_registry(), repo, name, revision=revision, force=force)
