"""README and docs cannot lie: every command line and Python block is run, page by page, in a fresh
folder.
"""

import ast
import contextlib
import functools
import importlib.util
import io
import itertools
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import threading
import tomllib
import urllib.error
import urllib.request
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from promptcli.backbones.model_folder import SHIPPED_BACKBONES, SHIPPED_TABLES
from promptcli.data.demo import SENTENCES_FILE
from promptcli.models.entries import Entry, write_entry
from promptcli.recipe import CAUSAL_RECIPES, MASKED_RECIPES, Recipe
from promptcli.training.methods import METHODS
from promptcli.training.methods.method import TrainingSettings
from promptcli.training.step import TrainingStep
from tests.pages import README, ROOT, check_output, is_shown, shorten
from tests.senteval import write_pairs
from tests.tiny_causal import save_tiny_causal
from tests.workbooks import write_workbook

MADE = ("cli.md", "results.md")
GUIDES = sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in MADE)
#: Their snippets are run one by one in test_snippets.py, each where its library is installed.
OF_OTHER_LIBRARIES = ("interop.md",)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def blocks(page):
    """Yield the kind and the text of every block of code of a page."""
    yield from BLOCK.findall(page.read_text(encoding="utf-8"))


def steps(page):
    """Yield what is to be run, in order: ``command`` with a line, ``python`` with a block.

    A ``text`` block right after either of them is what it prints: ``output``.
    """
    whole = page.read_text(encoding="utf-8")
    runs, end = False, 0
    for block in BLOCK.finditer(whole):
        between, (kind, text) = whole[end : block.start()], block.groups()
        end = block.end()
        if kind == "console":
            yield from (
                ("command", line[2:]) for line in text.splitlines() if line.startswith("$ ")
            )
        elif kind == "python":
            yield "python", text
        elif kind == "text" and runs and not between.strip():
            yield "output", text
        runs = kind in ("console", "python")


def test_a_wrong_line_of_output_is_found():
    printed = "0.4895  sentences.txt:99: The workers asked."
    assert is_shown("0.4891  sentences.txt:99: The workers asked.", printed, README)
    assert is_shown("0.4895  sentences.txt:99: The ...", printed, README)
    assert not is_shown("0.5895  sentences.txt:99: The workers asked.", printed, README)
    assert is_shown("0.5895  sentences.txt:99: The workers asked.", printed, GUIDES[0])
    assert not is_shown("0.4895  sentences.txt:99: The workers", printed, GUIDES[0])


def test_the_evaluation_that_the_guide_shows_is_that_of_the_readme():
    """The guide is run on a narrow model, which ranks the two encoders the other way round."""
    guide = (ROOT / "docs" / "evaluate.md").read_text(encoding="utf-8")
    (of_readme,) = [text for _, text in blocks(README) if "±" in text]
    assert of_readme in guide


@pytest.fixture
def senteval(tmp_path):
    """A SentEval folder in the native formats, with pairs of our own: each sentence with the
    next.
    """
    sentences = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:41]
    pairs = [
        (one, other, (row * 7 % 51) / 10)
        for row, (one, other) in enumerate(itertools.pairwise(sentences))
    ]
    root = tmp_path / "SentEval" / "data" / "downstream"
    for year in range(12, 17):
        write_pairs(root, f"STS{year}", pairs, "images")
    for split in ("train", "dev", "test"):
        write_pairs(root, "STS-B", pairs, split)
    for part in ("train", "trial", "test_annotated"):
        write_pairs(root, "SICK-R", pairs, part)
    (root / "MRPC").mkdir()
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    for split in ("train", "test"):
        rows = (
            f"{n % 2}\t{n}\t{n + 1}\t{one}\t{other}\n" for n, (one, other, _) in enumerate(pairs)
        )
        (root / "MRPC" / f"msr_paraphrase_{split}.txt").write_text(header + "".join(rows))
    return root


