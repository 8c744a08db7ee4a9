"""The registry: entries saved, replaced and removed, by several processes and by one that is
killed.
"""

import dataclasses
import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch

from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from promptcli.models import entries
from promptcli.models.entries import SHIPPED_MODELS, Entry, Registry
from promptcli.models.loading import resolve_entry
from promptcli.recipe import RECIPES, ModelChoice, Recipe
from promptcli.settings import program_folder
from promptcli.training.methods import METHODS
from tests.comparing import refusal
from tests.killing import killed_at_every_step


def fitted(name="white", fill=1.0):
    recipe = Recipe(transforms=("whitening:2",))
    tensors = {"whitening.mean": torch.full((3,), fill), "whitening.matrix": torch.eye(3, 2) * fill}
    return Entry(
        name, recipe, tensors, {"width": 2, "on": "demo"}, [{"task": "sts-b", "value": 71.5}]
    )


def assert_same(entry, expected):
    assert dataclasses.replace(entry, tensors={}) == dataclasses.replace(expected, tensors={})
    assert entry.tensors.keys() == expected.tensors.keys()
    assert all(
        torch.equal(tensor, expected.tensors[name]) for name, tensor in entry.tensors.items()
    )


def test_home_is_promptcli_home_or_the_platform_folder(tmp_path):
    assert program_folder({"PROMPTCLI_HOME": str(tmp_path)}, "user_data_dir") == tmp_path
    assert program_folder({"PROMPTCLI_HOME": "~/here"}, "user_data_dir") == Path.home() / "here"
    assert program_folder({"PROMPTCLI_HOME": ""}, "user_data_dir").name == "promptcli"
    assert program_folder({}, "user_data_dir").is_absolute()


def test_a_saved_entry_comes_back_equal(registry):
    transposed = Entry("transposed", Recipe(), {"w": torch.arange(6.0).reshape(2, 3).T})
    for entry in (fitted(), transposed, Entry("plain", RECIPES["last-avg"])):
        registry.save(entry)
        assert_same(registry.load(entry.name), entry)
    assert registry.names() == [*SHIPPED_MODELS, "plain", "transposed", "white"]
    assert sorted(os.listdir(registry.folder("plain"))) == ["modules.json", "promptcli.json"]


def test_a_model_hides_no_recipe_but_that_of_its_method(registry):
    with refusal("recipe"):
        registry.save(Entry("last-avg", Recipe()))
    for name in RECIPES.keys() & METHODS.keys():
        registry.save(Entry(name, Recipe()))
        assert name in registry.names()


def test_shipped_entries_are_listed_and_not_changed(registry):
    mini = registry.load("mini")
    assert mini.tensors and not registry.load_manifest("mini").tensors
    save = partial(registry.save, Entry("mini", Recipe()), force=True)
    for change in (partial(registry.remove, "mini"), save):
        with refusal("shipped"):
            change()
    assert registry.names() == list(SHIPPED_MODELS)


def test_existing_name_is_refused_unless_forced(registry):
    registry.save(fitted())
    for refuse in (registry.check_free, lambda name: registry.save(fitted(name, fill=2.0))):
        with refusal("force"):
            refuse("white")
    assert_same(registry.load("white"), fitted())
    registry.save(fitted(fill=2.0), force=True)
    assert_same(registry.load("white"), fitted(fill=2.0))


def test_a_home_that_may_not_be_written_is_named_before_the_work(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with refusal(r"models are kept in .*, which may not be written; .*PROMPTCLI_HOME=/a/folder"):
        registry.check_free("new")
    assert registry.names() == [*SHIPPED_MODELS]


@pytest.mark.parametrize(
    "name", ["", ".hidden", "..", "a/b", "a b", "ä", "a\n", "x" * 101, ".white.old"]
)
def test_bad_names_are_refused(registry, name):
    with refusal("not a name"):
        registry.check_free(name)
    with pytest.raises(NotFoundError):
        registry.load(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": None}, r"\$\.recipe"),
        ({"recipe": {"colour": "red"}}, "colour"),
        ({"provenance": {"trained": "text"}}, r"provenance\.trained"),
    ],
)
def test_a_damaged_entry_is_one_line_and_can_be_removed(registry, changes, message):
    registry.save(fitted())
    path = registry.folder("white") / "promptcli.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with refusal(message, CheckFailedError) as raised:
        registry.load("white")
    assert "\n" not in str(raised.value)
    registry.remove("white")
    assert registry.names() == list(SHIPPED_MODELS)


def test_a_home_that_is_missing_is_not_made_by_reading(tmp_path):
    registry = Registry(tmp_path / "nowhere")
    assert (
        registry.names() == list(SHIPPED_MODELS)
        and registry.load("mini").recipe.backbone == "mini-bert"
    )
    assert not (tmp_path / "nowhere").exists()
    for call in (registry.load, registry.load_manifest, registry.remove):
        with refusal("mini, mini-static", NotFoundError):
            call("whit")


def test_a_kill_at_any_step_leaves_the_old_entry_or_the_new(tmp_path):
    def look(path):
        assert Registry(path).names() == [*SHIPPED_MODELS, "white"]
        return float(Registry(path).load("white").tensors["whitening.mean"][0])

    def finish(path):
        Registry(path).save(fitted(fill=3.0), force=True)
        assert [entry.name for entry in (path / "models").iterdir()] == ["white"], (
            "a killed process's rest is swept"
        )

    first, second = (
        lambda path, fill=fill: Registry(path).save(fitted(fill=fill), force=True)
        for fill in (1.0, 2.0)
    )
    fills = killed_at_every_step(tmp_path / "r", first, second, look, finish, least=20)
    assert fills == sorted(fills) and set(fills) == {1.0, 2.0}


