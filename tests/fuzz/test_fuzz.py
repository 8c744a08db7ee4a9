"""Whatever a file holds: a documented exit code, one line and no traceback, and nothing changed on
disk.

PROMPTCLI_FUZZ is the number of inputs in all, drawn anew each time; without it a few hundred, the
same every time.
"""

import functools
import json
import lzma
import os
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from promptcli.cli import command_line as entrance
from promptcli.errors import LONGEST_MESSAGE
from tests.fuzz.kinds import KINDS, TINY, Kind
from tests.published_folders import write_modules
from tests.senteval import write_transfer
from tests.tiny import SENTENCES, save_tiny

INPUTS = int(os.environ.get("PROMPTCLI_FUZZ", "0"))
#: The numbers given back by the program for each kind.
CODES = {0, 1, 2, 3, 4}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with a sound file of every kind; the current one while the tests run."""
    folder = tmp_path_factory.mktemp("fuzz") / "sound"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PROMPTCLI_HOME", str(folder / "home"))
        _write_inputs(folder)
        for line in MADE:
            _call(line)
        shutil.copytree(folder / "home" / "models" / "saved", folder / "shared")
        shutil.copytree(folder, folder.with_name("kept"))
        yield folder


@pytest.fixture(autouse=True)
def sound_home(sound, home, monkeypatch):
    """The home is the sound folder's, not the test's own."""
    monkeypatch.setenv("PROMPTCLI_HOME", str(sound / "home"))


#: Commands that write the sound vector files, the index that is searched, and the settings.
MADE = (
    *(f"embed text.txt -o bare.{kind} {TINY}" for kind in ("npy", "parquet")),
    "models import st --name saved --offline -q",  # so that the registry exists
    f"embed text.txt -o parts --shards 2 {TINY}",
    f"index build text.txt -o index -m last-avg {TINY}",
    "config backbone bert",
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _write_inputs(folder):
    from tests.source_files import write as write_named

    save_tiny("bert", folder / "bert")
    shutil.copytree(folder / "bert", folder / "model")
    shutil.copytree(folder / "bert", folder / "sharded")
    weights = dict.fromkeys(load_file(folder / "bert" / "model.safetensors"), "model.safetensors")
    listed = {"metadata": {}, "weight_map": weights}
    (folder / "sharded" / "model.safetensors.index.json").write_text(json.dumps(listed))
    texts, numbers = SENTENCES[:4], range(4)
    pairs = [
        f"{one}\t{other}\t{number}\n"
        for one, other, number in zip(texts, SENTENCES[4:], numbers, strict=False)
    ]
    rows = [
        {"text": text, "id": number, "a": "x", "b": "y", "c": number}
        for number, text in enumerate(texts)
    ]
    for name, content in {
        "text.txt": "".join(f"{text}\n" for text in texts),
        "text.txt.gz": "".join(f"{text}\n" for text in texts),
        "table.csv": 'id,text,a\n1,"a, b",x\n2,the dog,y\n',
        "pairs.tsv": "sentence1\tsentence2\tscore\n" + "".join(pairs),
        "labelled.tsv": "premise\thypothesis\tlabel\n"
        + "".join(f"{p[:-2]}{n % 3}\n" for n, p in enumerate(pairs * 3)),
        "rows.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "recipe.json": json.dumps(
            {"prompt": "[X] means [MASK] .", "pooling": "last/mask", "transforms": []}
        ),
        "candidates.txt": "[X] is [MASK]\n[X] means [MASK]\n",
        "words.txt": "one 0.1 0.2\ntwo 0.3 -0.4\nthe 0.5 0.6\n",
    }.items():
        write_named(folder, name, content)
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    dictionary = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0, 2], pa.int32()), pa.array(texts[:3])
    )
    pq.write_table(pa.table({"text": dictionary}), folder / "dictionary.parquet")
    (folder / "text.txt.xz").write_bytes(lzma.compress((folder / "text.txt").read_bytes()))
    bench = folder / "senteval" / "STS" / "STSBenchmark"
    bench.mkdir(parents=True)
    lines = [
        f"main\tMSRvid\t2012\t{n}\t{n}.0\t{p.rpartition(chr(9))[0]}\n" for n, p in enumerate(pairs)
    ]
    (bench / "sts-test.csv").write_text("".join(lines))
    write_transfer(folder / "senteval")
    _write_foreign(folder)


def _write_foreign(folder):
    """Write what ``models import`` reads: a sentence-transformers folder, an adapter of LoRA."""
    shutil.copytree(folder / "bert", folder / "st")
    numbers = {"linear.weight": torch.eye(16), "linear.bias": torch.zeros(16)}
    dense = ("Dense", {"activation_function": "torch.nn.modules.activation.Tanh"}, numbers)
    write_modules(folder / "st", {"pooling_mode_mean_tokens": True}, [dense])
    shutil.copytree(folder / "bert", folder / "lora" / "base")
    base = {"base_model_name_or_path": "base"}
    write(
        folder / "lora" / "adapter_config.json",
        json.dumps({**base, "peft_type": "LORA", "lora_alpha": 2}),
    )
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_{}.weight"
    halves = {name.format("A"): torch.ones(2, 16), name.format("B"): torch.ones(16, 2)}
    save_file(halves, folder / "lora" / "adapter_model.safetensors")


def _call(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        entrance.main(shlex.split(line))
    assert not ended.value.code, line


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return every folder (None) and file but locks, with its content."""
    found: dict[str, bytes | None] = {}
    for place, folders, files in os.walk(folder):
        below = os.path.relpath(place, folder)
        found |= {os.path.normpath(os.path.join(below, name)): None for name in folders}
        for name in files:
            if not name.endswith(".lock"):
                with open(os.path.join(place, name), "rb") as file:
                    found[os.path.normpath(os.path.join(below, name))] = file.read()
    return found


