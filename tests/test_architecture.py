"""Imports go one way, foreign libraries stay in their packages, and the entrance is light."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "promptcli"

#: The packages from the entrance down: a file imports from its own package and from those below it,
#: type-checking imports included.
PACKAGES = """cli select training evaluation retrieval
    embedding models encoder backbones data storage""".split()
#: What stands at the top of the package; all but the first two serve every package.
LOOSE = {
    "__init__",
    "__main__",
    "children",
    "errors",
    "extensions",
    "grammar",
    "named_templates",
    "notes",
    "recipe",
    "settings",
    "threads",
}
#: Loose modules that every package may use -> what they may use themselves.
LOWEST = {
    "children": (),
    "errors": ("errors",),
    "notes": ("errors",),
    "extensions": ("errors", "notes"),
    "settings": ("errors", "notes", "storage"),
    "threads": (),
    "named_templates": ("errors", "storage"),
    "grammar": ("errors", "named_templates"),
    "recipe": ("errors", "grammar", "named_templates", "notes", "settings", "storage"),
}

#: Library -> where it may be imported.
HOMES = {
    "transformers": ("backbones",),
    "huggingface_hub": ("backbones", "data", "models"),
    "tokenizers": ("backbones", "plugins"),
    "peft": ("backbones",),
    "gguf": ("plugins",),
    "faiss": ("retrieval",),
    "sentence_transformers": ("models",),
    "onnxruntime": ("plugins",),
    "openvino": ("plugins",),
    "mteb": ("plugins",),
    "typer": ("cli", "plugins"),
    "rich": ("cli", "plugins"),
    "datasets": ("data",),
    "sacremoses": ("data",),
    "starlette": ("plugins",),
    "uvicorn": ("plugins",),
    "prometheus_client": ("plugins",),
    "mcp": ("plugins",),
    "fsspec": ("data",),
    "ray": ("plugins",),
    "sklearn": ("plugins", "encoder"),
    "umap": ("plugins",),
    "plotly": ("plugins",),
}
#: File -> what it imports from above, inside a function: ``encoder.save(...)`` and its like are
#: conveniences for users.
UPWARD = {
    Path("encoder/sentence_encoder.py"): ("promptcli.models.",),
    Path("retrieval/sentence_index.py"): (
        "promptcli.retrieval.sync.",
        "promptcli.retrieval.pairs.",
    ),
}
#: Packages whose ``__init__.py`` holds their public functions.
PUBLIC = """embedding evaluation retrieval models select
    training""".split()
HEAVY = ["torch", "transformers", "datasets", "faiss", "pyarrow", "scipy", "numpy", "safetensors"]


@functools.cache
def modules():
    """Return (path within the package, path) of every file."""
    return [(path.relative_to(PACKAGE), path) for path in sorted(PACKAGE.rglob("*.py"))]


@functools.cache
def nodes(path):
    """Return every node of a file's syntax tree, in the order of ``ast.walk``."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


@functools.cache
def imported(path):
    """Every module a file imports, in functions and for type checking too."""
    names = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                names.add(f"{node.module}.{alias.name}")
                if not is_module(f"{node.module}.{alias.name}"):  # else it is not its package's
                    names.add(node.module)
    above = UPWARD.get(path.relative_to(PACKAGE), ())
    return {name for name in names if not f"{name}.".startswith(above)}


@functools.cache
def is_module(name):
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def dotted(relative):
    return ".".join(("promptcli", *relative.with_suffix("").parts)).removesuffix(".__init__")


def graph():
    """Module -> the modules of the package that it imports."""
    known = {dotted(relative): path for relative, path in modules()}
    return {
        name: {other for other in imported(path) if other in known} - {name}
        for name, path in known.items()
    }


def package_of(relative):
    return relative.parts[0].removesuffix(".py")


def test_the_walks_have_names_that_exist():
    page = (PACKAGE.parent / "docs/architecture.md").read_text(encoding="utf-8")
    walk = page.partition("## How a sentence becomes a vector")[2].partition("\n## Public")[0]
    assert len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) == 22
    defined = set()
    for relative, path in modules():
        module = dotted(relative).removeprefix("promptcli.")
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                members = {getattr(member, "name", "") for member in node.body}
                defined |= {f"{module}.{node.name}"}
                defined |= {f"{module}.{node.name}.{member}" for member in members if member}
            elif isinstance(node, ast.FunctionDef):
                defined.add(f"{module}.{node.name}")
    names = set(re.findall(r"`([A-Za-z_.]+)`", walk)) - {"max_length"}
    assert len(names) > 20
    for name in names:
        assert any(f".{known}".endswith(f".{name}") for known in defined), name


def test_the_top_of_the_package_is_packages_and_loose_modules():
    assert {package_of(relative) for relative, _ in modules()} == {*PACKAGES, *LOOSE, "plugins"}


def refused(relative):
    """Yield the modules that a file imports and may not."""
    package = package_of(relative)
    for name in sorted(imported(PACKAGE / relative)):
        other = [*name.split("."), ""][1] if name.startswith("promptcli.") else ""
        if package in PACKAGES and other in PACKAGES:
            if PACKAGES.index(other) < PACKAGES.index(package):
                yield name
        elif package in LOWEST and other not in ("", *LOWEST[package]):
            yield name