@pytest.fixture(scope="module")
def narrow_mini(tmp_path_factory):
    """A random model that has the layers, heads and files of `mini-bert`, and an eighth of its
    width and of its vocabulary.

    Beside it stand the shipped encoders, by their recipes: numbers learned on `mini-bert` do not
    fit it.
    """
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("narrow") / "mini-bert"
    shutil.copytree(SHIPPED_BACKBONES["mini-bert"], folder)
    config = BertConfig.from_pretrained(folder)
    config.hidden_size, config.intermediate_size = (
        config.hidden_size // 8,
        config.intermediate_size // 8,
    )
    config.vocab_size //= 8  # the letters and the most frequent words come first
    shorten(folder / "vocab.txt", config.vocab_size)
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    prompted = Recipe(
        backbone="mini-bert", prompt='This sentence of "[X]" means [MASK] .', pooling="last/mask"
    )
    for name, recipe in (
        ("mini", prompted),
        ("mini-static", Recipe(backbone="mini-bert", pooling="static/avg")),
    ):
        (folder.parent / name).mkdir()
        write_entry(folder.parent / name, Entry(name, recipe))
    (folder.parent / "mini-multi").symlink_to(SHIPPED_TABLES["mini-multi"])
    return folder


def take_few_steps(monkeypatch):
    """Let a training have at most two steps of eight examples: each step of each method is tried
    elsewhere.
    """
    planned, whole = TrainingSettings.total_steps, TrainingStep.tokenize

    def first_rows(self, columns):
        return whole(self, [column[:8] for column in columns])

    monkeypatch.setattr(TrainingStep, "tokenize", first_rows)
    monkeypatch.setattr(TrainingSettings, "total_steps", lambda *given: min(2, planned(*given)))


@pytest.mark.parametrize(
    "page",
    [README, *(page for page in GUIDES if page.name not in OF_OTHER_LIBRARIES)],
    ids=lambda page: page.name,
)
def test_every_line_of_the_page_runs(page, run, senteval, narrow_mini, here, monkeypatch):
    """On `mini` itself if the page shows its words, else on the narrow one, which is faster."""
    shown = ("README.md", "python.md", "recipes.md", "serve.md")
    if page.name not in shown:
        monkeypatch.setitem(SHIPPED_BACKBONES, "mini-bert", narrow_mini)
        monkeypatch.setattr("promptcli.models.entries.SHIPPED_FOLDER", narrow_mini.parent)
        take_few_steps(monkeypatch)
    whole = page.read_text(encoding="utf-8")
    if "--backbone my-llama" in whole:
        save_tiny_causal("llama", here / "my-llama")
    pairs = 200 if page == README else 33  # the README shows the scores of all
    sentences = 130 if "--batch-size 64" in whole else 40
    if page.name in shown or "--vocab-size" in whole:
        sentences = 280
    if "promptcli examples`" in whole:
        assert run("examples").code == 0  # the page says in its text that these files are read
        shorten("pairs.tsv", pairs)
        shorten("sentences.txt", sentences)
    names, printed = {}, ""
    waiting = list(steps(page))
    while waiting:
        kind, text = waiting.pop(0)
        if kind == "output":
            check_output(text, printed, page)
            continue
        if kind == "python":
            printed = run_block(text, page, names)
            continue
        program, *words = shlex.split(text)
        assert program == "promptcli", text
        # it serves while the rest of the page is run, and is stopped by a signal
        if words[0] == "serve":
            assert "command" not in dict(waiting), (
                "after `promptcli serve` a page holds Python only"
            )
            serve(run, words, functools.partial(run_blocks, waiting, page, names))
            break
        target = words[words.index(">") + 1] if ">" in words else None
        for _ in range(2 if page == README else 1):  # whoever types a command again is not refused
            ran = run(*(words[: words.index(">")] if target else words))
            assert ran.code == 0, f"{text}: {ran.err}"
        printed = f"{ran.out}\n{ran.err}"
        if words == ["examples"]:
            shorten("pairs.tsv", pairs)
            shorten("sentences.txt", sentences)
        if target:
            (here / target).write_text(ran.out, encoding="utf-8")


def rows_of(*columns, sign=",", ends="\n"):
    """Return a table of demo sentences: ``{}`` is the next sentence, ``#`` a score of 0 to 5, ``%``
    a number.
    """
    sentences = iter(SENTENCES_FILE.read_text(encoding="utf-8").splitlines() * 2)
    cells = [[cell.replace("{}", next(sentences)) for cell in columns] for _ in range(40)]
    lines = [
        sign.join(f'"{cell}"' if "," in cell and sign == "," else cell for cell in row)
        for row in cells
    ]
    return "".join(
        line.replace("#", str(n * 7 % 6)).replace("%", str(n)) + ends
        for n, line in enumerate(lines)
    )


def workbook(sentences):
    """Return a workbook whose second sheet has sentences in its second column."""
    rows = [["Day", "Comment"], *([date(2024, 1, 1), sentence] for sentence in sentences)]
    content = io.BytesIO()
    write_workbook(content, **{"2023": [["Comment"], ["Nothing."]], "2024": rows})
    return content.getvalue()


