"""The files that others write and promptcli reads, faults they may have, and the commands that read
them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Damage = Callable[[bytes], st.SearchStrategy[bytes]]

#: Written into JSON unchanged, because no Python value becomes them.
RAW = [
    "1" * 5000,
    "-" + "9" * 30,
    "1e999",
    "NaN",
    "-Infinity",
    '"\\ud800"',
    '"\\u0000"',
    "[" * 100_000,
    '{"a":' * 3000,
    "[" * 70 + "]" * 70,
    "0x10",
    "'x'",
    "",
    '{"a": 1, "a": 2}',
    '"' + "x" * 3000 + '"',
    "1.5e-320",
    "true",
    "1e400",
]
WORDS = st.sampled_from(
    [
        *"mini last/avg [X] [MASK] text .. ../bert / white demo bert f /dev/null".split(),
        "a\nb",
        "\u2028",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 70)
    | st.floats()
    | st.text(max_size=8)
    | WORDS
    | st.sampled_from([2**31, 10**15, 2**63, -(2**63) - 1, 10**30, 1e308, 0.5])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | WORDS, inner, max_size=3)
    ),
    max_leaves=6,
)
_PLACE = "@@raw@@"


@st.composite
def any_bytes(draw: Any, content: bytes) -> bytes:
    """The content cut, with some bytes changed, taken out or put in; or another content
    altogether.
    """
    kind = draw(st.sampled_from(["cut", "change", "insert", "remove", "zero", "other", "twice"]))
    at = draw(st.integers(0, len(content)))
    some = draw(st.binary(min_size=1, max_size=6))
    if kind == "cut":
        return content[:at]
    if kind == "change":
        return content[:at] + some + content[at + len(some) :]
    if kind == "insert":
        return content[:at] + some + content[at:]
    if kind == "remove":
        return content[:at] + content[at + draw(st.integers(1, 40)) :]
    if kind == "zero":
        return content[:at] + bytes(len(content) - at)
    return content + content if kind == "twice" else draw(st.binary(max_size=120))


def _put(draw: Any, value: Any) -> Any:
    """Return a value with something wrong at one place of it, however deep."""
    inside = (
        list(value)
        if isinstance(value, dict)
        else list(range(len(value)))
        if isinstance(value, list)
        else []
    )
    if inside and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(inside))
        copied = value.copy()
        if draw(st.integers(0, 7)):
            copied[key] = _put(draw, value[key])
        else:
            del copied[key]
        return copied
    if isinstance(value, dict) and draw(st.booleans()):
        return value | {draw(st.text(max_size=6) | WORDS): draw(VALUES)}
    return draw(VALUES | st.just(_PLACE))


@st.composite
def any_json(draw: Any, content: bytes) -> bytes:
    """A JSON document with a wrong value, key or number in it, or no JSON at all."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):  # damaged already
        return draw(any_bytes(content))
    if not draw(st.integers(0, 5)):
        return draw(any_bytes(content))
    text = json.dumps(_put(draw, value), indent=draw(st.sampled_from([None, 1])))
    return text.replace(f'"{_PLACE}"', draw(st.sampled_from(RAW))).encode()


@st.composite
def any_json_lines(draw: Any, content: bytes) -> bytes:
    """Lines of JSON, some of them wrong, missing, doubled or of something else."""
    lines = [line for line in content.splitlines() if line] or [b"{}"]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        others = st.sampled_from([[b""], [lines[at]] * 2, [b"[]"], [b"null"], [b" \t"]])
        lines[at : at + 1] = draw(any_json(lines[at]).map(lambda line: [line]) | others)
    return draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"])).join(lines) + draw(
        st.sampled_from([b"\n", b""])
    )


_SIGNS = st.text(
    st.sampled_from('a cat,"\t;\r\x0b\x0c\x1a\0:.é\ufeff\u2028😀0123456789-') | st.characters(),
    max_size=30,
)

#: Long runs of one sign: the time of a pattern that goes back grows with their square.
_RUNS = st.builds(
    lambda sign, number, end: sign * number + end,
    st.sampled_from(["1", " ", ".", "-", '"', '""', ",", "\t", "/", "1,", "a"]),
    st.sampled_from([500, 30_000]),
    st.sampled_from(["", "x", '"', " z"]),
)


@st.composite
def any_text(draw: Any, content: bytes) -> bytes:
    """Lines of text and of anything else; other encodings, line ends and marks."""
    if draw(st.booleans()):
        return draw(any_bytes(content))
    lines = [
        *content.decode().splitlines()[: draw(st.integers(0, 3))],
        *draw(st.lists(_SIGNS | _RUNS, max_size=4)),
    ]
    end = draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))
    text = end.join(lines) + draw(st.sampled_from(["", end]))
    return draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\x1f\x8b"])) + text.encode(
        draw(st.sampled_from(["utf-8", "utf-8", "utf-16", "latin-1"])), "replace"
    )


