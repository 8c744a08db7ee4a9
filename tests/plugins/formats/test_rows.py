"""Files of other programs where the plug-in that reads them was deleted."""

import pytest

import promptcli as pc
from promptcli.backbones.file_formats import MODEL_FILES, WORD_FILES
from promptcli.errors import UsageError
from tests.plugins.absent import delete_plugin


@pytest.mark.parametrize(
    ("backbone", "missing"), [("model.gguf", "model file .gguf"), ("glove:v.txt", "glove")]
)
def test_without_the_folder_its_files_are_missing_in_one_line(backbone, missing, monkeypatch):
    delete_plugin("formats", monkeypatch, MODEL_FILES, WORD_FILES)
    recipe = pc.Recipe(backbone=backbone, pooling="static/avg")
    with pytest.raises(UsageError, match=f"{missing} is a plug-in that is not installed here"):
        pc.load(recipe)
    assert pc.load("mini-static").encode(["a cat"]).shape[0] == 1
