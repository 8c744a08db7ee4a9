"""What other programs read and what others made: export, import, and the Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path

from promptcli.models import export as exporting
from promptcli.models import hub, importing
from promptcli.models.loading import Model, entry_of, open_registry
from promptcli.models.target import Choices
from promptcli.notes import obeys_offline


@obeys_offline
def export(
    encoder: Model,
    folder: str | Path,
    to: str = "sentence-transformers",
    *,
    base: str | None = None,
    int8: bool = False,
    offline: bool = False,
    force: bool = False,
) -> exporting.Exported:
    """Write an encoder as another program loads it, in float32, whole or not at all.

    Args:
        encoder: An encoder, or what ``load`` takes.
        folder: To be made.
        to: ``sentence-transformers``, ``onnx``, ``openvino``, ``model2vec``, ``peft`` or ``merged``.
        base: peft: the hub id, with ``@revision``, to write down as the base.
        int8: onnx: 8-bit weights, too.
        offline: Never use the network.
        force: Replace an export that is there.

    Raises:
        UsageError: No such target, or it cannot hold the encoder exactly; with the reason.
        CheckFailedError: The other program's vectors are not the encoder's.
    """
    choices = Choices(base, int8)
    return exporting.export(entry_of(encoder), to, Path(folder), choices=choices, force=force)


@obeys_offline
def import_model(
    source: str | Path,
    name: str,
    *,
    convert: bool = False,
    offline: bool = False,
    force: bool = False,
    **changes: str | int | bool | Sequence[str] | None,
) -> importing.Imported:
    """Save in the registry what others trained, and return what it was taken for; ``load(name)`` then opens it.

    Args:
        source: A folder, or a hub id with ``@revision`` where it matters.
        name: Of the entry.
        convert: Pickled weights may be converted, by a process that reads nothing but tensors.
        offline: Never use the network.
        force: Replace an entry of that name.
        changes: Fields of the recipe that stand in for the recognised ones: ``pooling="last/avg"``.

    Raises:
        NotFoundError: No such folder or hub id.
        UsageError: It is nothing that is read.
    """
    return importing.import_model(
        open_registry(),
        str(source),
        name,
        changes=changes,
        convert=convert,
        force=force,
    )


def push(encoder: Model, repo: str, *, private: bool = False, revision: str | None = None) -> hub.Pushed:
    """Send a model to ``OWNER/NAME`` of the Hugging Face hub, in one commit or, where it is there already, none.

    A backbone of the hub is named, any other is sent. The token is that of ``hf auth login`` or HF_TOKEN.

    Raises:
        UsageError: No token, or one that may not write there.
        NotFoundError: The hub cannot be reached.
    """
    return hub.push(hub.client(), entry_of(encoder), repo, private=private, revision=revision)


def pull(repo: str, name: str, *, revision: str | None = None, force: bool = False) -> hub.Pulled:
    """Save in the registry, under a name, what ``push`` sent: the same encoder, by its fingerprint; ``load`` opens it.

    Raises:
        NotFoundError: No such repository or revision, or the hub cannot be reached.
        CheckFailedError: It is not what was pushed; nothing is saved.
    """
    return hub.pull(hub.client(), open_registry(), repo, name, revision=revision, force=force)