def your_files():
    """Return the files of the table of ``getting-started.md``: as programs and data sets have
    them.
    """
    sentences = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
    judged = "query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(40))
    return {
        "notes.txt": rows_of("{} “café”").encode("cp1252"),
        "export.csv": (
            ("Nr;Text;Note\r\n" + rows_of("%", "{}", "#,5", sign=";", ends="\r\n")).encode(
                "utf-8-sig"
            )
        ),
        "survey.csv": "Date;Comment\r\n" + rows_of("01.02.2026", "{}", sign=";", ends="\r\n"),
        "plain.csv": rows_of("%", "2015", "{}"),
        "sales.xlsx": workbook(sentences[:40]),
        "records.json": (
            "[" + rows_of('{"n": %, "text": "{}"}', sign="", ends=",\n").removesuffix(",\n") + "]"
        ),
        "corpus.jsonl.zst": pa.compress(
            rows_of('{"id": %, "text": "{}"}', sign="").encode(), "zstd", asbytes=True
        ),
        "broken.jsonl": rows_of('{"text": "{}"}', sign="").replace('{"text"', '{"text', 1),
        "quora.csv": (
            "id,question1,question2,is_duplicate\n" + rows_of("%", "{}", "{}", "0") + "41,a,b,1\n"
        ),
        "graded.csv": "left;right;gold\n" + rows_of("{}", "{}", "#.5", sign=";"),
        "scifact/corpus.jsonl": rows_of('{"_id": "d%", "title": "{}", "text": "{}"}', sign=""),
        "scifact/queries.jsonl": rows_of('{"_id": "q%", "text": "{}"}', sign=""),
        "scifact/qrels/test.tsv": judged,
        "anchors.tsv": "anchor\tpositive\tnegative\n" + rows_of("{}", "{}", "{}", sign="\t"),
        "faq.csv": "Q;A\n" + rows_of("{}", "{}", sign=";"),
        "scores.csv": "sentence1;sentence2;similarity\n" + rows_of("{}", "{}", "0.#", sign=";"),
    }


@pytest.fixture
def files_of_people(here, monkeypatch, narrow_mini):
    """The files of ``your_files`` in the current folder, and narrow models."""
    monkeypatch.setitem(SHIPPED_BACKBONES, "mini-bert", narrow_mini)
    monkeypatch.setattr("promptcli.models.entries.SHIPPED_FOLDER", narrow_mini.parent)
    for name, content in your_files().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.mark.usefixtures("files_of_people")
def test_every_row_of_the_table_of_files_runs(run):
    """What to type is typed, for a file of the row; no row is lost."""
    table = re.findall(
        r"^\| `([^`]+)`.* \| `promptcli (.*)` \|$",
        (ROOT / "docs/getting-started.md").read_text(),
        re.M,
    )
    assert {name for name, _ in table} == {name.split("/")[0] for name in your_files()}
    for name, words in table:
        ran = run(*shlex.split(words))
        assert ran.code == 0, f"{words}: {ran.err}"
        assert name in words, words
        wanted = "39 vectors" if name == "broken.jsonl" else "40 vectors"
        assert wanted in ran.err or not words.startswith("embed"), ran.err


#: Other commands that a newcomer types with such files.
ALSO_FIRST = (
    "promptcli eval last-avg first-last-ditto --task demo",
    "promptcli ditto-search --on pairs.tsv",
    "promptcli index sync my-index sentences.txt",
    'promptcli index search my-index "Someone repairs nets by the water." -k 3',
    "promptcli reproduce list",
)


@pytest.mark.usefixtures("files_of_people")
def test_the_first_commands_work_on_an_export(run):
    first = README.read_text(encoding="utf-8").split("## First commands")[1].split("\n## ")[0]
    lines = [
        line[2:]
        for line in first.splitlines()
        if line.startswith("$ ") and line != "$ promptcli examples"
    ]
    assert len(lines) >= 3
    for line in [*lines, *ALSO_FIRST]:
        line = line.replace("sentences.txt", "export.csv").replace("pairs.tsv", "scores.csv")
        line = line.replace("--task demo", "--task scores.csv")
        ran = run(*shlex.split(line)[1:])
        assert ran.code == 0, f"{line}: {ran.err}"


def run_block(text, page, names):
    """Run a block of Python and return what it prints.

    A block about another library that is not installed is left out: None.
    """
    nodes = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    modules = {getattr(node, "module", node.names[0].name).split(".")[0] for node in nodes}
    if page.name == "serve.md" and not all(map(importlib.util.find_spec, modules)):
        return None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, str(page), "exec"), names)
    return printed.getvalue()


