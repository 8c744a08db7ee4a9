"""A whole encoder in one folder: its recipe, every number of its own, and the files of its backbone."""

import shutil
from pathlib import Path
from typing import Any

from promptcli.backbones.checking import check_links
from promptcli.backbones.saving import save_weights
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError
from promptcli.recipe import Recipe
from promptcli.storage.documents import read_document
from promptcli.storage.tensors import load_tensors, save_tensors

RECIPE, TENSORS, BACKBONE = "recipe.json", "tensors.safetensors", "backbone"
#: How the names of a tokenizer's files begin.
_TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens", "sentencepiece")
_MEND = "export it again"


def is_tokenizer_file(path: Path) -> bool:
    """Return whether a file of a backbone's folder belongs to its tokenizer."""
    return path.suffix == ".model" or (path.name.startswith(_TOKENIZER) and path.suffix in (".json", ".txt"))


def save_encoder(encoder: Encoder, folder: Path, *, backbone: str | None = None) -> None:
    """Write an encoder into a folder that is there: its backbone, too, unless ``backbone`` is what others call it.

    Raises:
        UsageError: Its backbone is word vectors, or a folder with links that lead out of it.
    """
    if encoder.backbone.words_only:
        raise UsageError("word vectors are one file and no folder: give others the file and --recipe static-avg")
    if backbone is None:
        _save_backbone(encoder, folder / BACKBONE)
    recipe = encoder.recipe.replace(backbone=backbone or BACKBONE)
    (folder / RECIPE).write_text(recipe.to_json() + "\n", encoding="utf-8")
    if tensors := encoder.tensors():
        save_tensors(tensors, folder / TENSORS)


def _save_backbone(encoder: Encoder, folder: Path) -> None:
    """Write configuration, weights and tokenizer, and nothing else that lies in the backbone's folder."""
    copied = [
        path
        for path in encoder.backbone.folder.iterdir()
        if path.name == "config.json" or path.match("*.safetensors*") or is_tokenizer_file(path)
    ]
    check_links(f"backbone {encoder.backbone.name!r}", encoder.backbone.folder, copied)
    folder.mkdir(exist_ok=True)
    for path in copied:
        shutil.copyfile(path, folder / path.name)
    if encoder.backbone.merged:
        for path in folder.glob("*.safetensors*"):
            path.unlink()
        save_weights(encoder.backbone, folder)


def load_encoder(folder: Path, **options: Any) -> Encoder:
    """Read what ``save_encoder`` wrote; options are those of ``Encoder.from_recipe``."""
    values = read_document(folder / RECIPE, dict[str, Any], mend=_MEND)
    recipe = Recipe.from_dict(values)
    if (folder / BACKBONE).is_dir():
        recipe = recipe.replace(backbone=str(folder / BACKBONE))
    tensors = load_tensors(folder / TENSORS, mend=_MEND) if (folder / TENSORS).is_file() else {}
    return Encoder.from_recipe(recipe, tensors=tensors, **options)
