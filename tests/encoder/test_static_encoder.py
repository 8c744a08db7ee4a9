"""A static encoder computes without torch what the encoder of the same recipe computes on it."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import promptcli as pc
from promptcli.backbones import kernels
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.static_encoder import StaticEncoder, as_bfloat16
from promptcli.models.loading import open_encoder, open_torch_encoder
from promptcli.recipe import ModelChoice
from tests.comparing import gap

SENTENCES = ["A cat sleeps.", "Two dogs play.", "", "naïve Ａ\t猫", "the " * 600, "A cat sleeps."]

#: Run in one new process; each ends with a look at what was imported.
COMMANDS = [
    ["similarity", "A man plays.", "Somebody plays.", "-m", "mini-static"],
    ["embed", "lines.txt", "-m", "mini-static", "-o", "lines.npy"],
    ["search", "a cat", "lines.txt"],
    ["similarity", "Der Hund schläft.", "Ein Hund ist müde."],
    ["search", "ein Hund", "german.txt"],
    ["index", "build", "lines.txt", "-o", "built", "-m", "mini-static"],
    ["index", "add", "built", "more.txt"],
    ["index", "search", "built", "a cat"],
    ["index", "dups", "built"],
    ["index", "build", "lines.txt", "-o", "halved", "-m", "mini-static", "--dtype", "bfloat16"],
    ["index", "add", "halved", "more.txt"],
    ["index", "sync", "synced", "lines.txt", "-m", "mini-static"],
    ["index", "search", "synced", "a cat"],
    ["index", "sync", "notes", "german.txt"],
    ["index", "search", "notes", "ein Hund"],
]
CHILD = """
import json, sys
from promptcli.cli.command_line import main
for command in json.loads(sys.argv[1]):
    sys.argv = ["promptcli", *command]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, (command, ended.code)
    assert "torch" not in sys.modules, command
    assert command[0] == "index" or "faiss" not in sys.modules, command