def test_imports_go_one_way():
    found = {str(relative): [*refused(relative)] for relative, _ in modules()}
    assert {file: names for file, names in found.items() if names} == {}


def test_no_import_goes_in_a_circle():
    imports = graph()

    def reached(start):
        seen, waiting = set(), [start]
        while waiting:
            for other in imports[waiting.pop()] - seen:
                seen.add(other)
                waiting.append(other)
        return seen

    # a package that lists its own members in a table is their end, not a circle: they do not import
    # the table
    assert not {name for name in imports if name in reached(name)}


def test_no_file_reaches_up_through_the_package_itself():
    for relative, path in modules():
        if package_of(relative) in ("cli", "__init__", "__main__"):
            continue
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "promptcli":
                assert node.attr.startswith("__"), f"{relative} uses promptcli.{node.attr}"


@pytest.mark.parametrize("library", HOMES)
def test_foreign_libraries_stay_behind_their_door(library):
    for relative, path in modules():
        if any(name.split(".")[0] == library for name in imported(path)):
            assert package_of(relative) in HOMES[library], f"{relative} imports {library}"


#: What only the entrance may touch: a function elsewhere takes values and returns values.
IMPURE = (
    "print",
    "input",
    "exit",
    "sys.exit",
    "sys.stdout",
    "sys.stderr",
    "os.getenv",
    "os.environ",
)


#: Where the library reads it, which has no entrance: its folder, and the processes that a launcher
#: or Ray started.
_READ_THE_ENVIRONMENT = (
    "settings.py",
    "children.py",
    "plugins/cluster/ray_engine.py",
    "plugins/cluster/ray_worker.py",
    "training/step.py",
)


def is_entrance(relative):
    """Whether a file is of the command line, the package's or a plug-in's."""
    package = package_of(relative)
    return package in ("cli", "__main__") or (package == "plugins" and relative.stem == "command")


def last_name(node):
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


def test_below_the_entrance_nothing_prints_exits_or_reads_the_environment():
    ends = {name.rpartition(".")[2] for name in IMPURE}
    for relative, path in modules():
        if is_entrance(relative):
            continue
        allowed = ("os.environ",) if str(relative) in _READ_THE_ENVIRONMENT else ()
        for node in nodes(path):
            used = node.func if isinstance(node, ast.Call) else node
            if isinstance(node, ast.Call | ast.Attribute) and last_name(used) in ends:
                used = ast.unparse(used)
                assert used in allowed or used not in IMPURE, f"{relative} uses {used}"


def test_python_is_started_by_one_module():
    for relative, path in modules():
        if relative.name == "children.py":
            continue
        text = path.read_text(encoding="utf-8")
        assert "sys.executable" not in text, (
            f"{relative} starts Python by itself; see children.python_command"
        )
        if "multiprocessing" in imported(path):
            assert "promptcli.children.safe_path" in imported(path), (
                f"{relative} starts processes without safe_path"
            )


#: What a message may hold of the command line: a whole command that is to be typed next, in
#: backticks, or alone.
COMMAND = re.compile(r"`promptcli [^`]*`|^promptcli .*")


def messages(path):
    """Every text of a module, docstrings left out; what is filled in is a brace."""
    parts = {
        id(part)
        for node in nodes(path)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
    }
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    parts |= {
        id(node.body[0].value)
        for node in nodes(path)
        if isinstance(node, documented) and is_text(node.body)
    }
    for node in nodes(path):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.value


def is_text(body):
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


def test_below_the_entrance_messages_name_fields_not_options():
    for relative, path in modules():
        is_row = package_of(relative) == "plugins" and relative.stem == "rows"  # what is typed
        if not is_entrance(relative) and not is_row:
            for message in messages(path):
                assert not re.search(r"(?<!layer)--[a-z{]", COMMAND.sub("", message)), (
                    f"{relative} says {message!r}"
                )


def test_the_entrance_loads_nothing_heavy():
    imports = "import sys, promptcli, promptcli.cli.command_line; dir(promptcli)"
    code = f"{imports}; print([name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_no_pickle_and_no_remote_code():
    for relative, path in modules():
        text = path.read_text()
        assert "import pickle" not in text, relative
        assert text.count("np.load(") <= text.count("allow_pickle=False"), relative
        for node in nodes(path):
            named = (
                [(item.arg, item.value) for item in node.keywords]
                if isinstance(node, ast.Call)
                else []
            )
            if (
                isinstance(node, ast.Call)
                and last_name(node.func) == "load"
                and ast.unparse(node.func) == "torch.load"
            ):
                # one place: a process of its own that reads tensors and nothing else, and only when
                # asked to
                assert str(
                    relative
                ) == "backbones/convert.py" and "weights_only=True" in ast.unparse(node), relative
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                named = [(getattr(key, "value", None), value) for key, value in pairs]
            given = [ast.unparse(value) for name, value in named if name == "trust_remote_code"]
            assert given in ([], ["False"]), relative


def test_a_public_interface_imports_nothing_heavy():
    named = ", ".join(f"promptcli.{package}" for package in PUBLIC)
    code = f"import sys, {named}; print(sorted(sys.modules.keys() & set({HEAVY!r})))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("package", PUBLIC)
def test_no_function_of_a_door_has_the_name_of_a_file_of_its_room(package):
    tree = ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions & {path.stem for path in (PACKAGE / package).iterdir()} == set()
