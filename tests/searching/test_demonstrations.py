"""``search-templates --mode demonstrations``: examples as PromptEOL writes them, raced against none."""

import pytest

import promptcli as pc
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import evaluate
from promptcli.recipe import RECIPES
from promptcli.searching.template_space import demonstrations
from tests.searching.pairs import TASK, write_pairs

PLAIN = 'This sentence : "[X]" means in one word:"'
PAIRS = 'rain\twater that falls\ncat\ta small animal\nwalk\tWho is "walking" here?\n'


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


def test_every_example_and_none_have_their_own_figures(tiny_backbone, file, caplog):
    caplog.set_level("INFO")
    backbone = tiny_backbone("llama")
    encoder = pc.Encoder(pc.Recipe(backbone=backbone.name), backbone, {})

    def search(**settings):
        return pc.search_templates(encoder, TASK, mode="demonstrations", **settings)

    found = search(pairs=file, top=4)
    pairs = [tuple(line.split("\t")) for line in PAIRS.splitlines()]
    assert {row.choice for row in found.ranked} == {PLAIN, *demonstrations(pairs, RECIPES["prompteol"])}
    for row in found.ranked:
        recipe = RECIPES["prompteol"].replace(prompt=row.choice)
        score = evaluate([build_encoder(recipe, backbone=backbone)], [TASK])[0]
        assert row.value == pytest.approx(score.value, abs=1e-3)
    assert found.recipe.pooling == "last/last-token" and found.recipe.text_rule == "prompteol"
    assert found.entry("mine").recipe.prompt == found.best.choice
    one = search(pairs=file, limit=1)
    assert len(one.ranked) == 2 and PLAIN in {row.choice for row in one.ranked}
    search(limit=2)
    assert "assumed: 235 shipped words and definitions; others: `pairs` FILE" in caplog.messages


def test_the_command_and_its_refusals(run, tiny_folder, file, tmp_path):
    arguments = ["search-templates", "--mode", "demonstrations", "--on", write_pairs(tmp_path), "--name", "template"]
    ran = run(*arguments, "--backbone", tiny_folder("llama"), "--pairs", file, "--json")
    assert len(ran.json["searches"][0]["ranked"]) == 4
    assert run("embed", file, "--text-field", "rain", "--model", "template", "-o", tmp_path / "x.npy").code == 0
    for given, message in (
        (("--backbone", tiny_folder("bert"), "--pairs", file), "last-token"),
        (("--pairs", tmp_path / "none.tsv"), "No such file"),
    ):
        ran = run(*arguments, *given, "--name", "other", "-q")
        assert ran.code and message in ran.err and ran.err.count("\n") == 1
