"""Messages name the library's keywords as their reader types them."""

import ast
import functools
import pickle
import re
from pathlib import Path

import pytest
import torch

import promptcli
from promptcli.cli.command_line import command
from promptcli.embedding.parts import PartJob
from promptcli.encoder.prefetching import prefetch
from promptcli.encoder.streams import map_in_threads
from promptcli.errors import UsageError
from promptcli.notes import keyword, keywords_typed
from tests.embed_running import refused

PACKAGE = Path(promptcli.__file__).parent
TYPED = {"start": "--from ", "dims": "--set dims="}


@functools.cache
def taken():
    """The keywords that commands take, as options, arguments or by ``--set``."""
    names = set()
    for _, each in command().walk():
        names |= {parameter.name for parameter in each.params}
        names |= {*getattr(each, "by_set", ())}
    return names


@functools.cache
def in_functions():
    """File -> the nodes of its functions; decorators, defaults and docstrings are left out."""
    nodes = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        found = []
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for statement in node.body:
                    is_text = isinstance(statement, ast.Expr)
                    if not (is_text and isinstance(statement.value, ast.Constant)):
                        found += ast.walk(statement)
        nodes[path] = found
    return nodes


def test_a_keyword_is_named_as_the_command_takes_it():
    with keywords_typed(TYPED):
        assert f"{keyword('start')} needs {keyword('width')}" == "--from needs `width`"
        assert (keyword("start", "mini"), keyword("dims", 64)) == ("--from mini", "--set dims=64")
        with keywords_typed({}):
            assert (keyword("start"), keyword("dims", 64)) == ("`start`", "`dims=64`")
    assert keyword("start") == "`start`"


def test_every_keyword_in_a_message_is_one_that_a_command_takes():
    count = 0
    for path, nodes in in_functions().items():
        for node in nodes:
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "keyword"):
                continue
            if isinstance(node.args[0], ast.Constant):
                count += 1
                assert node.args[0].value in taken(), f"{path}:{node.lineno}"
    assert count > 200


def test_no_message_writes_a_keyword_in_backticks_by_itself():
    for path, nodes in in_functions().items():
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = re.findall(r"(?<!field )`(\w+)(?:=[^`]*)?`", node.value)
                assert not taken() & {*names}, f"{path}:{node.lineno}"


def test_one_error_reads_as_an_option_on_the_command_line_and_as_a_keyword_in_python(run, tmp_path):
    (tmp_path / "a.txt").write_text("a cat sleeps\n")
    (tmp_path / "a.npy").write_bytes(b"")
    given = (tmp_path / "a.txt", tmp_path / "a.npy")
    refused(run("embed", given[0], "-o", given[1], "--split"), 2, "--split needs ids")
    with pytest.raises(UsageError, match=r"^`split` needs ids"):
        promptcli.embed(given[0], given[1], split=True)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [prefetch, map_in_threads])
def test_threads_name_keywords_as_the_command_does(threads, two_threads):
    with keywords_typed(TYPED):
        messages = {message for _, message in threads(lambda item: keyword("start"), range(5))}
    assert messages == {"--from"}


def test_other_processes_name_keywords_as_the_command_does(monkeypatch):
    monkeypatch.setattr(PartJob, "_make", lambda job, shard, progress: keyword("dims", 64))
    with keywords_typed(TYPED):
        job = PartJob(Path("parts"), manifest=None, inputs=[], entry=None)
    assert pickle.loads(pickle.dumps(job)).make(0) == "--set dims=64"