import promptcli as pc
encoder = pc.load("mini-static")
assert encoder.encode(["a"]).shape == (1, 256) and "static/avg" in repr(encoder)
assert pc.similarity("a cat", "a cat", encoder) > 0.999
assert len(encoder.fingerprint) == 64 and encoder.in_role("query") is encoder
assert "torch" not in sys.modules
assert isinstance(encoder, pc.Encoder)
"""


def test_commands_with_a_static_encoder_do_not_import_torch(tmp_path):
    (tmp_path / "lines.txt").write_text("A cat sleeps.\nA cat is asleep.\nPrices fell.\n")
    (tmp_path / "more.txt").write_text("A dog runs.\n")
    (tmp_path / "german.txt").write_text("Der Hund schläft.\nDie Preise sind gefallen.\n")
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(COMMANDS)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("0.6261\n")


def equal(static, whole):
    """Compare everything that a caller and a stored document see of two encoders."""
    assert type(static) is StaticEncoder and type(whole) is TorchEncoder
    one, other = static.encode_report(SENTENCES), whole.encode_report(SENTENCES)
    assert one.vectors.dtype == np.float32
    assert gap(one.vectors, other.vectors) <= 1e-6
    assert np.array_equal(one.truncated, other.truncated)
    assert np.array_equal(one.tokens, other.tokens)
    for name in ("fingerprint", "provenance", "recipe", "max_length", "width", "name", "prompts"):
        assert getattr(static, name) == getattr(whole, name), name
    assert repr(static) == repr(whole)


@pytest.mark.parametrize(
    "choice",
    [
        ModelChoice("mini-static"),
        ModelChoice("static-avg"),
        ModelChoice("mini-static", changes={"max_length": 12}),
        ModelChoice("static-avg", changes={"transforms": ("normalize", "truncate:32")}),
        ModelChoice("static-avg", changes={"text_rule": "lower", "period": True}),
    ],
    ids=str,
)
def test_a_static_encoder_equals_the_one_on_torch(choice):
    equal(open_encoder(choice), open_torch_encoder(choice))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "mapped"])
def test_a_table_of_words_equals_the_one_on_torch(kind, tmp_path, table_folder):
    folder = table_folder(tmp_path, kind)
    equal(open_encoder(str(folder)), open_torch_encoder(str(folder)))
    short = ModelChoice(str(folder), changes={"max_length": 2})
    equal(open_encoder(short), open_torch_encoder(short))


@pytest.fixture
def table_folder():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    def make(folder, kind):
        words = ["[UNK]", *"A cat sleeps Two dogs play the".split()]
        tokenizer = Tokenizer(
            WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
        )
        tokenizer.pre_tokenizer = Whitespace()
        tokenizer.save(str(folder / "tokenizer.json"))
        config = {"model_type": "model2vec", "normalize": True, "max_length": 512}
        (folder / "config.json").write_text(json.dumps(config))
        rows = torch.randn(len(words), 6, generator=torch.Generator().manual_seed(0))
        stored = {"embeddings": rows.to({"float16": torch.float16}.get(kind, torch.bfloat16))}
        if kind == "mapped":
            stored = {
                "embeddings": rows,
                "mapping": torch.arange(len(words)).flip(0),
                "weights": torch.rand(len(words), dtype=torch.float64),
            }
        save_file(stored, folder / "model.safetensors")
        return folder

    return make


def test_a_file_of_word_vectors_equals_the_one_on_torch(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("cat 1 2\nsleeps. 3 4.5\na -1 0.25\n")
    equal(open_encoder(f"glove:{path}"), open_torch_encoder(f"glove:{path}"))


@pytest.mark.parametrize(
    "options",
    [
        {"device": "meta"},
        {"dtype": "int7"},
        {"prompt": "It is [X]"},
        {"prompt": "means"},
        {"max_length": 3_000},
        {"transforms": ("truncate:0",)},
        {"transforms": ("whitening",)},
        {"denoise": "hidden"},
    ],
    ids=str,
)
def test_what_needs_torch_has_the_same_errors_and_results(options):
    name = "static-avg"
    changes = {key: value for key, value in options.items() if key not in ("device", "dtype")}
    given = {key: value for key, value in options.items() if key in ("device", "dtype")}
    choice = ModelChoice(name, changes=changes)
    try:
        expected = open_torch_encoder(choice, **given)
    except pc.UsageError as error:
        with pytest.raises(pc.UsageError) as raised:
            open_encoder(choice, **given)
        assert str(raised.value) == str(error)
    else:
        encoder = open_encoder(choice, **given)
        assert type(encoder) is TorchEncoder and encoder.fingerprint == expected.fingerprint


def test_what_only_torch_has_comes_from_the_encoder_on_torch(tmp_path):
    encoder = pc.load("mini-static")
    vectors = encoder.encode(SENTENCES[:2])
    assert torch.equal(
        encoder.encode(SENTENCES[:2], convert_to_tensor=True), torch.from_numpy(vectors)
    )
    assert encoder.to("cpu") is encoder and str(encoder.device) == "cpu"
    assert torch.cuda.is_available() or encoder.to("auto") is encoder
    assert encoder.on_torch().backbone.name == "mini-bert"
    assert encoder.with_leading_text("so: ").recipe.prompt == "so: [X]"
    assert np.array_equal(pickle.loads(pickle.dumps(encoder)).encode(SENTENCES[:2]), vectors)
    encoder.save(tmp_path / "saved")
    assert np.allclose(pc.load(tmp_path / "saved").encode(SENTENCES[:2]), vectors, atol=1e-6)
    with pytest.raises(AttributeError):
        getattr(encoder, "no such name")


def test_a_text_in_front_equals_the_one_on_torch():
    texts = pc.recipe.LeadingTexts({"query": "so: "})
    entry = pc.models.entries.Entry("prompted", pc.RECIPES["static-avg"], prompts=texts)
    equal(open_encoder(entry).in_role("query"), open_torch_encoder(entry).in_role("query"))


@pytest.mark.parametrize("supported", [True, False])
def test_no_vector_depends_on_whether_the_processor_computes_in_bfloat16(monkeypatch, supported):
    monkeypatch.setattr(kernels, "cpu_computes_bfloat16", lambda: supported)
    static = open_encoder("mini-static", dtype="auto")
    assert static.provenance["dtype"] == "float32"
    equal(static, open_torch_encoder("mini-static", device="cpu", dtype="auto"))
    assert np.array_equal(static.encode(SENTENCES), pc.load("mini-static").encode(SENTENCES))


def test_rows_are_rounded_to_bfloat16_on_request():
    static = open_encoder("mini-static", dtype="bfloat16")
    assert static.provenance["dtype"] == "bfloat16"
    equal(static, open_torch_encoder("mini-static", device="cpu", dtype="bfloat16"))


def test_bfloat16_is_torchs():
    numbers = torch.randn(4096, generator=torch.Generator().manual_seed(0))
    numbers[:3] = torch.tensor([1.00390625, 1.01171875, 0.0])  # halfway between two, and zero
    assert np.array_equal(as_bfloat16(numbers.numpy()), numbers.bfloat16().float().numpy())
