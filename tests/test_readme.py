"""The README cannot lie: every ``$ promptcli`` line of it is run, in order, in one fresh folder."""

import itertools
import re
import shlex
from pathlib import Path

import pytest

from promptcli.data.demo import SENTENCES
from promptcli.encoder.recipe import RECIPES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ promptcli (.+)$", README, flags=re.MULTILINE)


@pytest.fixture
def senteval(tmp_path):
    """A SentEval folder in the native formats, with pairs of our own: each sentence with the next."""
    sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
    pairs = [(one, other, (row * 7 % 51) / 10) for row, (one, other) in enumerate(itertools.pairwise(sentences))][:60]
    root = tmp_path / "SentEval" / "data" / "downstream"
    for year, subset in (
        ("12", "MSRvid"),
        ("13", "headlines"),
        ("14", "images"),
        ("15", "belief"),
        ("16", "headlines"),
    ):
        folder = root / "STS" / f"STS{year}-en-test"
        folder.mkdir(parents=True)
        text = "".join(f"{one.lower()}\t{other.lower()}\n" for one, other, _ in pairs)
        (folder / f"STS.input.{subset}.txt").write_text(text)
        (folder / f"STS.gs.{subset}.txt").write_text("".join(f"{gold}\n" for _, _, gold in pairs))
    benchmark = root / "STS" / "STSBenchmark"
    benchmark.mkdir()
    for split in ("train", "dev", "test"):
        rows = (f"genre\tfile\t2015\t1\t{gold}\t{one.lower()}\t{other.lower()}\n" for one, other, gold in pairs)
        (benchmark / f"sts-{split}.csv").write_text("".join(rows))
    (root / "SICK").mkdir()
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        rows = (f"{n}\t{one}\t{other}\t{gold}\tNEUTRAL\n" for n, (one, other, gold) in enumerate(pairs))
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
        (root / "SICK" / f"{name}.txt").write_text(header + "".join(rows))
    return root


def test_the_readme_has_commands():
    assert len(COMMANDS) > 12
    assert {command.split()[0] for command in COMMANDS} >= {"embed", "similarity", "eval", "index", "fit", "models"}


def test_every_command_of_the_readme_runs(run, senteval, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = SENTENCES.read_text(encoding="utf-8").splitlines()[:400]
    (tmp_path / "sentences.txt").write_text("\n".join(few) + "\n", encoding="utf-8")
    (tmp_path / "more.csv").write_text('id,text\na1,"One more sentence, from a table."\na2,And another one.\n')
    for command in COMMANDS:
        ran = run(*shlex.split(command))
        assert ran.code == 0, f"{command}: {ran.err}"


def test_the_readme_names_every_recipe():
    assert [name for name in RECIPES if f"`{name}`" not in README] == []


def test_the_tree_in_the_readme_is_the_tree():
    tree = README.split("promptcli/\n", 1)[1].split("```", 1)[0]
    named = set(re.findall(r"^  (\w+)(?:/|\.py)", tree, flags=re.MULTILINE))
    there = {path.name.removesuffix(".py") for path in (ROOT / "promptcli").iterdir()} - {"__pycache__", "py.typed"}
    assert named == there - {"__init__", "__main__"}
