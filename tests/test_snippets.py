"""docs/interop.md: every snippet is run where its library is installed, else skipped by its name. A
``text`` block right after a snippet is compared with what it prints.
"""

import ast
import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path

import pytest

import promptcli as pc
from tests.pages import check_output, shorten

DOCS = Path(__file__).parents[1] / "docs"
PART = re.compile(r"^(## .*?)$|^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
#: What is imported is named otherwise than what is installed.
INSTALLED = {
    "sklearn": "scikit-learn",
    "qdrant_client": "qdrant-client",
    "chromadb": "chromadb",
    "faiss": "faiss-cpu",
}


def snippets(page):
    """Yield the section ("" before the first), kind and text of every block of a page."""
    section = ""
    for heading, kind, text in PART.findall((DOCS / page).read_text(encoding="utf-8")):
        section = heading.removeprefix("## ") if heading else section
        if kind in ("console", "python"):
            yield section, kind, text


def check_shown(page, text, printed):
    """Fail unless the ``text`` block right after a block of a page, if any, is what it prints."""
    rest = (DOCS / page).read_text(encoding="utf-8").split(f"{text}```\n", 1)[1]
    shown = re.match(r"\n```text\n(.*?)^```$", rest, flags=re.MULTILINE | re.DOTALL)
    if shown:
        check_output(shown[1], printed, DOCS / page)


def run_block(page, text, names):
    """Run a block of Python of a page, and check the output that the page shows."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, page, "exec"), names)
    check_shown(page, text, printed.getvalue())


CASES = [("interop.md", *snippet) for snippet in snippets("interop.md")]
CASES = [
    pytest.param(page, text, id=f"{page}-{about}")
    for page, about, kind, text in CASES
    if about and kind == "python"
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder where the command lines of a page were run, by page; each page once."""
    folders = {}

    def folder(page, run, monkeypatch):
        made = page not in folders
        if made:
            folders[page] = tmp_path_factory.mktemp("page")
        monkeypatch.chdir(folders[page])
        commands = [text for _, kind, text in snippets(page) if kind == "console"]
        for text in commands if made else ():
            for line in text.splitlines():
                ran = run(*shlex.split(line)[2:])
                assert ran.code == 0, (line, ran.err)
                if line == "$ promptcli examples":
                    shorten("sentences.txt", 300)
            check_shown(page, text, f"{ran.out}\n{ran.err}")

    return folder


@pytest.mark.parametrize(("page", "text"), CASES)
def test_a_snippet_of_the_page_runs(page, text, prepared, run, monkeypatch):
    nodes = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    for node in nodes:
        root = getattr(node, "module", node.names[0].name).partition(".")[0]
        if importlib.util.find_spec(root) is None:
            pytest.skip(f"{INSTALLED.get(root, root)} is not installed")
    prepared(page, run, monkeypatch)
    names = {}
    for section, kind, first in snippets(page):
        if not section and kind == "python":
            run_block(page, first, names)
    run_block(page, text, names)
    if "nearest = " in text:
        rows = pc.read_vectors("vectors.parquet")
        best = (-(rows.matrix @ names["query"])).argsort()[:3]
        assert list(names["nearest"]) == [rows.texts[row] for row in best]
