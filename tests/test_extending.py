"""The package of docs/extending.md is installed and used.

CONTRIBUTING.md's diff applies, and its method trains.
"""

import functools
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.processes import Program

ROOT = Path(__file__).parents[1]
EXTENDING, CONTRIBUTING = ROOT / "docs" / "extending.md", ROOT / "CONTRIBUTING.md"


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


DIFFS = blocks(CONTRIBUTING, "diff")

TRIED = """
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformers import ErnieConfig, ErnieForMaskedLM

import promptcli as pc
from promptcli.cli.command_line import main
from tests.tiny import _wordpiece


def run(*words):
    try:
        main([*words, "--offline"])
    except SystemExit as ended:
        assert not ended.code, words


tokenizer = _wordpiece()
config = ErnieConfig(
    vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=40, max_position_embeddings=64,
)
ErnieForMaskedLM(config).save_pretrained("ernie")
tokenizer.save_pretrained("ernie")

sentences = [
    "The cat sat on the mat.", "A man is playing the guitar.", "Two children run.", "It rains.",
]
Path("text.txt").write_text("\\n".join(sentences * 4))
pairs = [f"{one}\\t{other}\\t{n}" for n, (one, other) in enumerate(zip(sentences, sentences[::-1]))]
head = "sentence1\\tsentence2\\tscore"
Path("pairs.tsv").write_text("\\n".join([head, *pairs]))
small = (
    *("--batch-size", "4", "--epochs", "1", "--set", "eval-steps=2"),
    *("--on", "pairs.tsv", "--test", "pairs.tsv"),
)
"""
PLUGGED = """
def encode(**fields):
    return pc.load(pc.Recipe(backbone="ernie", **fields), dtype="float32").encode(sentences)


encoder = pc.load(pc.Recipe(backbone="ernie", pooling="last/median"), dtype="float32")
alone = np.stack([encoder.encode([sentence])[0] for sentence in sentences])
assert np.allclose(alone, encoder.encode(sentences), atol=1e-5)
assert (alone < encode(pooling="last/max")).all()
assert np.isfinite(encode(pooling="last/ditto:1-1")).all()
clipped = encode(pooling="last/cls", transforms=("clipped:1",))
assert np.array_equal(clipped, encode(pooling="last/cls").clip(-1, 1)) and (clipped == 1).any()
text = "Instruct: Find a cat. Query: [X]"
instructed = encode(prompt="instruct:Find a cat.", pooling="last/avg", period=False)
assert np.allclose(instructed, encode(prompt=text, pooling="last/avg", period=False), atol=1e-6)

median = ("--backbone", "ernie", "--pooling", "last/median", "--dtype", "float32")
run("embed", "text.txt", "-o", "text.csv", *median)
written = np.loadtxt("text.csv", delimiter=",", dtype=np.float32)
assert np.array_equal(written, encoder.encode(sentences * 4))
run("index", "build", "text.csv", "-o", "index")

Path("SentEval/BIOSSES").mkdir(parents=True)
Path("SentEval/BIOSSES/pairs.tsv").write_text("\\n".join(["sentence1\\tsentence2\\tscore", *pairs]))
scores = pc.evaluate(encoder, tasks=["BIOSSES"], data_dir="SentEval")
assert scores[0].task == "BIOSSES" and scores[0].pairs == 4
for tasks in ("science", "folder:SentEval/BIOSSES"):
    assert pc.evaluate(encoder, tasks, data_dir="SentEval")[0].value == scores[0].value
run(*COMPARED, "--task", "SentEval/BIOSSES/pairs.tsv")

ours = ("--data", "text.txt", "--backbone", "ernie", "--set", "share=0.3", "--name", "mine")
run("train", "meancse", *ours, *small, "--report-to", "scores")
assert Path("scores.tsv").read_text().splitlines()[-1].startswith("mine\\t4\\t")
assert pc.list_models()[-1].provenance["trained"]["share"] == 0.3
run("train", "meancse", "--dry-run")
run("count", "text.txt", "--least", "4", "--json")
run("embed", "text.txt", "-o", "parts", "--shards", "3", "--engine", "in-turn", *median)
assert len(list(Path("parts").glob("*.parquet"))) == 3
frame = pc.embed_dataset(pd.DataFrame({"text": sentences}), encoder, column="vector")
assert np.array_equal(np.stack(frame["vector"]), encoder.encode(sentences))
shutil.make_archive("zipped", "zip", "ernie")
zipped = pc.load(pc.Recipe(backbone="zipped.zip"), dtype="float32")
assert np.array_equal(zipped.encode(sentences), encode())
np.savez("words.npz", words=["the", "cat"], vectors=np.eye(2, 3, dtype=np.float32))
words = pc.load(pc.Recipe(backbone="npz:words.npz", pooling="static/avg"))
found = words.encode(["The cat", "cat", "it rains"])
assert found.tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 0]]
for file in ("words.cards",):
    Path(file).write_text("cat = A small animal.\\nrain = Water.\\n")
    run("embed", file, "-o", f"{file}.npy", *median)
    assert np.array_equal(np.load(f"{file}.npy"), encoder.encode(["A small animal.", "Water."]))
[line] = pc.search("Water", Path("words.cards"), k=1, model=encoder, explain=True)
assert line.text == "Water." and line.explanation["length"].figures == 1
compiled_models = []
torch.nn.Module.compile = lambda *_, **given: compiled_models.append(given)  # takes a minute
compiled = pc.load(pc.Recipe(backbone="ernie"), backend="compiled", dtype="float32")
assert np.allclose(compiled.encode(sentences), encode(), atol=1e-6)
assert compiled_models == [{"dynamic": True}]
static = pc.Recipe(backbone="ernie", pooling="static/avg")
assert "rows.npy" in pc.export(static, "arrays", to="numpy").load
assert np.load("arrays/rows.npy").shape[1] == 32
run("--help")
print("all there")
"""
METHOD = """
run("train", "meancse", "--data", "text.txt", "--backbone", "BERT", *small, "--name", "meant")
assert pc.load("meant").recipe.pooling == "last/avg"
print("all there")
"""