def run_blocks(rest, page, names, port):
    """Run the blocks of Python after ``promptcli serve``, and check the outputs shown."""
    printed = None
    for kind, text in rest:
        if kind == "python":
            printed = run_block(at(text, port), page, names)
        elif printed is not None:
            check_output(text, printed, page)


def at(text, port):
    """Return a text about the default port for another one: of two runs on one machine each has its
    own.
    """
    return text.replace(":8000", f":{port}")


def serve(run, words, meanwhile):
    """Run ``promptcli serve`` in this thread while another one does the rest, then stop it by a
    signal.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended, failures = threading.Event(), []

    def use():
        try:
            while not ended.wait(0.1):
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
                    break
            meanwhile(port)
        except BaseException as failure:
            failures.append(failure)
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    other = threading.Thread(target=use)
    other.start()
    ran = run(*words, "--port", port)
    ended.set()
    other.join()
    if failures:
        raise failures[0]
    assert ran.code == 0, ran.err


@pytest.mark.parametrize("page", [README, *GUIDES], ids=lambda page: page.name)
def test_no_code_of_the_page_is_exempt(page):
    """Shell blocks hold what installs and ``make``, both run by the suite itself.

    Plain ones hold output and trees.
    """
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for kind, text in blocks(page):
        assert kind in (
            "console",
            "python",
            "sh",
            "diff",
            "text",
            "toml",
            "",
        ), f"{page.name}: {kind}"
        if kind == "toml":
            assert tomllib.loads(text)
        if kind == "console":
            assert all(
                line.startswith(("$ promptcli", "  ")) or not line for line in text.splitlines()
            ), text
        for line in text.splitlines() if kind == "sh" else []:
            words = line.split("#")[0].split()
            assert words[:2] == ["pip", "install"] or (
                words[0] == "make" and words[1] in targets
            ), line
        assert kind not in ("", "text") or "promptcli " not in text.split("\n")[0], (
            f"{page.name}: {text}"
        )


def test_the_pages_name_what_there_is():
    recipes = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in MASKED_RECIPES if f"`{name}`" not in recipes] == []
    causal = (ROOT / "docs" / "causal.md").read_text(encoding="utf-8")
    assert [name for name in CAUSAL_RECIPES if f"`{name}`" not in causal] == []
    guide = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"`{name}`" not in guide] == []


def test_links_lead_somewhere():
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]:
        for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@functools.cache
def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_anchors_lead_to_a_heading():
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
    for page in pages:
        for name, anchor in re.findall(
            r"\]\(([^):#]*)#([^)]+)\)", page.read_text(encoding="utf-8")
        ):
            target = page.parent / name if name else page
            assert anchor in anchors(target), f"{page.name}: {name}#{anchor}"


def test_every_method_and_recipe_has_its_paper():
    """Or the page says that it has none."""
    page = (ROOT / "docs" / "cite.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]+)`", page))
    assert not {*METHODS, *MASKED_RECIPES, *CAUSAL_RECIPES} - named


def test_the_tree_of_the_architecture_page_is_the_tree():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.split("promptcli/\n", 1)[1].split("```", 1)[0]
    named = set(re.findall(r"^  (\w+)(?:/|\.py)", tree, flags=re.MULTILINE))
    there = {path.stem for path in (ROOT / "promptcli").iterdir()} - {
        "__pycache__",
        "py",
        "__main__",
    }
    assert named == there


def test_the_page_of_commands_is_up_to_date():
    made = runpy.run_path(str(ROOT / "docs" / "generate_cli.py"))["page"]()
    assert made == (ROOT / "docs" / "cli.md").read_text(encoding="utf-8"), "run `make docs`"


def test_the_page_of_commands_describes_every_option():
    from promptcli.cli.command_line import Command, command

    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^#{3,4} `([^`]*)`\n(.*?)(?=^#|\Z)", page, re.M | re.DOTALL))
    described = page.split("\n## Options of every command")[1].split("\n### ")[0]
    for words, called in command().walk():
        section = sections[" ".join(("promptcli", *words))]
        if not isinstance(called, Command) or called.leading_words:
            continue
        for parameter in called.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                name = f"`{parameter.opts[0]}`"
                rows = section if f"| {name}" in section else described
                assert name in section, (words, name)
                assert f"| {name}" in rows, (words, name)
