"""``--format``: the same result as a table, Markdown, LaTeX, CSV and JSON."""

import csv
import json
import re
import shutil
import subprocess

import pytest

from promptcli.cli.console import Grid
from promptcli.cli.result_files import Report, best_cells, latex_text, print_report
from tests.comparing import refused

#: What people name models, sentences and templates.
HOSTILE = [
    r"100% of $5 & #1_a {b} ~/x^2 C:\new",
    '[X] means "[MASK]" | <0.001 > 0',
    "* the best ±2.03*",
    "-1.5",
    "two\n\nlines\tand ; : ' ` -- é",
    "  indented",
    "",
]
_ESCAPES = {
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textbackslash{}": "\\",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    r"$\pm$": "±",
    "$-$": "-",
    "{[}": "[",
    "{*}": "*",
    r"\quad ": "  ",
    **{f"\\{sign}": sign for sign in "&%$#_{}"},
}
_TOKEN = re.compile("|".join(map(re.escape, sorted(_ESCAPES, key=len, reverse=True))) + "|.")


def read_cell(text):
    """What LaTeX prints of a cell; a sign that it would not print is a failure."""
    printed = ""
    for token in _TOKEN.findall(text):
        assert token in _ESCAPES or token not in "&%$#_{}~^\\<>|±", (token, text)
        printed += _ESCAPES.get(token, token)
    return printed


def read_latex(text):
    """The tables of a LaTeX text as rows of cells, and the places of those in bold."""
    tables = []
    lines = iter(text.splitlines())
    for line in lines:
        begun = re.fullmatch(r"\\begin\{tabular\}\{([lr]+)\}", line)
        if not begun:
            assert not line or line.startswith("% ")
            continue
        rows, bold = [], set()
        assert next(lines) == r"\toprule"
        for row in lines:
            if row == r"\bottomrule":
                break
            if row == r"\midrule":
                continue
            assert row.endswith(r" \\") and not row.startswith(("[", "*"))
            cells = re.split(r"(?<!\\)&", row.removesuffix(r" \\"))
            assert len(cells) == len(begun[1])
            for column, cell in enumerate(cells):
                marked = re.fullmatch(r"\\textbf\{(.*)\}", cell.strip())
                if marked:
                    bold.add((len(rows) - 1, column))
                    cells[column] = marked[1]
            rows.append([read_cell(cell.strip()) for cell in cells])
        assert next(lines) == r"\end{tabular}"
        tables.append((rows, bold))
    return tables


def printed(report, format, capsys):
    print_report(report, format)
    return capsys.readouterr().out


GRID = Grid(
    ["", "a|b", ""],
    [[cell, "62.5", "±1.0"] for cell in HOSTILE] + [["last", "63.0", ""]],
    {(len(HOSTILE), 1)},
)


def test_latex_says_what_the_cells_say(capsys):
    text = printed(Report({}, ["100% of\n[all]", GRID, "end"], []), "latex", capsys)
    assert text.startswith("% \\usepackage{booktabs}\n% 100% of\n% [all]\n\\begin{tabular}{lrr}")
    ((rows, bold),) = read_latex(text)
    for row, given in zip(rows, (GRID.headers, *GRID.rows), strict=True):
        assert [cell.split() for cell in row] == [cell.split() for cell in given]
    assert rows[HOSTILE.index("  indented") + 1][0] == "  indented"
    assert bold == GRID.best


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs a TeX with booktabs")
def test_latex_compiles(capsys, tmp_path):
    text = printed(Report({}, ["100%", GRID, GRID], []), "latex", capsys)
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n%s\\end{document}"
    (tmp_path / "table.tex").write_text(document % text)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "table.tex"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "table.pdf").exists()


def test_a_minus_is_a_minus_in_numbers_only():
    assert latex_text("-0.5 to -0.1") == "$-$0.5 to $-$0.1"
    assert latex_text("head 1-6, all-MiniLM") == "head 1-6, all-MiniLM"


def test_equal_scores_are_all_the_best_and_one_alone_is_not():
    rows = [["a", "1.00", "-"], ["", "±9.00", ""], ["b", "3.10", "2"], ["c", "3.10", "-"]]
    assert best_cells(rows, [1, 2], range(4)) == {(2, 1), (3, 1)}
    assert best_cells(rows, [1], [0, 2]) == {(2, 1)}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A file of graded pairs."""
    path = tmp_path_factory.mktemp("graded") / "my_pairs.tsv"
    words = ["rain", "dog", "cat", "bread", "sun", "tree"]
    lines = ["sentence1\tsentence2\tscore"]
    for number in range(24):
        first = f"The {words[number % 6]} is here."
        lines.append(f"{first}\tA {words[(number * number) % 5]} was there.\t{number % 6}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def commands(pairs, bert_folder, tmp_path):
    """Every command with ``--format``, on a tiny backbone, and the number of its CSV's rows."""
    model = ("--backbone", bert_folder)
    results = ("-o", tmp_path / "results")
    return {
        "eval": (("eval", "last-avg", "cls", *model, "--task", pairs, "--subsets"), 2),
        "reproduce": (("reproduce", "promptbert/2", *model, *results), None),
    }


@pytest.mark.parametrize("name", ["eval", "reproduce"])
def test_a_command_prints_every_format(name, commands, run):
    arguments, count = commands[name]
    table = run(*arguments)
    assert table.code == 0, table.err
    assert run(*arguments, "--format", "table").out == table.out
    document = run(*arguments, "--json")
    assert run(*arguments, "--format", "json").out == document.out
    assert json.loads(document.out)

    rows = list(csv.DictReader(run(*arguments, "--format", "csv").out.splitlines()))
    assert rows and count in (None, len(rows)) and None not in rows[0]
    latex = run(*arguments, "--format", "latex")
    assert latex.code == 0, latex.err
    tables = read_latex(latex.out)
    markdown = run(*arguments, "--format", "markdown").out.splitlines()
    assert len([line for line in markdown if line.startswith("| ---")]) == len(tables)
    for cells, bold in tables:
        assert bold or name == "reproduce" or {"points", "layer"} & set(cells[0])
        for line in cells:
            written = [" ".join(cell.split()) for cell in line]
            assert any(all(cell in row for cell in written) for row in markdown), line
            assert all(cell in table.out for cell in written), line
    if name != "reproduce":
        assert "±" in table.out
        short = run(*arguments, "--format", "latex", "--no-intervals").out
        assert "pm$" in latex.out and "pm$" not in short and "interval," not in short
        assert [bold and len(bold) for _, bold in read_latex(short)] == [
            bold and len(bold) for _, bold in tables
        ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["eval", "--format", "xml"],
            ["--format", "'xml'", "table", "markdown", "json"],
        ),
        (["eval", "--format", "Latex"], ["'Latex'", "'latex'"]),
        (["eval", "--json", "--format", "csv"], ["--format", "csv and --json"]),
        (["reproduce", "list", "--format", "csv"], ["'csv'", "table, json"]),
    ],
)
def test_formats_that_do_not_exist_are_refused(arguments, words, run):
    refused(run(*arguments, "-q"), 2, *words)
