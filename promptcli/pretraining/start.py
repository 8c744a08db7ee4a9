"""Start from a model that an earlier run made: its shape, vocabulary and weights."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
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

#: Fields of a plan -> names in a BERT's ``config.json``.
_SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "tied": "tie_word_embeddings",
}


@dataclass(frozen=True)
class Start:
    """A BERT that ``promptcli pretrain`` made, or several, whose weights are averaged.

    The mean of models that continue one model is as good as the best of them or better (Wortsman et al. 2022, the
    uniform "model soup").
    """

    names: tuple[str, ...]  #: as given
    folders: tuple[Path, ...]
    shape: Mapping[str, Any]  #: fields of a plan

    @classmethod
    def open(cls, names: Sequence[str]) -> "Start":
        """Find the models: shipped ones, folders, hub ids; they have one shape and one vocabulary."""
        folders = tuple(locate(name)[0] for name in names)
        shapes = [_shape(name, folder) for name, folder in zip(names, folders, strict=True)]
        vocabularies = [sha256(folder / "vocab.txt") for folder in folders]
        for name, shape, vocabulary in zip(names, shapes, vocabularies, strict=True):
            if (shape, vocabulary) != (shapes[0], vocabularies[0]):
                what = "shape" if shape != shapes[0] else "vocabulary"
                raise UsageError(
                    f"`start` {name} has another {what} than `start` {names[0]}, so their weights have no mean; give"
                    " models that continue one model"
                )
        return cls(tuple(names), folders, shapes[0])

    def plan(self, wanted: Plan) -> Plan:
        """Return the plan of a run that starts from it: its shape and the weights' hashes."""
        for field, value in self.shape.items():
            asked = getattr(wanted, field)
            default = max(1, wanted.width // 32) if field == "heads" else getattr(Plan, field)
            if asked not in (value, default):
                raise UsageError(
                    f"`{field}` {asked} does not go with `start` {self.names[0]} ({field} {value}); leave it out"
                )
        digests = " ".join(
            sha256(path)
            for name, folder in zip(self.names, self.folders, strict=True)
            for path in weight_files(f"backbone {name!r}", folder)
        )
        return dataclasses.replace(wanted, **self.shape, begun_from=digests)

    def copy_vocabulary(self, folder: Path) -> None:
        """Copy its vocabulary into the folder of a run."""
        if not (folder / "vocab.txt").is_file():
            with atomic_path(folder / "vocab.txt") as temporary:
                shutil.copyfile(self.folders[0] / "vocab.txt", temporary)

    def load(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Set the parameters to its weights, or to the mean of several models' weights."""
        models: list[dict[str, Tensor]] = [{} for _ in self.names]
        for name, folder, stored in zip(self.names, self.folders, models, strict=True):
            for path in weight_files(f"backbone {name!r}", folder):
                stored |= load_tensors(path, hint="take another `start`", error=UsageError)
        with torch.no_grad():
            for field, parameter in parameters.items():
                for name, stored in zip(self.names, models, strict=True):
                    if field not in stored or stored[field].shape != parameter.shape:
                        raise _other(name)
                parameter.copy_(torch.stack([stored[field].double() for stored in models]).mean(0))


def _shape(name: str, folder: Path) -> dict[str, Any]:
    """Return the shape of a model as fields of a plan, if this command can have made it."""
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
    return {field: config[there] for field, there in _SHAPE.items()}


def _other(name: str) -> UsageError:
    return UsageError(
        f"`start` {name}: not a BERT made by `promptcli pretrain`, whose vocabulary begins with {', '.join(SPECIALS)};"
        " give `mini-bert` or the folder of such a model"
    )