@st.composite
def any_npy(draw: Any, content: bytes) -> bytes:
    """An .npy file whose header says anything, or a damaged one."""
    if draw(st.booleans()):
        return draw(any_bytes(content))
    sizes = st.sampled_from([0, 1, 2, 3, 16, 17, -1, 10**6, 2**31, 2**40, 2**62, 2**64])
    kinds = [
        "<f4",
        ">f4",
        "<f8",
        "<f2",
        "|O",
        "<U4",
        "|S3",
        "<c8",
        "<i8",
        "|b1",
        "<M8[ns]",
        "",
        "x",
        [["a", "<f4"]],
        4,
    ]
    header = {
        "descr": draw(st.sampled_from(kinds)),
        "fortran_order": draw(st.sampled_from([False, True, 3])),
        "shape": draw(st.lists(sizes, max_size=3).map(tuple) | st.just("x")),
    }
    text = (
        repr({key: value for key, value in header.items() if draw(st.integers(0, 20))}).encode()
        + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content[128:]


@st.composite
def any_safetensors(draw: Any, content: bytes) -> bytes:
    """A .safetensors file whose header says anything, or a damaged one."""
    if not draw(st.integers(0, 3)):
        return draw(any_bytes(content))
    size = int.from_bytes(content[:8], "little")
    header = draw(any_json(content[8 : 8 + size].rstrip()))
    length = draw(st.just(len(header)) | st.sampled_from([0, 2**20, 2**40, 2**63 + 1]))
    return length.to_bytes(8, "little") + header + content[8 + size :]


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    pattern: str  #: Names it in the sound folder; the first file that fits is damaged.
    damage: Damage
    commands: tuple[str, ...]
    writes: tuple[str, ...] = ("out",)  #: Folders that a command that ends well may change.


TINY = "--backbone bert --offline -q"
_FIT = f"fit --on FILE --name new {TINY} -m first-last-tfidf"
_READ = (f"embed FILE -o out/v.npy {TINY}", f"similarity FILE FILE {TINY}", _FIT)
_BY_NAME = f"embed FILE -o out/v.jsonl --text-field a --id-field id {TINY}"
_PAIRS = f"eval --task FILE:a,b,c -m last-avg {TINY}"
_STS = f"eval --data-dir senteval --task STS-B -m last-avg {TINY}"
_VECTORS = ("index build FILE -o out/ix -q",)
_RECIPE = f"similarity one two --model FILE {TINY}"
_SETTINGS = ("config", "config --json", "config data_dir senteval", f"eval --task pairs.tsv {TINY}")
_SEARCH = f"--limit 3 --on pairs.tsv {TINY}"
_TRANSFER = f"eval --task {{}} --fast --data-dir senteval -m last-avg {TINY}"
_IMPORT = "models import {} --name new --offline -q"
_ADAPTER = ("similarity one two --backbone lora --model cls --offline -q", _IMPORT.format("lora"))
_PROMPTED = "similarity one two --model prompt --backbone model --offline -q"
_FOLDER = (_PROMPTED, "templates manual --backbone model", _IMPORT.format("model"))
_WORDS = "similarity one two --backbone glove:FILE --pooling static/avg --prompt [X] -q"
_SAVING = ("out", "home")

KINDS: dict[str, Kind] = {
    "text": Kind("text.txt", any_text, _READ, _SAVING),
    "gzip": Kind("text.txt.gz", any_bytes, _READ, _SAVING),
    "csv": Kind("table.csv", any_text, (*_READ, _BY_NAME), _SAVING),
    "tsv": Kind("pairs.tsv", any_text, (f"eval --task FILE -m last-avg {TINY}", _FIT), _SAVING),
    "jsonl": Kind("rows.jsonl", any_json_lines, (*_READ, _PAIRS), _SAVING),
    "parquet": Kind("rows.parquet", any_bytes, (*_READ, *_VECTORS, _PAIRS), _SAVING),
    "labelled pairs": Kind(
        "labelled.tsv",
        any_text,
        (f"train sbert --data FILE --on pairs.tsv --batch-size 4 --epochs 1 {TINY}",),
        _SAVING,
    ),
    "sts file": Kind("senteval/STS/STSBenchmark/sts-test.csv", any_text, (_STS,), _SAVING),
    "transfer, labels": Kind(
        "senteval/SST/binary/sentiment-test", any_text, (_TRANSFER.format("SST-2"),), _SAVING
    ),
    "transfer, pairs": Kind(
        "senteval/MRPC/msr_paraphrase_test.txt", any_text, (_TRANSFER.format("MRPC"),), _SAVING
    ),
    "npy": Kind("bare.npy", any_npy, _VECTORS),
    "vectors parquet": Kind("bare.parquet", any_bytes, _VECTORS),
    "recipe": Kind("recipe.json", any_json, (_RECIPE,)),
    "candidates": Kind(
        "candidates.txt", any_text, (f"search-templates --candidates FILE {_SEARCH}",), ("home",)
    ),
    "settings": Kind("home/config.toml", any_text, _SETTINGS, ("home",)),
    "config.json": Kind("model/config.json", any_json, _FOLDER, ("home",)),
    "tokenizer.json": Kind("model/tokenizer.json", any_json, _FOLDER, ("home",)),
    "tokenizer_config.json": Kind("model/tokenizer_config.json", any_json, _FOLDER, ("home",)),
    "weights": Kind("model/model.safetensors", any_safetensors, _FOLDER, ("home",)),
    "import, modules": Kind("st/modules.json", any_json, (_IMPORT.format("st"),), ("home",)),
    "import, dense": Kind("st/2_Dense/config.json", any_json, (_IMPORT.format("st"),), ("home",)),
    "LoRA": Kind("lora/adapter_config.json", any_json, _ADAPTER, ("home",)),
    "parts, manifest": Kind("parts/_manifest.json", any_json, ("index build parts -o out/ix -q",)),
    "index": Kind(
        "index/index.sqlite", any_bytes, ("index search index one --offline -q", "index info index")
    ),
    "weights in parts": Kind(
        "sharded/model.safetensors.index.json", any_json, (_IMPORT.format("sharded"),), ("home",)
    ),
    "promptcli folder": Kind(
        "shared/promptcli.json",
        any_json,
        (_IMPORT.format("shared"), "similarity one two -m ./shared --offline -q"),
        ("home",),
    ),
    "parquet, dictionary": Kind("dictionary.parquet", any_bytes, _READ, _SAVING),
    "xz": Kind("text.txt.xz", any_bytes, _READ, _SAVING),
    "word vectors": Kind("words.txt", any_text, (_WORDS,)),
}
