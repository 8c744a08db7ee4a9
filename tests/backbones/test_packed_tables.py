"""A table of words in 4 bits gives the vectors of its dequantized rows, with torch and without."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

import promptcli as pc
from promptcli.backbones.checking import read_definition
from promptcli.backbones.tokenizer import splits_at_blanks
from promptcli.backbones.word_tables import TableTokenizer
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.static_encoder import StaticEncoder
from tests.comparing import refusal

TOKENS = ["[UNK]", "katze", "haus", "tür", "猫", "家", "haustür", "s", "e", "ka"]
WIDTH = 64
TEXTS = ["Katze", "Haustüren, haus", "家猫", "TÜR haus", "tu\u0308r haus", "☂", "", "kas"]


def packed_folder(folder, changes=()):
    """A table whose numbers of 4 bits are counted by hand; its rows."""
    draw = np.random.default_rng(0)
    numbers = draw.integers(0, 16, (len(TOKENS), WIDTH))
    scales = draw.uniform(0.01, 1, (len(TOKENS), WIDTH // 32)).astype(np.float16)
    halves = np.zeros((len(TOKENS), WIDTH // 2), np.uint8)
    rows = np.zeros((len(TOKENS), WIDTH), np.float32)
    for token in range(len(TOKENS)):
        for place in range(WIDTH):
            block, inside = divmod(place, 32)
            high, byte = divmod(inside, 16)
            halves[token, block * 16 + byte] += numbers[token, place] << (4 * high)
            rows[token, place] = (numbers[token, place] - 8) * np.float32(scales[token, block])
    tensors = {"embedding.packed": halves, "embedding.scales": scales} | dict(changes)
    save_file(tensors, folder / "model.safetensors")
    ids = {token: number for number, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", continuing_subword_prefix=""))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return rows


MARKED = [
    "=\u0338 = \u0338",  # one mark of two characters, and two
    "A\u00a0b\tc\nd  e",
    "Straße, STRASSE! ﬁn ① ２０ n\u0303o",
    "a|b ~ c_d (e)",
    "猫と家。☂️x ☂y",
    "",
    " ",
    "e " * 100,
]


@pytest.mark.parametrize(
    "model",
    [
        models.Unigram(
            [("[UNK]", 0.0), *((mark, -2.0) for mark in "sabcdenñ≠=|~2猫家"), ("ss", -3.0)], 0
        ),
        models.WordPiece(
            {"[UNK]": 0, **{token: number for number, token in enumerate([*"abcdesn=|", "ss"], 1)}},
            unk_token="[UNK]",
            continuing_subword_prefix="",
        ),
    ],
)
def test_tokens_are_those_of_the_definition_though_words_are_read_once(tmp_path, model):
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace("ß", "ss"),
            normalizers.Replace(Regex(r"[^\sa-eñno-sx\]猫家☂|~=≠_()!,.2]"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    assert splits_at_blanks(json.loads(tokenizer.to_str()))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rows = tokenizer.get_vocab_size()
    path = tmp_path / "tokenizer.json"
    read = TableTokenizer(path, read_definition(path), rows, max_length=None)
    for _ in range(2):  # the second time, all words are known
        for text, ids in zip(MARKED, read.encode_ragged(MARKED), strict=True):
            whole = tokenizer.encode(text, add_special_tokens=False).ids
            assert ids == (whole or [rows]), text


@pytest.mark.parametrize(
    ("normalizer", "splitting"),
    [
        (normalizers.Strip(), pre_tokenizers.BertPreTokenizer()),
        (normalizers.NFKC(), pre_tokenizers.Whitespace()),
        (
            normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("a b", "c")]),
            pre_tokenizers.BertPreTokenizer(),
        ),
        (
            normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex("[a-c]+ ?"), "")]),
            pre_tokenizers.BertPreTokenizer(),
        ),
    ],
)
def test_a_tokenizer_that_may_look_further_than_a_word_reads_whole_texts(normalizer, splitting):
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitting
    assert not splits_at_blanks(json.loads(tokenizer.to_str()))


def load(folder):
    return pc.load(pc.Recipe(backbone=str(folder), pooling="static/avg"))


def test_vectors_are_those_of_the_dequantized_rows(tmp_path):
    rows = packed_folder(tmp_path)
    encoder = load(tmp_path)
    assert isinstance(encoder, StaticEncoder)
    wanted = np.zeros((len(TEXTS), WIDTH), np.float32)
    tokens = {
        "Katze": "katze",
        "Haustüren, haus": "[UNK] [UNK] haus",  # no token for "r", none for the comma
        "家猫": "家 猫",
        "TÜR haus": "tür haus",
        "tu\u0308r haus": "tür haus",
        "☂": "[UNK]",
        "kas": "ka s",
    }
    for number, text in enumerate(TEXTS):
        ids = [TOKENS.index(token) for token in tokens.get(text, "").split()]
        if ids:
            wanted[number] = rows[ids].mean(axis=0)
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-6)


def test_torch_has_the_same_rows(tmp_path):
    rows = packed_folder(tmp_path)
    encoder = load(tmp_path)
    assert isinstance(encoder.on_torch(), TorchEncoder)
    np.testing.assert_array_equal(
        encoder.on_torch().backbone.word_embeddings[: len(rows)].numpy(), rows
    )
    np.testing.assert_allclose(encoder.on_torch().encode(TEXTS), encoder.encode(TEXTS), atol=1e-6)


def test_a_saved_table_gives_the_same_vectors(tmp_path):
    packed_folder(tmp_path)
    encoder = load(tmp_path)
    encoder.save(tmp_path / "saved")
    np.testing.assert_array_equal(pc.load(tmp_path / "saved").encode(TEXTS), encoder.encode(TEXTS))


def test_it_starts_without_torch(tmp_path):
    packed_folder(tmp_path)
    program = (
        "import sys, promptcli as pc;"
        f"e = pc.load(pc.Recipe(backbone={str(tmp_path)!r}, pooling='static/avg'));"
        "assert e.encode(['katze']).any(); assert 'torch' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding.packed": np.zeros((len(TOKENS), WIDTH), np.uint8)},
        {"embedding.packed": np.zeros((len(TOKENS), WIDTH // 2), np.int8)},
        {"embedding.packed": np.zeros((3, WIDTH // 2), np.uint8)},
        {"embedding.packed": np.zeros(5, np.uint8)},
        {"embedding.scales": np.zeros((len(TOKENS), WIDTH // 32), np.float32)},
        {
            "embedding.packed": np.zeros((len(TOKENS), 0), np.uint8),
            "embedding.scales": np.zeros((len(TOKENS), 0), np.float16),
        },
    ],
)
def test_tensors_that_do_not_fit_are_refused(tmp_path, changes):
    packed_folder(tmp_path, changes)
    with refusal(r"embedding\.packed"):
        load(tmp_path)
