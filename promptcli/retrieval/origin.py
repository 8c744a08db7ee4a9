"""The encoder of an index: recorded at the build, opened again for a search, replaced by a
migration.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.vectors.formats import Manifest, tell_apart
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.models import loading
from promptcli.models.entries import Entry, portable
from promptcli.notes import note, stage
from promptcli.recipe import LeadingTexts, ModelChoice, Recipe, is_chosen
from promptcli.retrieval.array_files import VectorFile
from promptcli.retrieval.new_rows import unit_rows
from promptcli.retrieval.store import Store

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model

_CHANGED_MESSAGE = "another process changed the index; migrate it again"


@dataclass(frozen=True)
class Origin:
    """The encoder whose vectors an index holds."""

    fingerprint: str  #: Two encoders are the same if and only if their fingerprints are equal.
    recipe: dict[str, Any]
    #: The registry's model with the fitted tensors; None if the recipe is enough.
    model: str | None
    provenance: dict[str, Any]  #: Source of the backbone, and its precision.
    prompts: LeadingTexts = field(default_factory=LeadingTexts)  #: The model's prompts.
    #: Name of the prompt before the rows; None: the model's default.
    prompt: str | None = None
    name: str = ""  #: The name by which the model was opened.

    @classmethod
    def of(cls, encoder: "Encoder", documents: "Encoder", model: "Model | None" = None) -> "Origin":
        """Return the origin of a model's vectors.

        Args:
            encoder: The model.
            documents: The model's encoder for documents.
            model: The argument by which the model was opened.
        """
        name = model.model if isinstance(model, ModelChoice) else model
        has_tensors = isinstance(name, str) and bool(encoder.tensors())
        is_in_registry = has_tensors and name in loading.open_registry().names()
        has_prompt = documents is not encoder
        return cls(
            fingerprint=documents.fingerprint,
            recipe=portable(encoder.recipe).to_dict(),
            model=str(name) if is_in_registry else None,
            provenance=encoder.provenance,
            prompts=encoder.leading,
            prompt=encoder.leading.name_for("document") if has_prompt else None,
            name=encoder.name,
        )

    @classmethod
    def of_vectors(cls, manifest: Manifest) -> "Origin":
        """Return the origin of vectors that ``embed`` wrote."""
        return cls(
            fingerprint=manifest.fingerprint,
            recipe=portable(Recipe.from_dict(manifest.recipe)).to_dict(),
            model=None,
            provenance=manifest.model,
            prompts=manifest.prompts,
            name=manifest.name,
        )

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Origin":
        """Return an origin as ``dataclasses.asdict`` writes it."""
        return cls(**{**document, "prompts": LeadingTexts(**document["prompts"])})

    def document_encoder(self, encoder: "Encoder", *, report: bool = False) -> "Encoder":
        """Return a model's encoder for documents."""
        return encoder if self.prompt is None else encoder.in_role("document", report=report)

    def is_made_by(self, encoder: "Encoder") -> bool:
        """Return whether a model makes the vectors of the index."""
        return self.document_encoder(encoder).fingerprint == self.fingerprint

    def note_missing_prompt(self, path: Path) -> None:
        """Tell the user if vectors were made without the model's prompt for documents."""
        text = self.prompts.texts.get(self.prompts.name_for("document") or "")
        if self.prompt is None and text and text != self.prompts.default_text:
            note(
                f"{path} was made without the model's prompt for documents, {text!r}; an index of"
                " sentences uses it"
            )

    def check_same(self, other: "Origin", name: str, hint: str = "") -> None:
        """Raise UsageError unless ``other`` is the same encoder.

        Args:
            other: The other encoder.
            name: The vectors or the index that this encoder made, for the message.
            hint: The remedy, for the message.
        """
        if self.fingerprint != other.fingerprint:
            own_name, other_name = tell_apart(
                (self.name, self.fingerprint), (other.name, other.fingerprint)
            )
            message = f"{name} was made with {own_name}, not with {other_name}{hint}"
            raise UsageError(message, parameter="model" if hint else "")

    def open(self, model: "Model | None" = None) -> "Encoder":
        """Return ``model`` if it names an encoder, else the recorded encoder.

        Raises:
            PromptcliError: The model was removed or moved, or has changed.
            UsageError: ``model`` is not the one that made the index.
        """
        dtype = str(self.provenance.get("dtype", "auto"))
        if model is not None and is_chosen(model):
            encoder = loading.open_encoder(model, dtype=dtype)
            origin = Origin.of(encoder, self.document_encoder(encoder), model)
            hint = "; `promptcli index migrate DIR -m MODEL` gives it another model"
            self.check_same(origin, "the index", hint)
            return encoder
        device = model.device if isinstance(model, ModelChoice) else "auto"
        recipe = Recipe.from_dict(self.recipe)
        registry = loading.open_registry()
        name = self.model or self.name
        candidates = []
        try:
            if self.model is not None or name in registry.names():
                candidates.append(replace(registry.load(name), recipe=recipe))
            if self.model is None:
                candidates.append(Entry("recipe", recipe, prompts=self.prompts))
            for entry in candidates:
                encoder = loading.open_encoder(entry, device=device, dtype=dtype)
                if self.is_made_by(encoder):
                    return encoder
        except NotFoundError as error:  # the model was removed or moved
            hint = "name the model of the index"
            raise NotFoundError(f"{error.message}; {hint}", parameter="model") from None
        name = self.name or f"the model on {self.recipe['backbone']}"
        raise CheckFailedError(
            f"{name} has changed since the index was built with it; build the index again"
        )


