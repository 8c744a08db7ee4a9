"""The encoder of an index: recorded at the build, opened again for a search."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.vectors.formats import Manifest, tell_apart
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.models import loading
from promptcli.models.entries import Entry, portable
from promptcli.notes import note
from promptcli.recipe import Choice, LeadingTexts, Recipe, is_named

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model


@dataclass(frozen=True)
class Origin:
    """The encoder whose vectors an index holds."""

    fingerprint: str  #: Two encoders are the same if and only if their fingerprints are equal.
    recipe: dict[str, Any]
    #: The registry's model with the fitted tensors; None if the recipe is enough.
    model: str | None
    provenance: dict[str, Any]  #: Source of the backbone, and its precision.
    prompts: LeadingTexts = field(default_factory=LeadingTexts)  #: The model's prompts.
    #: Name of the prompt before its rows; None: the model's default.
    prompt: str | None = None
    name: str = ""  #: The name by which the model was opened.

    @classmethod
    def of(cls, encoder: "Encoder", documents: "Encoder", model: "Model | None" = None) -> "Origin":
        """Return the origin of a model opened as ``model``, with its encoder for documents."""
        word = model.model if isinstance(model, Choice) else model
        entry = None
        if isinstance(word, str) and encoder.tensors():  # the registry holds its fitted tensors
            entry = word if word in loading.open_registry().names() else None
        return cls(
            documents.fingerprint,
            portable(encoder.recipe).to_dict(),
            entry,
            encoder.provenance,
            encoder.leading,
            None if documents is encoder else encoder.leading.name_for("document"),
            encoder.name,
        )

    @classmethod
    def of_vectors(cls, manifest: Manifest) -> "Origin":
        """Return the origin of vectors that ``embed`` wrote."""
        recipe = portable(Recipe.from_dict(manifest.recipe)).to_dict()
        return cls(
            manifest.fingerprint, recipe, None, manifest.model, manifest.prompts, name=manifest.name
        )

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> "Origin":
        """Return an origin as ``dataclasses.asdict`` writes it."""
        return cls(**{**document, "prompts": LeadingTexts(**document["prompts"])})

    @property
    def text(self) -> str:
        """The prompt before the rows, for messages."""
        return f"{self.prompt!r}: {self.prompts.texts.get(self.prompt or '', '')!r}"

    def documents(self, encoder: "Encoder", *, report: bool = False) -> "Encoder":
        """Return a model's encoder for documents."""
        return encoder if self.prompt is None else encoder.in_role("document", report=report)

    def is_made_by(self, encoder: "Encoder") -> bool:
        """Return whether a model makes the vectors of the index."""
        return self.documents(encoder).fingerprint == self.fingerprint

    def note_missing_prompt(self, path: Path) -> None:
        """Note that vectors were made without the model's prompt for documents."""
        text = self.prompts.texts.get(self.prompts.name_for("document") or "")
        if self.prompt is None and text and text != self.prompts.default_text:
            note(
                f"{path} was made without the model's prompt for documents, {text!r}; an index of"
                " sentences uses it"
            )

    def check_same(self, other: "Origin", name: str, hint: str = "") -> None:
        """Refuse to mix vectors or an index of this encoder with those of another.

        Args:
            other: The other encoder.
            name: Vectors or index of this encoder.
            hint: The remedy.
        """
        if self.fingerprint != other.fingerprint:
            made_by, given = tell_apart(
                (self.name, self.fingerprint), (other.name, other.fingerprint)
            )
            message = f"{name} was made with {made_by}, not with {given}{hint}"
            raise UsageError(message, parameter="model" if hint else "")

    def open(self, model: "Model | None" = None) -> "Encoder":
        """Return the encoder: ``model`` if given, else the recorded one.

        Raises:
            PromptcliError: The model was removed or moved, or has changed.
            UsageError: ``model`` is not the one that made the index.
        """
        dtype = str(self.provenance.get("dtype", "auto"))
        if model is not None and is_named(model):
            encoder = loading.open_encoder(model, dtype=dtype)
            given = Origin.of(encoder, self.documents(encoder), model)
            hint = "; `promptcli index migrate DIR -m MODEL` gives it another model"
            self.check_same(given, "the index", hint)
            return encoder
        device = model.device if isinstance(model, Choice) else "auto"
        try:
            for entry in self._entries():
                encoder = loading.open_encoder(entry, device=device, dtype=dtype)
                if self.is_made_by(encoder):
                    return encoder
        except NotFoundError as error:  # the model was removed or moved
            hint = "name the model of the index"
            raise NotFoundError(f"{error.message}; {hint}", parameter="model") from None
        made_by = self.name or f"the model on {self.recipe['backbone']}"
        raise CheckFailedError(
            f"{made_by} has changed since the index was built with it; build the index again"
        )

    def _entries(self) -> Iterator[Entry]:
        """Yield the candidate models: the registry's of that name, then the recipe."""
        registry = loading.open_registry()
        recipe = Recipe.from_dict(self.recipe)
        name = self.model or self.name
        if self.model is not None or name in registry.names():
            yield replace(registry.load(name), recipe=recipe)
        if self.model is None:
            yield Entry("recipe", recipe, prompts=self.prompts)
