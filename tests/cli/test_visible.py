"""Names, columns and texts of strangers: nothing of them reaches the terminal as a command."""

import io
import json
import logging
import re

import pytest
from rich.console import Console
from rich.text import Text

from promptcli.cli import console
from promptcli.cli.console import Grid
from promptcli.cli.visible import escape_controls, escape_controls_in_json

#: ESC, BEL, CR, DEL, C1's CSI and NEL, an override of direction, a separator of lines.
SIGNS = "\x1b[2J\x07\r\x7f\x9b\x85\u202e\u2066\u2028"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def test_signs_are_visible_and_letters_stay():
    shown = escape_controls(f"a{SIGNS}\nb\tc é 漢 👩\u200d🚀")
    assert not OBEYED.search(shown) and "\n" not in shown
    assert shown.startswith("a␛[2J␇␍␡") and shown.endswith("b\tc é 漢 👩\u200d🚀")


def test_json_keeps_the_value():
    document = json.dumps({"name": SIGNS}, ensure_ascii=False)
    assert json.loads(escape_controls_in_json(document)) == {"name": SIGNS}
    assert not re.search("[\x00-\x1f\x7f-\x9f]", escape_controls_in_json(document))


def test_every_way_to_print_is_clean(capsys, monkeypatch):
    name = f"a{SIGNS}\nforged"
    said = io.StringIO()
    terminal = Console(file=said, force_terminal=True, color_system=None, width=80)
    monkeypatch.setattr(console, "err", terminal)
    console.say(name)
    console._NoteHandler().emit(logging.makeLogRecord({"msg": name}))
    with console.progress(name, 2) as advance:
        advance(1)
        advance.describe(name)
    terminal.print(Text("end"))
    written = re.sub("\x1b\\[[0-9;?]*[A-Za-z]|\r", "", said.getvalue())  # of the bar itself
    assert not OBEYED.search(written)
    console.print_line(name)
    console.print_marked(name, name)
    console.print_table([name, "b"], [[name, name]])
    console.show(name)
    out = capsys.readouterr().out
    assert not OBEYED.search(out) and "\nforged" not in out


@pytest.mark.parametrize("format", ["table", "markdown", "latex", "csv"])
def test_results_of_every_format_are_clean(format, capsys):
    from promptcli.cli.result_files import Report, print_report

    name = f"a{SIGNS}"
    grid = Grid(["", "b"], [[name, "1"]])
    print_report(Report({"a": name}, [name, grid], [{"a": name}]), format)
    assert not OBEYED.search(capsys.readouterr().out)


def test_names_of_files_and_columns(run, here):
    (here / "d").mkdir()
    (here / "d" / f"a{SIGNS[:4]}\nforged.txt").write_text("A cat sleeps.\n")
    (here / "d" / f"b{SIGNS[:4]}.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\xff")
    (here / "d" / "c.csv").write_text("text,na\x1b[31mme\nA dog barks.,1\n")
    for words in (
        ("search", "cat", "d", "-m", "mini-static", "--context", 1),
        ("index", "sync", "i", "d", "-m", "mini-static"),
        ("index", "info", "i"),
        ("index", "search", "i", "cat"),
        ("index", "search", "i", "cat", "--where", "zz = 1"),
        ("embed", "d/c.csv", "--text-field", "zz", "-o", "v.npy"),
    ):
        ran = run(*words)
        assert not OBEYED.search(ran.out + ran.err), words
        assert not any(line.startswith("forged") for line in ran.out.splitlines())
    hits = [json.loads(line) for line in run("search", "cat", "d", "--json").out.splitlines()]
    assert any(hit["file"] == f"d/a{SIGNS[:4]}\nforged.txt" for hit in hits)
