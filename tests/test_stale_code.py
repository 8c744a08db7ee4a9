"""The code of an installed package is part of what its encoders are."""

import contextlib
import hashlib
import importlib.metadata
import json
import sys

import pytest

import promptcli as pc
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.pooling import WEIGHTS
from promptcli.encoder.prompts import PROMPTS
from promptcli.encoder.transforms import TRANSFORMS
from promptcli.models.card import write_card
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.methods import METHODS
from promptcli.training.objectives import OBJECTIVES
from tests.comparing import refusal
from tests.plugins.absent import forget_entry_points
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs

FORMULA = """
def read(states, batch):
    return (batch.real()[..., None] * states).sum(1) * {factor} + {shift}
"""
CODE = """
from dataclasses import dataclass

from own_encoders.formula import read
from promptcli.encoder.components import Prompt, Transform, Weights
from promptcli.encoder.template import Template
from promptcli.training.methods.method import Method, Variant
from promptcli.training.methods.method import ContrastiveSettings
from promptcli.training.objectives.contrastive import InfoNCE


class Own(Weights):
    def __init__(self, context):
        self.spec = "own"

    def pool(self, states, batch, hidden):
        return read(states, batch)


class Doubled(Transform):
    def __init__(self, context):
        self.spec = "doubled"
        self.stages = [("vector", lambda vectors: vectors * 2)]


class Asked(Prompt):
    def __init__(self, context):
        super().__init__(context)
        self.spec = f"asked:{context.argument}"

    @classmethod
    def read_template(cls, context):
        return Template(f"{context.argument}: [X]", context.backbone.tokenizer)


class Plain(InfoNCE):
    pass


OWNCSE = Method(
    name="owncse",
    source="our own",
    pooling="last/own",
    learns=("backbone",),
    variants={"*": Variant()},
    objective="plain",
    mini_bert_settings=ContrastiveSettings(batch_size=4, steps=1),
    paper={},
)
METHOD = (OWNCSE, None)
"""
ROWS = """[promptcli.poolings]
own = own_encoders:Own
[promptcli.transforms]
doubled = own_encoders:Doubled
[promptcli.prompts]
asked = own_encoders:Asked
[promptcli.methods]
owncse = own_encoders:METHOD
[promptcli.objectives]
plain = own_encoders:Plain
"""


class Package:
    """A distribution as pip lays it down, which can be changed and loaded again."""

    def __init__(self, folder, monkeypatch, *, editable):
        self.site = folder / "site"
        self.code = (folder / "code" if editable else self.site) / "own_encoders"
        self.code.mkdir(parents=True)
        self.about = self.site / "own_encoders-1.0.dist-info"
        self.about.mkdir(parents=True)
        (self.about / "entry_points.txt").write_text(ROWS)
        (self.code / "__init__.py").write_text(CODE)
        self.monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(self.site)
        monkeypatch.syspath_prepend(self.code.parent)
        if editable:
            (self.about / "direct_url.json").write_text('{"dir_info": {"editable": true}}')

    def load(self, factor=1.0, shift=0.0, version="1.0"):
        """Install one version of the formula; tables look for rows again, as a new process does."""
        about = f"Metadata-Version: 2.1\nName: own-encoders\nVersion: {version}\n"
        (self.about / "METADATA").write_text(about)
        formula = FORMULA.format(factor=factor, shift=shift)
        file = self.code / "formula.py"
        if not file.exists() or file.read_text() != formula:
            file.write_text(formula)
        digest = hashlib.sha256(formula.encode()).hexdigest()
        (self.about / "RECORD").write_text(f"own_encoders/formula.py,sha256={digest},\n")
        for name in [name for name in sys.modules if name.startswith("own_encoders")]:
            del sys.modules[name]
        with contextlib.suppress(FileNotFoundError):
            for path in (self.code / "__pycache__").iterdir():
                path.unlink()
        importlib.invalidate_caches()
        for table in (WEIGHTS, TRANSFORMS, PROMPTS, METHODS, OBJECTIVES):
            forget_entry_points(table, self.monkeypatch)


