"""A whole encoder in one folder: its recipe, every number of its own, and the files of its backbone."""

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from promptcli.backbones.saving import save_weights
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.recipe import Recipe
from promptcli.errors import UsageError
from promptcli.storage.documents import read_document
from promptcli.storage.tensors import save_tensors

RECIPE, TENSORS, BACKBONE = "recipe.json", "tensors.safetensors", "backbone"
_FILES = ("*.json", "*.txt", "*.model", "*.safetensors")


def save_encoder(encoder: Encoder, folder: Path) -> None:
    """Write an encoder, backbone included, into a folder that is there.

    Raises:
        UsageError: Its backbone is word vectors.
    """
    if encoder.backbone.words_only:
        raise UsageError("word vectors are one file and no folder: give others the file and --recipe static-avg")
    (folder / BACKBONE).mkdir(exist_ok=True)
    for pattern in _FILES:
        for path in encoder.backbone.folder.glob(pattern):
            shutil.copyfile(path, folder / BACKBONE / path.name)
    if encoder.backbone.merged:
        for path in (folder / BACKBONE).glob("*.safetensors*"):
            path.unlink()
        save_weights(encoder.backbone, folder / BACKBONE)
    (folder / RECIPE).write_text(encoder.recipe.replace(backbone=BACKBONE).to_json() + "\n", encoding="utf-8")
    if tensors := encoder.tensors():
        save_tensors(tensors, folder / TENSORS)


def load_encoder(folder: Path, **options: Any) -> Encoder:
    """Read what ``save_encoder`` wrote; options are those of ``Encoder.from_recipe``."""
    values = read_document(folder / RECIPE, dict[str, Any], mend="export it again")
    recipe = Recipe.from_dict(values).replace(backbone=str(folder / BACKBONE))
    tensors = load_file(folder / TENSORS) if (folder / TENSORS).is_file() else {}
    return Encoder.from_recipe(recipe, tensors=tensors, **options)
