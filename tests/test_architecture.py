"""Imports go one way, foreign libraries stay behind their doors, and the entrance is light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "promptcli"

#: Each room may import only its own and those below it.
FLOORS = [
    {"cli", "__main__"},
    {"commands", "options", "console"},
    {"reproducing"},
    {"training"},
    {"registry", "choosing", "entries", "fitting", "fitting_flow", "sources"},
    {"pretraining", "searching", "analysis"},
    {"transfer", "foreign_vectors"},
    {"embedding", "evaluation", "index", "vectors", "vector_writers", "scores", "masked_accuracy", "mask_tokens"},
    {"methods", "objectives"},
    {"data", "statistics"},
    {"encoder"},
    {"encoding", "denoising"},
    {"batching"},
    {"prompts", "pooling", "transforms"},
    {"backbones"},
    {"recipe", "errors", "folders", "files", "settings", "checkpoint"},
]

#: Library -> where it may be imported.
DOORS = {
    "transformers": ("backbones",),
    "huggingface_hub": ("backbones", "data"),
    "tokenizers": ("backbones",),
    "faiss": ("index",),
    "typer": ("cli", "options", "console", "commands"),
    "rich": ("cli", "options", "console", "commands"),
    "datasets": ("data",),
    "sacremoses": ("data",),
}
HEAVY = ["torch", "transformers", "datasets", "faiss", "pyarrow", "scipy", "numpy", "safetensors"]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), path


def imported(path):
    """Every module a file imports, type-checking blocks left out: those cost nothing and tie nothing."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "promptcli":
                yield from (f"promptcli.{alias.name}" for alias in node.names)


def floor_of(room):
    found = [number for number, rooms in enumerate(FLOORS) if room in rooms]
    assert len(found) == 1, f"room {room!r} is on no floor of this test; put it on one"
    return found[0]


def room_of(relative):
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("relative", [relative for relative, _ in modules()], ids=str)
def test_imports_go_one_way(relative):
    room = room_of(relative)
    if room == "__init__":
        return
    for name in imported(PACKAGE / relative):
        if name.startswith("promptcli."):
            other = name.split(".")[1]
            if (PACKAGE / other).is_dir() or (PACKAGE / f"{other}.py").exists():
                assert floor_of(other) >= floor_of(room), f"{relative} imports {name}, which is above it"


@pytest.mark.parametrize("library", DOORS)
def test_foreign_libraries_stay_behind_their_door(library):
    for relative, path in modules():
        if any(name.split(".")[0] == library for name in imported(path)):
            assert room_of(relative) in DOORS[library], f"{relative} imports {library}"


def test_no_module_is_longer_than_250_lines():
    long = {str(relative): len(path.read_text().splitlines()) for relative, path in modules()}
    assert not {name: lines for name, lines in long.items() if lines > 250}


def test_below_the_entrance_nothing_prints_or_exits():
    for relative, path in modules():
        if room_of(relative) in ("cli", "options", "console", "commands", "__main__"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "exit", "sys.exit", "input", "os.getenv", "os.environ.get"), relative


def test_the_entrance_loads_nothing_heavy():
    code = f"import sys, promptcli.cli; print([name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_no_pickle_and_no_remote_code():
    for relative, path in modules():
        text = path.read_text()
        assert "import pickle" not in text and "allow_pickle=True" not in text, relative
        assert "trust_remote_code=True" not in text and "torch.load(" not in text, relative
