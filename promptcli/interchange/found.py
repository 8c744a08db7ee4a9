"""What is read of a folder of another program: a recipe, the numbers of its parts, and a backbone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from promptcli.errors import UsageError
from promptcli.interchange.convert import convert_apart
from promptcli.recipe import Recipe
from promptcli.storage.documents import read_document


@dataclass(frozen=True)
class Folder:
    """A folder to be read."""

    name: str  #: as the user gave it: a folder, or a hub id
    path: Path
    work: Path  #: an empty folder for what is converted
    convert: bool = False  #: pickles may be converted

    def document(self, file: str, kind: type = dict) -> Any:
        """Return the content of a JSON file, an object or a list of objects.

        Raises:
            UsageError: It is not there, no JSON, or not of that kind.
        """
        path = self.path / file
        if not path.is_file():
            raise UsageError(f"{self.name} has no {file}")
        found = read_document(path, Any, mend="fetch it again", error=UsageError)
        if not isinstance(found, kind) or (kind is list and not all(isinstance(item, dict) for item in found)):
            raise UsageError(f"{file} of {self.name} is no {'object' if kind is dict else 'list of objects'}")
        return found

    def weights(self, stem: str = "model", pickle: str = "pytorch_model.bin", inside: str = "") -> Path:
        """Return a safetensors file, a pickle converted where that is allowed.

        Raises:
            UsageError: There is only a pickle, and it may not be converted; or neither.
        """
        folder = self.path / inside
        if (folder / f"{stem}.safetensors").is_file():
            return folder / f"{stem}.safetensors"
        if not (folder / pickle).is_file():
            raise UsageError(f"{self.name} has neither {inside}{stem}.safetensors nor {inside}{pickle}")
        if not self.convert:
            raise UsageError(
                f"{self.name} has its weights in {inside}{pickle} only, a pickle, which can run code; with --convert a"
                " separate process reads its tensors, and nothing else, into safetensors"
            )
        target = self.work / f"{inside.replace('/', '-')}{stem}.safetensors"
        convert_apart(folder / pickle, target)
        return target

    def has(self, file: str) -> bool:
        """Return whether there is such a file."""
        return (self.path / file).is_file()


@dataclass(frozen=True)
class Found:
    """What a folder is."""

    kind: str  #: e.g. ``PromCSE checkpoint``
    recipe: Recipe  #: its backbone is a name or a folder; "" where ``body`` and ``config`` are to become one
    tensors: dict[str, Tensor] = field(default_factory=dict)
    body: dict[str, Tensor] = field(default_factory=dict)  #: weights of a backbone that is to be written
    config: dict[str, Any] = field(default_factory=dict)  #: its ``config.json``
    notes: tuple[str, ...] = ()
    named_base: bool = False  #: its backbone is another model, for which the user may name one


#: Returns what a folder is, None where it is of another kind.
Reader = Callable[[Folder], Found | None]
