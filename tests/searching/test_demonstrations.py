"""``search-templates --mode demonstrations``: examples as PromptEOL writes them, raced against none."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.tasks import Pairs, STSTask
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation.evaluator import evaluate
from promptcli.recipe import RECIPES
from promptcli.searching.template_space import demonstrations
from tests.tiny import SENTENCES

PLAIN = 'This sentence : "[X]" means in one word:"'
PAIRS = 'rain\twater that falls\ncat\ta small animal\nwalk\tWho is "walking" here?\n'


@pytest.fixture(scope="module")
def task():
    first, second = (list(side) for side in zip(*itertools.combinations(SENTENCES, 2), strict=True))
    gold = np.random.default_rng(0).permutation(len(first)) / 10
    return STSTask("demo", "dev", "senteval", "as made up", {"all": Pairs(first, second, gold)})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text(PAIRS)
    return path


def test_an_example_is_written_as_the_papers():
    pairs = [("Smoking", "A man is smoking."), ("venison", "meat from a deer"), ("why", 'Who said "no"?')]
    assert demonstrations([*pairs, pairs[0]], RECIPES["prompteol"]) == [
        f'This sentence : "A man is smoking." means in one word:"Smoking".{PLAIN}',
        f'This sentence : "meat from a deer." means in one word:"Venison".{PLAIN}',
        f'This sentence : "Who said \'no\'." means in one word:"Why".{PLAIN}',
    ]
    with pytest.raises(UsageError, match=r"has \[X\]"):
        demonstrations([("slot", "this [X] here")], RECIPES["prompteol"])


def test_every_example_and_none_have_their_own_figures(tiny_backbone, task, file):
    backbone = tiny_backbone("llama")
    found = searched(backbone, task, pairs=file, top=4)
    assert {row.choice for row in found.ranked} == {PLAIN, *demonstrations(_pairs(), RECIPES["prompteol"])}
    for row in found.ranked:
        recipe = RECIPES["prompteol"].replace(prompt=row.choice)
        score = evaluate([build_encoder(recipe, backbone=backbone)], [task])[0]
        assert row.value == pytest.approx(score.value, abs=1e-3)
    assert found.recipe.pooling == "last/last-token" and found.recipe.text_rule == "prompteol"
    assert found.entry("mine").recipe.prompt == found.best.choice
    one = searched(backbone, task, pairs=file, limit=1)
    assert len(one.ranked) == 2 and PLAIN in {row.choice for row in one.ranked}


def searched(backbone, task, **settings):
    encoder = pc.Encoder(pc.Recipe(backbone=backbone.name), backbone, {})
    return pc.search_templates(encoder, task, mode="demonstrations", **settings)


def _pairs():
    return [tuple(line.split("\t")) for line in PAIRS.splitlines()]


def test_the_command_and_what_it_refuses(run, tiny_folder, file, tmp_path):
    graded = tmp_path / "graded.tsv"
    rows = [f"{one}\t{other}\t{len(one) % 6}" for one, other in itertools.combinations(SENTENCES, 2)]
    graded.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    arguments = ["search-templates", "--mode", "demonstrations", "--on", graded]
    ran = run(*arguments, "--backbone", tiny_folder("llama"), "--pairs", file, "--json", "--name", "template")
    assert ran.code == 0, ran.err
    assert len(json.loads(ran.out)["searches"][0]["ranked"]) == 4
    assert run("embed", graded, "--text-field", "sentence1", "--model", "template", "-o", tmp_path / "x.npy").code == 0
    masked = run(*arguments, "--backbone", tiny_folder("bert"), "--pairs", file, "--name", "other")
    assert masked.code != 0 and "last-token" in masked.err and len(masked.err.strip().splitlines()) == 1
    other = run(*arguments, "--candidates", file, "--name", "other")
    assert other.code == 2 and "`candidates` belongs to `mode` free" in other.err
    empty = tmp_path / "empty.tsv"
    empty.write_text("")
    assert "empty.tsv" in run(*arguments, "--pairs", empty, "--name", "other").err


def test_the_pairs_of_ones_own_are_said(tiny_backbone, task, caplog):
    caplog.set_level("INFO")
    searched(tiny_backbone("gpt2"), task, limit=2)
    assert caplog.messages == ["assumed: 235 shipped words and definitions; others: `pairs` FILE"]
    with pytest.raises(PromptcliError, match="No such file"):
        searched(tiny_backbone("gpt2"), task, pairs=Path(__file__ + "x"))
