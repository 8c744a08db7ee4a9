"""The settings that a run begins with on a backbone, and the record of them."""

import json

import pytest

from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.backbones.published_backbones import PUBLISHED
from promptcli.models.loading import open_registry
from promptcli.named_templates import last_part
from promptcli.training.config import (
    FOUND_ON_MINI,
    OF_METHOD,
    TrainConfig,
    differences_from_paper,
    preset_for,
)
from promptcli.training.methods import all_forms, find_method

MINI = json.loads((SHIPPED_BACKBONES["mini-bert"] / "config.json").read_text(encoding="utf-8"))
SIMCSE = find_method("simcse", supervised=False)
PROMPTBERT = find_method("promptbert", supervised=False)


@pytest.fixture
def backbone(tmp_path):
    """Return a function that makes a folder with a configuration, mini-bert's but for changes."""

    def make(name="own", **changes):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(MINI | changes), encoding="utf-8")
        return str(folder)

    return make


def test_settings_found_on_mini_bert_are_for_its_shape_alone(backbone):
    assert preset_for(SIMCSE, "mini-bert").settings is SIMCSE.mini_bert_settings
    assert preset_for(SIMCSE, backbone("copy")).settings is SIMCSE.mini_bert_settings
    minilm = backbone(
        "minilm", hidden_size=384, num_hidden_layers=6, num_attention_heads=12, vocab_size=30522
    )
    for method in (SIMCSE, PROMPTBERT, find_method("dcpcse", supervised=False)):
        preset = preset_for(method, minilm)
        assert preset.settings is method.paper["bert-base-uncased"]
        assert preset.source == "published for bert-base-uncased"
    assert preset_for(SIMCSE, backbone("deeper", num_hidden_layers=5)).source.startswith(
        "published"
    )
    assert preset_for(SIMCSE, backbone("words", vocab_size=16000)).source.startswith("published")


def test_a_local_copy_of_a_published_backbone_has_its_settings_whatever_its_name(
    backbone, monkeypatch, tmp_path
):
    large = {
        "model_type": "roberta",
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "vocab_size": 50265,
    }
    assert preset_for(SIMCSE, backbone("copy", **large)).backbone == "roberta-large"
    cased = backbone("cased", **{**large, "model_type": "bert", "vocab_size": 28996})
    assert preset_for(SIMCSE, cased).backbone == "bert-large-uncased"
    backbone("bert-base-uncased")
    monkeypatch.chdir(tmp_path)  # the folder goes before the published name, and holds mini-bert
    assert preset_for(SIMCSE, "bert-base-uncased").source == FOUND_ON_MINI


def test_the_papers_settings_are_for_any_backbone(backbone):
    own = backbone()
    for method in all_forms():
        if not method.paper:
            continue
        preset = preset_for(method, own, paper=True)
        assert preset.settings == method.published(preset.backbone)
        assert preset.backbone == method.fallback_backbone
    names = {name for method in all_forms() for name in method.paper}
    assert {last_part(name) for name in names} <= PUBLISHED.keys()
    for name in names:
        assert name.rpartition("/")[0] in PUBLISHED[last_part(name)].owners


def test_a_run_has_what_is_given_and_a_start_without_head_begins_none():
    given = {"steps": 3, "batch_size": 128}
    settings = preset_for(PROMPTBERT, "mini-bert").override(given)
    assert vars(settings) == vars(PROMPTBERT.mini_bert_settings.replace(**given))
    paper = TrainConfig(method="promptbert", paper=True).preset(PROMPTBERT, None).settings
    assert paper.optimizer == "adamw-4.2.1"
    supervised = find_method("simcse", supervised=True)
    start = open_registry().load_manifest("mini").recipe
    preset = TrainConfig(method="simcse", start="mini").preset(supervised, start)
    assert supervised.mini_bert_settings.keep_head
    assert not preset.override({"steps": 3}).keep_head
    assert preset.override({"keep_head": True}).keep_head


def test_the_line_of_a_run_names_whose_settings_they_are_and_which_were_given():
    distill = find_method("distill", supervised=False)
    assert preset_for(distill, "mini-bert").summary({}) == f"settings of distill: {OF_METHOD}"
    line = preset_for(PROMPTBERT, "mini-bert").summary({"steps": 3})
    assert line == "settings of promptbert: found on mini-bert; given: steps 3"
    assert "published for roberta-base" in preset_for(PROMPTBERT, "roberta-base").summary({})


def test_what_differs_from_the_paper_is_neither_its_text_nor_its_program():
    found = differences_from_paper(PROMPTBERT, PROMPTBERT.mini_bert_settings, "mini-bert")
    differing = {each["setting"]: (each["value"], each["paper"]) for each in found}
    assert differing == {
        "batch_size": (128, 256),
        "learning_rate": (3e-5, 1e-5),
        "temperature": (0.2, 0.05),
        "eval_steps": (25, 125),
    }
    for settings in (PROMPTBERT.paper["roberta-base"], PROMPTBERT.published("roberta-base")):
        assert differences_from_paper(PROMPTBERT, settings.replace(seed=7), "roberta-base") == []
    distill = find_method("distill", supervised=False)
    assert differences_from_paper(distill, distill.mini_bert_settings, "mini-bert") == []