def _try(folder, script):
    """Run a script with the packages of a folder, promptcli loaded again."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "promptcli"]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    exec(compile(script, "tried", "exec"), {})


def tried(folder, script):
    """Return what a script prints on stdout and on stderr."""
    running = Program(main=functools.partial(_try, folder, script))
    out, err = running.communicate()
    assert running.returncode == 0, err.decode()[-3000:]
    return out.decode(), err.decode()


def install(folder, module, entry_points):
    """Install a distribution of one module, as pip lays it down."""
    (folder / "my_encoders.py").write_text(module)
    about = folder / "my_encoders-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-encoders\nVersion: 1.0\n")
    with (about / "entry_points.txt").open("w") as file:
        for group, rows in entry_points:
            file.writelines([f"[{group}]\n", *(f"{name} = {at}\n" for name, at in rows.items())])


def test_an_installed_package_adds_rows_to_every_table(here):
    groups = tomllib.loads(blocks(EXTENDING, "toml")[0])["project"]["entry-points"]
    code = "".join(path.read_text() for path in (ROOT / "promptcli").rglob("*.py"))
    tables = re.findall(r" = (?:extensions\.)?Table(?:\[.*\])?\(\s*\"(\w+)\"", code)
    assert set(groups) == {f"promptcli.{name}" for name in tables}
    broken = {"broken": "my_encoders:Nothing", "avg": "my_encoders:Median"}
    groups["promptcli.poolings"] |= broken
    install(here, "\n".join(blocks(EXTENDING, "python")), groups.items())
    compared = re.search(r"`promptcli (eval .*) --task demo`", EXTENDING.read_text())[1]
    assert "median" in compared
    out, err = tried(here, TRIED + PLUGGED.replace("COMPARED", repr(shlex.split(compared))))
    assert out.splitlines()[-1] == "all there"
    for left_out in (
        "'broken' that my_encoders:Nothing adds to poolings is left out: AttributeError",
        "'avg' that my_encoders:Median adds to poolings is left out: ValueError: that name is",
    ):
        assert err.count(f"the row {left_out}") == 1, err
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    listed = "Plug-ins count Count the long lines of a file."
    for word in ("meancse", "share", listed, '{"lines": 8}'):
        assert word in shown, word


def test_the_diff_applies_and_its_method_works(bert_folder, tmp_path, monkeypatch):
    assert len(DIFFS) == 1
    shutil.copytree(
        ROOT / "promptcli", tmp_path / "promptcli", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    command = ["git", "apply", "--whitespace=nowarn"]
    applied = subprocess.run(command, input=DIFFS[0], text=True, cwd=tmp_path, capture_output=True)
    assert applied.returncode == 0, applied.stderr
    monkeypatch.chdir(tmp_path)
    assert (
        tried(tmp_path, TRIED + METHOD.replace("BERT", str(bert_folder)))[0].splitlines()[-1]
        == "all there"
    )