# Another model for an index: all texts are encoded into a second vector file, which then replaces
# the first one. Each block is one transaction, so the same call continues after a kill. Searches
# use the old vectors until the last transaction.


@dataclass(frozen=True)
class _Progress:
    """The state of an unfinished migration."""

    model: str  #: fingerprint of the new encoder
    vectors: str  #: name of the new vector file
    places: int = 0  #: number of vectors in the file


def migrate(store: Store, documents: "Encoder", origin: Origin) -> None:
    """Encode the texts of an index with another model.

    Args:
        store: The index.
        documents: The new model's encoder for documents.
        origin: Its origin.
    """
    with store.changing():
        file, progress = _begin_or_continue(store, documents, origin)
        rows = len(store)
    with stage("migrate", rows) as advance:
        while progress.places < store.settings.places:
            texts = next(store.text_blocks(progress.places, store.settings.places))
            vectors = unit_rows(documents.encode(texts, progress=advance))
            with store.changing():
                _check_unchanged(store, progress)
                file.write(progress.places, vectors)
                file.sync()
                progress = replace(progress, places=progress.places + len(texts))
                store.write_settings(migrating=asdict(progress))
    with store.changing():
        _check_unchanged(store, progress)
        if store.settings.places != progress.places:
            raise UsageError(_CHANGED_MESSAGE)
        store.vector_file = file
        store.delete_leftovers()
        store.write_settings(
            origin=asdict(origin), width=documents.width, vectors=file.name, migrating=None
        )


def _begin_or_continue(
    store: Store, documents: "Encoder", origin: Origin
) -> tuple[VectorFile, _Progress]:
    """Return the new vector file and the progress, also of a killed migration.

    The migration begins again if the unfinished vectors are of another model, or were deleted.
    """
    if store.settings.migrating is not None and store.folder is not None:
        progress = _Progress(**store.settings.migrating)
        file = VectorFile(progress.vectors, store.folder)
        if progress.model == origin.fingerprint and file.holds(progress.places, documents.width):
            return file, progress
    file = VectorFile.new(store.folder, "float32")
    progress = _Progress(origin.fingerprint, file.name)
    store.write_settings(migrating=asdict(progress))
    return file, progress


def _check_unchanged(store: Store, progress: _Progress) -> None:
    """Refuse to continue if another process has migrated or rewritten the index."""
    if store.settings.migrating != asdict(progress):
        raise UsageError(_CHANGED_MESSAGE)