@functools.cache
def kept_contents(kept: Path) -> dict[str, bytes | None]:
    """Return what the untouched copy of the sound folder holds."""
    return contents(kept)


def holds(
    kind: Kind, content: bytes, command: str, sound: Path, capfd: pytest.CaptureFixture[str]
) -> int:
    """Assert the property for one content of a file and one command.

    Return the exit code. All is as before then.
    """
    path = next(iter(sorted(sound.glob(kind.pattern))))
    path.write_bytes(content)
    (sound / "out").mkdir(exist_ok=True)
    name = str(path.relative_to(sound))
    before = {**kept_contents(sound.with_name("kept")), name: content, "out": None}
    capfd.readouterr()
    try:
        with pytest.raises(SystemExit) as ended:
            entrance.main(shlex.split(command.replace("FILE", name)))
        out, err = capfd.readouterr()
        code = ended.value.code or 0
        after = contents(sound)
        assert code in CODES and "Traceback" not in out + err
        assert not [name for name in after if name.endswith(".tmp")]
        changed = {
            name
            for name in before.keys() | after.keys()
            if before.get(name, ...) != after.get(name, ...)
        }
        if code:
            assert (
                err.startswith("promptcli: ")
                and err.count("\n") == 1
                and len(err) <= LONGEST_MESSAGE + 1
            ), err
            assert not changed
            assert not out
        else:
            assert len(err.splitlines()) <= 1, err
            assert not [name for name in changed if name.split("/")[0] not in kind.writes]
        return int(code)
    finally:
        _restore(sound)


def _restore(sound: Path) -> None:
    shutil.rmtree(sound / "out", ignore_errors=True)
    there, wanted = contents(sound), kept_contents(sound.with_name("kept"))
    for name in sorted(there.keys() - wanted.keys(), reverse=True):
        (sound / name).rmdir() if there[name] is None else (sound / name).unlink()
    for name, content in wanted.items():
        if name in there and there[name] == content:
            continue
        if content is None:
            (sound / name).mkdir(parents=True, exist_ok=True)
        else:
            (sound / name).parent.mkdir(parents=True, exist_ok=True)
            (sound / name).write_bytes(content)


@pytest.mark.parametrize("name", KINDS)
def test_whatever_a_file_holds(name, sound, capfd):
    kind = KINDS[name]
    content = next(iter(sorted(sound.glob(kind.pattern)))).read_bytes()
    for command in kind.commands:  # else the property would hold for want of anything read
        assert holds(kind, content, command, sound, capfd) == 0, command

    @settings(
        max_examples=max(INPUTS // len(KINDS), 6),
        derandomize=not INPUTS,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if INPUTS else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(kind.damage(content), st.sampled_from(kind.commands))
    def check(damaged, command):
        holds(kind, damaged, command, sound, capfd)

    check()


#: What once broke the promise: kind, its content (or what is made of the sound one). If not every
#: command refuses with 2 or 4, all codes that occur come third.
FOUND = {
    "text that is no UTF-8": (
        "parquet",
        lambda sound: sound.replace(b"A man", b"\x80 man"),
        {0, 2},
    ),
    "a column whose name is no UTF-8": (
        "parquet",
        lambda sound: sound.replace(b"text", b"te\xff\xff"),
    ),
    "a field that its library prints": (
        "tokenizer.json",
        lambda it: it.replace(b'"single_', b'"ingle_', 1),
    ),
    "less than a batch, which left a folder for runs": (
        "labelled pairs",
        lambda sound: b"\n".join(sound.split(b"\n")[:3]),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_once_broke_the_promise(name, sound, capfd):
    kind, content, *codes = FOUND[name]
    path = next(iter(sorted(sound.glob(KINDS[kind].pattern))))
    damaged = content(path.read_bytes()) if callable(content) else content
    assert damaged != path.read_bytes()
    found = {holds(KINDS[kind], damaged, command, sound, capfd) for command in KINDS[kind].commands}
    assert found == codes[0] if codes else found <= {2, 4}, found
