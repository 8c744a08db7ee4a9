"""Going on from a model that a run made before: its shape, its vocabulary and its weights."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from promptcli.backbones.checking import read_config
from promptcli.backbones.pretrained import locate, weight_files
from promptcli.backbones.vocabulary import SPECIALS
from promptcli.errors import UsageError
from promptcli.pretraining.plan import Plan
from promptcli.storage.files import atomic_path, sha256
from promptcli.storage.tensors import load_tensors

#: Fields of a plan and what a BERT's ``config.json`` calls them.
_SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "tied": "tie_word_embeddings",
}


@dataclass(frozen=True)
class BegunModel:
    """A BERT that ``promptcli pretrain`` made, to go on from."""

    name: str  #: as it was asked for
    folder: Path
    shape: Mapping[str, Any]  #: fields of a plan

    @classmethod
    def open(cls, name: str, *, offline: bool, announce: Callable[[str], None]) -> "BegunModel":
        """Find a model: a shipped one, a folder, a hub id.

        Raises:
            NotFoundError: It is not there.
            UsageError: It is no BERT with the special tokens of this command's vocabularies.
        """
        folder, _ = locate(name, offline, announce)
        config = {"tie_word_embeddings": True} | read_config(f"backbone {name!r}", folder)
        vocabulary = folder / "vocab.txt"
        text = vocabulary.read_text(encoding="utf-8", errors="replace") if vocabulary.is_file() else ""
        first = text.split("\n")[: len(SPECIALS)]
        if (
            config.get("model_type") != "bert"
            or tuple(first) != SPECIALS
            or any(type(config.get(field)) not in (int, bool) for field in _SHAPE.values())
        ):
            raise _other(name)
        return cls(name, folder, {field: config[there] for field, there in _SHAPE.items()})

    def plan(self, wanted: Plan) -> Plan:
        """Return the plan of a run that goes on from it: its shape, no start vectors, the weights' hash.

        Raises:
            UsageError: Another shape is asked for.
        """
        for field, value in self.shape.items():
            asked = getattr(wanted, field)
            default = max(1, wanted.width // 32) if field == "heads" else _default(field)
            if asked not in (value, default):
                option = "--untie" if field == "tied" else f"--{field.replace('_', '-')} {asked}"
                raise UsageError(f"{option} does not go with --from {self.name} ({field} {value}); leave it out")
        digests = " ".join(sha256(path) for path in weight_files(f"backbone {self.name!r}", self.folder))
        return dataclasses.replace(wanted, **self.shape, begun_from=digests, svd_start=False, sinusoids=False)

    def copy_vocabulary(self, folder: Path) -> None:
        """Put its vocabulary where a run looks for one, unless there is one."""
        if not (folder / "vocab.txt").is_file():
            with atomic_path(folder / "vocab.txt") as temporary:
                shutil.copyfile(self.folder / "vocab.txt", temporary)

    def load(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Set the parameters to its weights.

        Raises:
            UsageError: A weight is not there, or of another shape.
        """
        stored: dict[str, Tensor] = {}
        for path in weight_files(f"backbone {self.name!r}", self.folder):
            stored |= load_tensors(path, mend="take another --from", error=UsageError)
        with torch.no_grad():
            for name, parameter in parameters.items():
                if name not in stored or stored[name].shape != parameter.shape:
                    raise _other(self.name)
                parameter.copy_(stored[name])


def _default(field: str) -> Any:
    return next(item.default for item in dataclasses.fields(Plan) if item.name == field)


def _other(name: str) -> UsageError:
    return UsageError(
        f"--from {name}: no BERT that `promptcli pretrain` made, whose vocabulary begins with {', '.join(SPECIALS)};"
        " give `mini` or the folder of such a model"
    )
