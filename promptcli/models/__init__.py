"""Models as folders: save, export, import, and the Hugging Face hub."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.data.given import check_arguments
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import without_network

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.entries import Entry
    from promptcli.models.hub import Pushed
    from promptcli.models.loading import Model
    from promptcli.models.sentence_transformers_format import Exported


@check_arguments
def save(encoder: "Encoder", folder: str | Path, *, force: bool = False) -> None:
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
    from promptcli.models.entries import MODEL_MANIFEST
    from promptcli.models.loading import entry_from, open_model
    from promptcli.models.saving import save_encoder
    from promptcli.storage.folders import atomic_folder

    target = Path(folder)
    entry = entry_from(encoder, target.name)
    with atomic_folder(target, marker=MODEL_MANIFEST, force=force) as temporary:
        save_encoder(entry, open_model(encoder), temporary)
        use = f'import promptcli as pc\n\nvectors = pc.load("{target.name}").encode(sentences)'
        write_card(temporary, entry, encoder.recipe, use=use)


@dataclass(frozen=True)
class ExportJob(Job["Exported"]):
    """Write an encoder as another program loads it, in float32, and compare that program's vectors
    with its own.

    The folder is written only if it holds the encoder exactly: every cosine is at least 0.99999.

    Raises:
        UsageError: No such target, or it cannot hold the encoder exactly; with the reason.
        CheckFailedError: The other program's vectors are not the encoder's.
    """

    encoder: "Model" = argument("An encoder, or what `load` takes.", kind="model")
    folder: str | Path = option(..., "Folder to write.", names="output o")
    to: str = option(
        "sentence-transformers",
        "`sentence-transformers`; `onnx` or `openvino`: the complete encoder as one graph;"
        " `model2vec`: a static recipe as a table of words; `peft`: a deep prefix or a LoRA;"
        " `merged`: a tuned backbone as a plain checkpoint.",
        metavar="TARGET",
        required=True,
    )
    _: KW_ONLY
    base: str | None = option(
        None, "For peft: the hub id to record as the base, e.g. OWNER/NAME@REVISION."
    )
    int8: bool = option(False, "For onnx: also write 8-bit weights, and measure what they lose.")
    offline: bool = option(False, "Never use the network.", hidden=True)
    force: bool = option(False, "Overwrite an existing export.")

    def run(self) -> "Exported":
        from promptcli.models import exporting
        from promptcli.models.loading import entry_of

        with without_network(self.offline):
            return exporting.export(
                entry_of(self.encoder),
                self.to,
                Path(self.folder),
                base=self.base,
                int8=self.int8,
                force=self.force,
            )


export = function_of(ExportJob, "export")


@dataclass(frozen=True)
class ImportJob(Job["Entry"]):
    """Import a model trained elsewhere into the registry; its recipe is recognised from its files.

    Supported: checkpoints of SimCSE, PromptBERT and PromCSE, models of sentence-transformers and
    model2vec, peft's prefix tuning and LoRA, plain language models.

    Returns:
        The saved entry; the kind of the model is in its ``provenance``, under ``imported``.

    Raises:
        NotFoundError: No such folder or hub id.
        UsageError: The model is not supported.
    """

    further = "changes"

    source: str | Path = argument("A folder, or a hub id, with @REVISION after it.", typed=str)
    name: str = option(..., "Name of the model in the registry.")
    _: KW_ONLY
    convert: bool = option(
        False, "Convert pickled weights to safetensors, by a process that reads only tensors."
    )
    offline: bool = option(False, "Never use the network.", hidden=True)
    force: bool = option(False, "Replace a model of that name.")
    changes: Mapping[str, str | int | bool | Sequence[str] | None] = option(
        {},
        "Fields of the recipe that replace the recognised ones; also as keywords, e.g."
        ' `pooling="last/avg"`.',
        kind="recipe",
    )

    def run(self) -> "Entry":
        from promptcli.models import importing
        from promptcli.models.loading import open_registry

        with without_network(self.offline):
            return importing.import_model(
                open_registry(),
                str(self.source),
                self.name,
                changes=dict(self.changes),
                convert=self.convert,
                force=self.force,
            )


import_model = function_of(ImportJob, "import_model")


@dataclass(frozen=True)
class PushJob(Job["Pushed"]):
    """Send a model to the Hugging Face hub in one commit: card, recipe, learned tensors.

    A backbone from the hub is named by id and revision; any other is sent as well. Sending the same
    model again makes no new commit; a changed one replaces the files of the last, and other files
    in the repository stay. The token is that of ``hf auth login`` or $HF_TOKEN.

    Raises:
        UsageError: No token, or one that may not write there.
        NotFoundError: The hub cannot be reached.
    """

    encoder: "Model" = argument(
        "Name of a model or recipe, or a folder.", metavar="MODEL", typed=str, kind="named model"
    )
    repo: str = argument("Repository of the hub.", metavar="OWNER/NAME")
    _: KW_ONLY
    private: bool = option(False, "Create the repository as private.")
    revision: str | None = option(
        None, "Branch, created if it is missing. Default: the main branch."
    )

    def run(self) -> "Pushed":
        from promptcli.models import hub
        from promptcli.models.loading import entry_of

        entry = entry_of(self.encoder)
        return hub.push(
            hub.client(), entry, self.repo, private=self.private, revision=self.revision
        )


push = function_of(PushJob, "push")


@dataclass(frozen=True)
class PullJob(Job["Entry"]):
    """Save a model that was pushed to the hub: the same encoder, by its fingerprint.

    No code in it is run.

    Returns:
        The saved entry; the commit is in its ``provenance``, under ``pulled``.

    Raises:
        NotFoundError: No such repository or revision, or the hub cannot be reached.
        CheckFailedError: It is not what was pushed; nothing is saved.
    """

    repo: str = argument("Repository of the hub.", metavar="OWNER/NAME")
    name: str = option(..., "Name of the model to save.")
    _: KW_ONLY
    revision: str | None = option(None, "Branch, tag or commit. Default: the main branch.")
    force: bool = option(False, "Overwrite an existing model of that name.")

    def run(self) -> "Entry":
        from promptcli.models import hub
        from promptcli.models.loading import open_registry

        return hub.pull(
            hub.client(),
            open_registry(),
            self.repo,
            self.name,
            revision=self.revision,
            force=self.force,
        )


pull = function_of(PullJob, "pull")
