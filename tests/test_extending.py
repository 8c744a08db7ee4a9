"""The diffs of docs/extending.md and CONTRIBUTING.md apply to the package, and what they add works."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import Program

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "extending.md", ROOT / "CONTRIBUTING.md")
DIFFS = [diff for page in PAGES for diff in re.findall(r"^```diff\n(.*?)^```$", page.read_text(), flags=re.M | re.S)]

TRIED = """
import sys
from pathlib import Path

import numpy as np
from transformers import ErnieConfig, ErnieForMaskedLM

import promptcli
from promptcli.cli.app import main
from tests.tiny import _wordpiece

assert Path(promptcli.__file__).is_relative_to(Path.cwd()), promptcli.__file__
import promptcli as pc


def run(*words):
    try:
        main([*words, "--offline"])
    except SystemExit as ended:
        assert not ended.code, words


tokenizer = _wordpiece()
config = ErnieConfig(
    vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
    max_position_embeddings=64,
)
ErnieForMaskedLM(config).save_pretrained("ernie")
tokenizer.save_pretrained("ernie")

sentences = ["The cat sat on the mat.", "A man is playing the guitar.", "Two children run.", "It rains."]
Path("text.txt").write_text("\\n".join(sentences * 4))
encoder = pc.Encoder.from_recipe(pc.Recipe(backbone="ernie", pooling="last/median"), dtype="float32")
alone = np.stack([encoder.encode([sentence])[0] for sentence in sentences])
assert np.allclose(alone, encoder.encode(sentences), atol=1e-5)
largest = pc.Encoder.from_recipe(pc.Recipe(backbone="ernie", pooling="last/max"), dtype="float32").encode(sentences)
assert (alone < largest).all()
diagonal = pc.Encoder.from_recipe(pc.Recipe(backbone="ernie", pooling="last/ditto:1-1"), dtype="float32")
assert np.isfinite(diagonal.encode(sentences)).all()

run("embed", "text.txt", "-o", "text.csv", "--backbone", "ernie", "--pooling", "last/median", "--dtype", "float32")
written = np.loadtxt("text.csv", delimiter=",", dtype=np.float32)
assert np.array_equal(written, encoder.encode(sentences * 4))
run("index", "build", "text.csv", "-o", "index")

Path("SentEval/BIOSSES").mkdir(parents=True)
rows = [f"{one}\\t{other}\\t{number}" for number, (one, other) in enumerate(zip(sentences, sentences[::-1]))]
Path("SentEval/BIOSSES/pairs.tsv").write_text("\\n".join(["sentence1\\tsentence2\\tscore", *rows]))
scores = pc.evaluate(encoder, tasks=["BIOSSES"], data_dir="SentEval")
assert scores[0].task == "BIOSSES" and scores[0].pairs == 4

small = ("--batch-size", "4", "--epochs", "1", "--eval-steps", "2")
Path("words.tsv").write_text("woman\\tAn adult.\\ndog\\tIt barks.\\ndoor\\tIt opens.\\ngreen\\tA colour.\\n")
run("train", "--method", "defsent", "--data", "words.tsv", "--backbone", "ernie", *small, "--name", "tuned")
assert pc.load("tuned").recipe.pooling == "last/avg"
run("train", "meancse", "--data", "text.txt", "--backbone", "ernie", *small, "--name", "meant")
assert pc.load("meant").recipe.pooling == "last/avg"
print("all there")
"""


def _try(folder):
    """Run what is tried on the package in a folder, in the place of the one that is loaded."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "promptcli"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    exec(compile(TRIED, "tried", "exec"), {})


def test_the_diffs_apply_and_their_members_work(tmp_path, monkeypatch):
    assert len(DIFFS) == 6
    shutil.copytree(ROOT / "promptcli", tmp_path / "promptcli", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for diff in DIFFS:
        # what the package has already is taken out first
        for options in ([["-R"]] if "methods/defsent.py" in diff else []) + [[]]:
            command = ["git", "apply", "--whitespace=nowarn", *options]
            applied = subprocess.run(command, input=diff, text=True, cwd=tmp_path, capture_output=True)
            assert applied.returncode == 0, applied.stderr
    monkeypatch.chdir(tmp_path)
    running = Program(main=functools.partial(_try, tmp_path))
    out, err = running.communicate()
    assert running.returncode == 0, err.decode()[-3000:]
    assert out.decode().splitlines()[-1] == "all there"


@pytest.mark.parametrize("diff", DIFFS)
def test_a_new_member_is_one_file_at_most_and_a_line_or_two(diff):
    assert diff.count("--- /dev/null") <= 1
    changed = [part for part in re.split(r"^--- ", diff, flags=re.M) if part and not part.startswith("/dev/null")]
    for part in changed:
        assert len(re.findall(r"^\+(?!\+\+)", part, flags=re.M)) <= 8
