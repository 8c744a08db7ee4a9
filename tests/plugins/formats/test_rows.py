"""Files of other programs are refused if the plug-in that reads them was deleted."""

import pytest

import promptcli as pc
from promptcli.backbones.model_folder import MODEL_FILES, WORD_FILES
from promptcli.errors import PromptcliError
from tests.comparing import refusal
from tests.plugins.absent import delete_plugin


@pytest.mark.parametrize("backbone", ["model.gguf", "glove:v.txt"])
def test_without_the_folder_its_files_are_refused_in_one_line(backbone, monkeypatch):
    delete_plugin("formats", monkeypatch, MODEL_FILES, WORD_FILES)
    recipe = pc.Recipe(backbone=backbone, pooling="static/avg")
    with refusal(backbone, PromptcliError):
        pc.load(recipe)
    assert pc.load("mini-static").encode(["a cat"]).shape[0] == 1
