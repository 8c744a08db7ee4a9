"""Word vectors in a backbone's place: both text formats, the average of known words, and all that
is refused.
"""

import gzip

import numpy as np
import pytest

from promptcli.backbones.by_name import load_backbone
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import PromptcliError
from promptcli.models.entries import portable
from promptcli.plugins.formats.word_files import read_word_vectors
from promptcli.recipe import Recipe
from tests.comparing import gap, refusal

VECTORS = {
    "the": [0.5, -1.0, 0.25],
    "dog": [1.0, 2.0, 3.0],
    "barks": [-4.0, 0.0, 1e-3],
    ",": [0.0, 0.125, 1.0],
}
LINES = [" ".join([word, *map(str, numbers)]) for word, numbers in VECTORS.items()]
GLOVE = "\n".join(LINES) + "\n"
# the first tool ends a line with a blank
WORD2VEC = f"{len(LINES)} 3\n" + "".join(f"{line} \n" for line in LINES)


def average(sentence):
    """The plain mean of the words that are there."""
    total, count = [0.0, 0.0, 0.0], 0
    for word in sentence.lower().split():
        if word in VECTORS:
            total = [one + other for one, other in zip(total, VECTORS[word], strict=True)]
            count += 1
    return [value / count for value in total] if count else total


@pytest.fixture
def glove(tmp_path):
    (tmp_path / "v.txt").write_text(GLOVE)
    return f"glove:{tmp_path / 'v.txt'}"


def static(backbone):
    return Recipe(backbone=backbone, pooling="static/avg")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("v.txt", GLOVE),
        ("v.vec", WORD2VEC),
        ("v.txt.gz", GLOVE),
        ("crlf.txt", GLOVE),
        ("bom.txt", f"\ufeff{WORD2VEC}"),
    ],
)
def test_both_formats_plain_and_gzipped(name, text, tmp_path):
    data = text.encode().replace(b"\n", b"\r\n") if name == "crlf.txt" else text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    row_of, rows = read_word_vectors(tmp_path / name)
    assert rows.dtype == np.float32 and not rows[0].any()
    assert list(row_of) == list(VECTORS) and np.array_equal(
        rows[[*row_of.values()]], np.float32([*VECTORS.values()])
    )


def test_a_recipe_means_the_same_from_every_folder_and_its_fingerprint_follows_the_vectors(here):
    for name, text in (("a.txt", GLOVE), ("b.txt", GLOVE), ("c.txt", GLOVE.replace("0.25", "0.5"))):
        (here / name).write_text(text)
    a, b, c = (build_encoder(static(f"glove:{here / name}.txt")).fingerprint for name in "abc")
    assert a == b != c
    assert portable(static("glove:a.txt")).backbone == f"glove:{here / 'a.txt'}"
    assert portable(static("glove:nowhere.txt")).backbone == "glove:nowhere.txt"


def test_words_with_blanks_inside_and_words_that_stand_twice(tmp_path):
    (tmp_path / "v.txt").write_text("one 1 2\n. . . 3 4\na\u00a0b 5 6\none 7 8\n12 9 10\n")
    row_of, rows = read_word_vectors(tmp_path / "v.txt")
    assert list(row_of) == ["one", ". . .", "a\u00a0b", "12"]
    assert rows[row_of["one"]].tolist() == [1, 2] and rows[row_of["12"]].tolist() == [9, 10]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GLOVE.encode() + b"cat 1 2\n", "line 5: 2 numbers after a word, expected 3"),
        (b"the 1 2\ncat 1 x\n", "line 2: could not convert string to float: 'x'"),
        (b"the 1 2\ncat 1 nan\n", "line 2: a number that is not finite"),
        (b"the 1 2\n\n", "line 2: 0 numbers after a word, expected 2"),
        (b"3 2\none 1 2\ntwo 3 4\n", "its first line says 3 words, but it holds 2; is it complete"),
        (b"9" * 5000 + b" 3\none 1 2 3\n", "line 2: 3 numbers after a word, expected 1"),
        (b"the 1 " + b"9" * 5000 + b"\n", "line 1: a number that is not finite"),
        (b"", "holds no word vectors"),
        (gzip.compress(GLOVE.encode() * 50, mtime=0)[:-20], "damaged"),
        (gzip.compress(b"the 1 2\n", mtime=0)[:4] + b"x" * 9, "line 1: damaged"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(content, message, tmp_path):
    path = tmp_path / ("v.gz" if content[:2] == b"\x1f\x8b" else "v.txt")
    path.write_bytes(content)
    with refusal(f"^{path}.*{message}") as caught:
        read_word_vectors(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "names no file"), ("nowhere.txt", r"'nowhere\.txt'"), (".", "is a folder")],
)
def test_what_is_not_a_file(name, message):
    with refusal(message, PromptcliError):
        build_encoder(static(f"glove:{name}"))


def test_word_vectors_are_not_a_language_model(glove):
    with refusal("no language model"):
        load_backbone(glove)


SENTENCES = [
    "The dog barks",
    "dog",
    "dog dog unknown barks",
    "dog , the",
    "nothing known",
    "",
    "  the\u00a0dog  ",
]


def test_vectors_are_the_average_of_the_known_words(glove, notes):
    encoder = build_encoder(static(glove))
    said = notes
    vectors = encoder.encode(SENTENCES)
    assert gap(vectors, [average(sentence) for sentence in SENTENCES]) < 1e-6
    assert not vectors[4:6].any() and vectors[:4].any(axis=1).all()
    assert (encoder.width, vectors.dtype, encoder.provenance["family"]) == (3, np.float32, "glove")
    assert said == ["v.txt: 4 word vectors of 3 dimensions, 0.0 MiB in memory"]
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert gap(alone, vectors) < 1e-6
    assert build_encoder(static(glove), dtype="bfloat16").provenance["dtype"] == "float32"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"pooling": "first-last/avg"}, "pooling 'first-last/avg'"),
        ({"prompt": "[X] means [MASK]"}, "prompt '\\[X\\] means \\[MASK\\]', period True"),
        ({"transforms": ("whitening",)}, "transforms \\['whitening'\\]"),
        ({"denoise": "hidden"}, "denoise 'hidden'"),
    ],
)
def test_only_the_static_average_is_allowed(changes, shown):
    with refusal(f"only .*static-avg averages, not {shown}") as caught:
        # known before any file is read
        build_encoder(static("glove:nowhere.txt").replace(**changes))
    assert "\n" not in str(caught.value)
