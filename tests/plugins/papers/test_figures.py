"""``reproduce`` of a figure: drawn into the folder of results, beside published values."""

import importlib.util
import json

import pytest

from promptcli.plugins.papers import pictures
from promptcli.plugins.papers.figures import draw_numbers
from tests.kept_figures import keep_figures

needs_analyze = pytest.mark.skipif(
    importlib.util.find_spec("promptcli.plugins.analyze") is None, reason="analyze is not here"
)
ROW = {"method": "length 1", "figures": {}, "published": {"figures": {}, "backbone": "bert-base"}}
DOCUMENT = {
    "table": "dcpcse/figure-2",
    "title": "Prefix length and STS",
    "columns": ["Avg"],
    "backbone": {"name": "tiny", "published": "tiny"},
    "rows": [
        {
            **ROW,
            "figures": {"Avg": {"value": 70.0, "ci95": [68.0, 72.0], "on": []}},
            "published": {"figures": {"Avg": 76.5}, "backbone": "bert-base"},
        },
        {**ROW, "method": "length 5", "figures": {"Avg": {"value": 71.0, "ci95": None, "on": []}}},
        {**ROW, "method": "length 10"},
    ],
}


@pytest.fixture
def seen(monkeypatch):
    """The figures that are drawn, as matplotlib has them."""
    from promptcli.plugins.analyze import pictures as drawing

    return keep_figures(monkeypatch, drawing)


def test_measured_and_published_numbers_are_drawn(tmp_path, seen):
    [path] = draw_numbers(tmp_path, DOCUMENT)
    assert path == tmp_path / "dcpcse-figure-2.tiny.png" and path.read_bytes()[1:4] == b"PNG"
    (panel,) = seen[0].axes
    assert [label.get_text() for label in panel.get_yticklabels()] == [
        "length 1",
        "length 5",
        "length 10",
    ]
    marks = [
        (line.get_marker(), line.get_xdata()[0], line.get_ydata()[0])
        for line in panel.lines
        if line.get_marker() in ("o", "D")
    ]
    assert marks == [("o", 70.0, 0), ("D", 76.5, 0), ("o", 71.0, 1)]
    (legend,) = seen[0].legends
    assert [text.get_text() for text in legend.texts] == ["measured, tiny", "published, bert-base"]


def test_a_column_without_a_number_has_no_panel(tmp_path, seen):
    document = {**DOCUMENT, "columns": ["STS12", "STS15", "Avg"], "rows": [*DOCUMENT["rows"]]}
    document["rows"][1] = {
        **ROW,
        "method": "other",
        "figures": {"STS12": {"value": 40.0, "ci95": None, "on": []}},
    }
    assert draw_numbers(tmp_path, document)
    labels = [panel.get_xlabel().split()[0] for panel in seen[0].axes]
    assert labels == ["STS12", "Avg"]
    (legend,) = seen[0].legends  # the first column has no published value
    assert [text.get_text() for text in legend.texts] == ["measured, tiny", "published, bert-base"]


def test_tables_and_pictures_have_no_such_figure(tmp_path):
    assert draw_numbers(tmp_path, {**DOCUMENT, "table": "dcpcse/2"}) == []
    assert draw_numbers(tmp_path, {**DOCUMENT, "columns": ["picture"]}) == []
    assert not list(tmp_path.iterdir())


@needs_analyze
def test_a_figure_without_numbers_is_drawn_and_stands_on_the_page(run, bert_folder, tmp_path):
    folder = tmp_path / "results"
    model = ("--backbone", bert_folder, "--offline", "-o", folder)
    ran = run("reproduce", "ditto/figure-1", *model)
    assert ran.code == 0, ran.err
    (result,) = folder.glob("*.json")
    (row,) = json.loads(result.read_text())["rows"]
    picture = row["figures"]["picture"]["value"]
    assert (folder / picture).read_bytes()[1:4] == b"PNG"
    assert f"]({picture})" in result.with_suffix(".md").read_text()


def test_without_matplotlib_the_reason_is_said(run, bert_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures.errors, "missing_libraries", lambda *names: list(names))
    folder = tmp_path / "results"
    model = ("--backbone", bert_folder, "--offline", "-o", folder)
    ran = run("reproduce", "ditto/figure-1", *model)
    assert "with matplotlib installed" in ran.out and not folder.exists()
