"""Plug-ins use public names only, and without the folder of one the rest works."""

import ast
import functools
import importlib
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import promptcli as pc
from promptcli.cli.command_line import command
from promptcli.extensions import Table
from tests.plugins.tables import TABLES, table_named
from tests.processes import Program
from tests.public import PUBLIC

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "promptcli"
PLUGINS = PACKAGE / "plugins"
NAMES = sorted(path.parent.name for path in PLUGINS.glob("*/__init__.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def rows_of(name):
    """Return table -> names of the rows that a plug-in adds."""
    return {
        table.removeprefix("promptcli."): [
            row for row, value in rows.items() if value.startswith(f"promptcli.plugins.{name}.")
        ]
        for table, rows in PROJECT.get("entry-points", {}).items()
    }


def imported_modules(path):
    """Yield the modules of promptcli that a file imports: ``from promptcli import data`` is two."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("promptcli"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if (node.module or "").partition(".")[0] == "promptcli":
                yield node.module
            if node.module == "promptcli":
                yield from (f"promptcli.{each.name}" for each in node.names)


@pytest.mark.parametrize("name", NAMES)
def test_a_plugin_imports_no_private_names_and_no_other_plugin(name):
    for path in (PLUGINS / name).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("promptcli"):
                private = [each.name for each in node.names if re.match("_(?!_)", each.name)]
                assert not private, f"{path} imports {private} of {node.module}"
        for module in imported_modules(path):
            if module.startswith("promptcli.plugins."):
                # papers draws by analyze, and looks first whether it is there
                allowed = (f"promptcli.plugins.{name}", "promptcli.plugins.analyze")
                end = 2 if name == "papers" else 1
                assert module.startswith(allowed[:end]), f"{path} imports {module}"


def test_the_core_imports_no_plugin():
    own_functions = PACKAGE / "__init__.pyi"  # a plug-in's function is a name of promptcli
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")]:
        if PLUGINS not in path.parents and path != own_functions:
            for module in imported_modules(path):
                assert not module.startswith("promptcli.plugins"), f"{path} imports {module}"


def try_all(folder, commands, functions):
    """Try the rest, commands and functions of promptcli as it lies in a folder."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    for name in [*sys.modules]:
        if name.partition(".")[0] == "promptcli":
            del sys.modules[name]
    found = importlib.import_module("promptcli")
    assert Path(found.__file__).parents[1] == folder
    run_main = importlib.import_module("promptcli.cli.command_line").main
    tried = ["--help"], ["similarity", "a cat", "a cat", "--model", "mini-static"]
    for words in [*tried, *([name] for name in commands)]:
        try:
            run_main([*words, "--offline"])
        except SystemExit as ended:
            print(words[0], "ended with", ended.code)
    for name in functions:
        try:
            getattr(found, name)
        except ModuleNotFoundError as error:
            print(name, "says", error.name)


@pytest.mark.parametrize("name", NAMES)
def test_without_the_folder_of_a_plugin_the_rest_works(name, tmp_path):
    (tmp_path / "promptcli" / "plugins").mkdir(parents=True)
    (tmp_path / "templates").symlink_to(ROOT / "templates")
    for folder, left_out in ((PACKAGE, "plugins"), (PLUGINS, name)):
        for path in folder.iterdir():
            if path.name not in (left_out, "__pycache__"):
                (tmp_path / path.relative_to(ROOT)).symlink_to(path)
    commands = rows_of(name).get("commands", [])
    functions = [each for each in pc.__all__ if f".plugins.{name}." in PUBLIC[each]]
    program = Program(
        main=functools.partial(try_all, tmp_path, commands, functions),
        environment={"COLUMNS": "200"},
    )
    out, err = (written.decode() for written in program.communicate())
    assert program.returncode == 0, err
    lines = out.splitlines()
    assert "--help ended with 0" in lines
    assert "similarity ended with 0" in lines
    for each in commands:
        assert f"{each} ended with 2" in lines
        assert not any(line.startswith(f"│ {each} ") for line in lines)
        assert f"no such command '{each}'" in err
    for each in functions:
        assert any(line.startswith(f"{each} says promptcli.plugins.") for line in lines)
    assert "left out" not in err
    assert "Traceback" not in err


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a function that installs entry points, which tables made afterwards read."""

    def install(text):
        about = tmp_path / "strangers-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_a_strangers_broken_row_is_named_and_a_deleted_one_of_our_own_is_not(site, notes):
    site(
        "# rows\n[promptcli.parts]\n"
        "gone = promptcli.plugins.gone.rows:PART\nbroken = nowhere_at_all:PART\n"
        "there = promptcli.recipe:Recipe [extra]\n[other]\nno = promptcli.recipe:Recipe\n"
    )
    table = Table("parts", {"own": 1})
    assert dict(table) == {"own": 1, "there": pc.Recipe}
    assert table.extension("there") is None
    assert [line.split("'")[1] for line in notes] == ["broken"]


def test_every_table_is_listed_by_its_name():
    for name in TABLES:
        assert table_named(name).name == name


def test_help_lists_the_commands_of_plugins_last():
    text = CliRunner(env={"COLUMNS": "100"}).invoke(command(), ["--help"]).output
    added = PROJECT.get("entry-points", {}).get("promptcli.commands", {})
    assert set(added) <= {path[0] for path, _ in command().walk()}
    if added:
        core, _, plugins = text.partition("─ Plug-ins ")
        assert all(f"│ {name} " in plugins for name in added)
        assert not any(f"│ {name} " in core for name in added)
    assert "Plug-ins" not in CliRunner().invoke(command(), ["index", "--help"]).output