def with_backbone(path, number, name="white"):
    """Save an entry with a backbone of its own, which is only two files."""
    registry = Registry(path)
    with registry.new_folder() as folder:
        (folder / "made").mkdir()
        for file in ("config.json", "model.safetensors"):
            (folder / "made" / file).write_text(f"{number}")
        entry = entries.with_backbone(fitted(name, float(number)), str(folder / "made"))
        return registry.save(entry, force=True).recipe.backbone


def test_a_backbone_is_in_its_entry_and_other_entries_have_it_too(registry, tmp_path):
    home = tmp_path / "home"
    first = Path(with_backbone(home, 1))
    assert first == registry.folder("white") / "backbone"
    assert registry.load("white").provenance["backbone"] == str(first)
    fitted_on_it = registry.save(dataclasses.replace(registry.load("white"), name="fitted"))
    registry.remove("white")
    assert not first.exists()
    backbone = Path(fitted_on_it.recipe.backbone)
    assert (
        backbone == registry.folder("fitted") / "backbone"
        and (backbone / "config.json").read_text() == "1"
    )
    registry.save(registry.load("fitted"), force=True)
    assert (backbone / "config.json").read_text() == "1"


MINI = Registry(Path("nowhere")).load_manifest("mini").recipe
PLAIN = Recipe(transforms=("whitening:2",))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ModelChoice(), MINI),
        (ModelChoice(changes={"max_length": 32}), MINI.replace(max_length=32)),
        (
            ModelChoice(changes={"denoise": "none"}),
            Recipe(),
        ),  # its learned tensors are of its own recipe
        (ModelChoice(changes={"transforms": ("flow",)}), Recipe(transforms=("flow",))),
        (ModelChoice(changes={"backbone": "other"}), Recipe(backbone="other")),
        (ModelChoice(backbone="other"), Recipe(backbone="other")),
        (ModelChoice("cls", {}, "other"), Recipe(backbone="other", pooling="last/cls")),
        (ModelChoice("mini", {}, "other"), MINI),
        (ModelChoice("white", {"pooling": PLAIN.pooling, "backbone": "mini-bert"}), PLAIN),
        (ModelChoice("white", {"max_length": 32}), PLAIN.replace(max_length=32)),
    ],
)
def test_changes_start_from_the_model_the_default_entry_or_the_plain_recipe(
    choice, expected, registry
):
    registry.save(fitted())
    assert resolve_entry(choice).recipe == expected


def test_recipes_by_name_as_text_and_as_a_file(registry, tmp_path):
    def of(text):
        return resolve_entry(ModelChoice(str(text)))

    assert all(of(name) == Entry(name, recipe) for name, recipe in RECIPES.items())
    recipe = RECIPES["prompt-denoised"].replace(max_length=64)
    toml = 'prompt = "[X] is [MASK]"\npooling = "last/mask"'
    (tmp_path / "mine.json").write_text(recipe.to_json())
    (tmp_path / "a=b.toml").write_text(toml, encoding="utf-8-sig")  # as Windows saves it
    assert of(recipe.to_json()).recipe == of("  " + recipe.to_json()).recipe == recipe
    assert of(tmp_path / "mine.json") == Entry("mine", recipe)
    assert (
        of(toml).recipe
        == of(tmp_path / "a=b.toml").recipe
        == Recipe(prompt="[X] is [MASK]", pooling="last/mask")
    )


@pytest.mark.parametrize(
    "text", ["no.toml", f"{'x' * 5000}.json", "{", "pooling = last", "colour = 'red'", "bad.toml"]
)
def test_what_is_not_a_recipe_is_refused(registry, text, here):
    (here / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        resolve_entry(ModelChoice(text))


def test_a_local_backbone_becomes_absolute_and_a_hub_s_name_stays(registry, here):
    (here / "bert").mkdir()
    for given, stored in (
        ("./bert", str(here / "bert")),
        ("mini-bert", "mini-bert"),
        ("org/bert", "org/bert"),
    ):
        registry.save(Entry("local", Recipe(backbone=given)), force=True)
        assert registry.load("local").recipe.backbone == stored


def test_a_changed_model_is_not_saved_and_has_no_scores(registry):
    registry.save(Entry("plain", RECIPES["last-avg"], {}, {}, [{"task": "x"}]))
    assert resolve_entry(ModelChoice("plain")) == registry.load("plain")
    changed = resolve_entry(ModelChoice("plain", {"pooling": "last/cls"}))
    assert changed.recipe == Recipe(pooling="last/cls")
    assert changed.scores == [] and changed.name not in registry.names()
    with refusal("no local model 'q'", NotFoundError):
        resolve_entry(ModelChoice("q"))


@pytest.mark.parametrize(
    "changes",
    [
        {"backbone": "x"},
        {"pooling": "last/avg"},
        {"transforms": ()},
        {"prompt": "[X] !"},
        {"denoise": "hidden"},
    ],
)
def test_fitted_numbers_forbid_another_recipe(registry, changes):
    registry.save(fitted())
    with refusal(next(iter(changes))):
        resolve_entry(ModelChoice("white", changes))