@pytest.fixture(params=["installed", "editable"])
def package(request, tmp_path, monkeypatch):
    yield Package(tmp_path, monkeypatch, editable=request.param == "editable")
    for name in [name for name in sys.modules if name.startswith("own_encoders")]:
        del sys.modules[name]


OWN = {
    "pooling": Recipe(pooling="last/own"),
    "part of a pooling": Recipe(pooling="last/avg+own"),
    "transform": Recipe(pooling="last/avg", transforms=("normalize", "doubled")),
    "prompt": Recipe(prompt="asked:Find", pooling="last/avg"),
    "mean": Recipe(prompt="mean:[X] || asked:Find", pooling="last/avg"),
}


@pytest.mark.parametrize("recipe", OWN.values(), ids=OWN)
def test_code_and_version_of_a_plugin_decide_the_fingerprint(recipe, package, tiny_backbone):
    def fingerprint(**changes):
        package.load(**changes)
        return TorchEncoder(recipe, tiny_backbone("bert"), {}).fingerprint

    first = fingerprint()
    assert fingerprint() == first
    assert len({first, fingerprint(factor=2.0), fingerprint(version="1.1")}) == 3


def test_an_encoder_without_plugins_keeps_its_fingerprint(package, tiny_backbone):
    package.load()
    encoder = TorchEncoder(RECIPES["last-avg"], tiny_backbone("bert"), {})
    assert not encoder.extensions and "extensions" not in encoder.provenance
    before = encoder.fingerprint
    package.load(factor=3.0)
    assert TorchEncoder(RECIPES["last-avg"], tiny_backbone("bert"), {}).fingerprint == before


def test_eval_and_embed_notice_a_changed_formula(package, run, bert_folder, tmp_path):
    recipe = f'{{"backbone": "{bert_folder}", "pooling": "last/own"}}'
    texts = tmp_path / "texts.txt"
    texts.write_text("A cat sleeps.\nTwo men walk.\n")
    vectors = tmp_path / "vectors.npy"

    def scores():
        ran = run("eval", recipe, "--task", "demo", "--format", "json")
        return [row["value"] for row in json.loads(ran.out)["results"]]

    def embed(*options):
        return run("embed", texts, "-o", vectors, "--model", recipe, *options)

    package.load()
    first = scores()
    assert scores() == first
    assert embed().code == embed().code == 0
    package.load(factor=-1.0, shift=2.0)
    assert scores() != first
    assert embed().code == 2 and "exists" in embed().err
    assert embed("--force").code == 0


def test_the_record_of_a_training_names_the_code_that_made_it(
    package, bert_folder, tmp_path, registry
):
    pairs = write_graded_pairs(tmp_path / "pairs.tsv")

    def train():
        given = {"backbone": str(bert_folder), "on": str(pairs), "batch_size": 4}
        return pc.train("owncse", SENTENCES, name="own", resume=True, **given)

    package.load()
    train()
    facts = registry.load_manifest("own").provenance["trained"]
    rows = {(row["table"], row["name"]): row for row in facts["extensions"]}
    assert rows.keys() == {("methods", "owncse"), ("objectives", "plain"), ("poolings", "own")}
    assert {row["distribution"] for row in rows.values()} == {"own-encoders"}
    (record,) = {row["record"] for row in rows.values()}
    entry = registry.load_manifest("own")
    write_card(tmp_path, entry, entry.recipe, use="")
    assert record[:16] in (tmp_path / "README.md").read_text()
    train()  # nothing changed
    package.load(factor=2.0)
    with refusal("code"):
        train()


def test_a_row_that_a_program_puts_in_itself_counts(tiny_backbone, monkeypatch):
    monkeypatch.setitem(WEIGHTS, "mine", WEIGHTS["avg"])
    encoder = TorchEncoder(Recipe(pooling="last/mine"), tiny_backbone("bert"), {})
    assert [extension.name for extension in encoder.extensions] == ["mine"]
