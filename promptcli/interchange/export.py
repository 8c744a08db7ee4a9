"""From an encoder to a folder that another program loads: the table of targets, one file each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promptcli
from promptcli.encoder.encoder import Encoder, build_encoder
from promptcli.errors import UsageError, unknown
from promptcli.interchange.merged import export_merged
from promptcli.interchange.model2vec import export_model2vec
from promptcli.interchange.onnx import export_onnx, export_openvino
from promptcli.interchange.peft import export_peft
from promptcli.interchange.sentence_transformers import export_sentence_transformers
from promptcli.interchange.target import MARKER, Choices, Source, Target
from promptcli.registry.entries import Entry
from promptcli.storage.documents import to_json
from promptcli.storage.files import atomic_folder

TARGETS: dict[str, Target] = {
    "sentence-transformers": export_sentence_transformers,
    "onnx": export_onnx,
    "openvino": export_openvino,
    "model2vec": export_model2vec,
    "peft": export_peft,
    "merged": export_merged,
}


@dataclass(frozen=True)
class Exported:
    """A folder that was made."""

    target: str
    folder: Path
    bytes: int  #: of all its files
    load: str  #: Python that loads it
    tool: str | None  #: what its vectors were compared by
    cosine: float | None  #: lowest of the probes to the encoder's own
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**vars(self), "folder": str(self.folder), "notes": list(self.notes)}


def export(
    entry: Entry,
    target: str,
    folder: Path,
    *,
    choices: Choices = Choices(),  # noqa: B008
    offline: bool = False,
    force: bool = False,
    announce: Callable[[str], None] = lambda message: None,
) -> Exported:
    """Write an encoder as another program reads it, whole or not at all.

    Args:
        entry: What is exported.
        target: A name of ``TARGETS``.
        folder: To be made.
        choices: Of the target.
        offline: Never use the network.
        force: Replace an export that is there.
        announce: Called with one line before the network is used.

    Raises:
        UsageError: No such target, something is in the way, or the target cannot hold the encoder; with the reason.
        NotFoundError: The backbone is gone.
        CheckFailedError: The other program's vectors are not the encoder's, or the backbone is another one than the
            entry was made with; nothing is written.
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    with atomic_folder(folder, marker=MARKER, force=force) as temporary:
        encoder = open_whole(entry, offline=offline, announce=announce)
        written = TARGETS[target](Source(entry, encoder, choices), temporary)
        about = {"promptcli": promptcli.__version__, "target": target, "fingerprint": encoder.fingerprint}
        (temporary / MARKER).write_text(to_json({**about, "recipe": encoder.recipe.to_dict()}), encoding="utf-8")
        size = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
    load = written.load.replace("FOLDER", str(folder))
    return Exported(target, folder, size, load, written.tool, written.cosine, written.notes)


def open_whole(
    entry: Entry, *, offline: bool = False, announce: Callable[[str], None] = lambda message: None
) -> Encoder:
    """Return an entry's encoder in float32 on the processor, its backbone the one it was made with.

    Raises:
        NotFoundError: The backbone is gone.
        UsageError: It has other weights than the entry was made with.
    """
    encoder = build_encoder(
        entry.recipe, device="cpu", dtype="float32", offline=offline, tensors=entry.tensors, announce=announce
    )
    made_with, found = entry.provenance.get("weights_sha256"), encoder.backbone.provenance.weights_sha256
    if entry.tensors and made_with and made_with != found:
        raise UsageError(
            f"model {entry.name!r} was made with other weights of {entry.recipe.backbone!r} (sha256"
            f" {str(made_with)[:12]}, now {found[:12]}); put those back, or make the model anew"
        )
    return encoder
