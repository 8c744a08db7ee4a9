"""``--plot`` of ``eval``, ``search-layers``, ``search-templates``: what is drawn."""

import pytest
from matplotlib.figure import Figure

from promptcli.cli import pictures
from promptcli.cli.pictures import Dot, draw_dots
from tests.drawn import keep_figures
from tests.embed_running import refused
from tests.tiny import SENTENCES

KINDS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn; their files are written, too."""
    return keep_figures(monkeypatch, pictures)


@pytest.fixture
def graded(tmp_path):
    """Make a file of graded pairs."""

    def make(name, start=0):
        lines = ["sentence1\tsentence2\tscore"]
        for number in range(12):
            second = SENTENCES[(number * number + start) % 5]
            lines.append(f"{SENTENCES[number % 4]}\t{second}\t{number % 6}")
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return make


@pytest.fixture
def draw(run, tiny_folder, tmp_path):
    """Run a command on a tiny backbone with ``--plot``; return the bytes of the picture."""

    def call(*arguments, kind=".svg"):
        path = tmp_path / f"picture{kind}"
        path.unlink(missing_ok=True)
        model = ("--backbone", tiny_folder("bert"), "--offline")
        ran = run(*arguments, *model, "--plot", path)
        assert ran.code == 0, ran.err
        assert f"drawn to {path}" in ran.err
        return ran, path.read_bytes()

    return call


def marks(panel):
    """Place -> mark and value of each score in a panel."""
    found = {}
    for line in panel.lines:
        if line.get_marker() in ("o", "D"):
            found[line.get_ydata()[0]] = (line.get_marker(), line.get_xdata()[0])
    return found


def names_at(panel):
    return [label.get_text() for label in panel.get_yticklabels()]


def test_eval_draws_a_panel_for_each_task(figures, graded, draw):
    tasks = ("--task", graded("first.tsv"), "--task", graded("second.tsv", 2))
    ran, content = draw("eval", "cls", "last-avg", *tasks, "--json")
    assert content.startswith(KINDS[".svg"])
    first, second = figures[0].axes
    assert [panel.get_title() for panel in (first, second)] == ["first.tsv", "second.tsv"]
    assert names_at(first) == ["cls", "last-avg"]
    results = ran.json["results"]
    for panel, name in ((first, "first.tsv"), (second, "second.tsv")):
        values = [row["value"] for row in results if row["task"].endswith(name)]
        drawn = marks(panel)
        assert [drawn[place][1] for place in (0, 1)] == pytest.approx(values, abs=1e-3)
        best = [value == max(values) for value in values]
        assert [drawn[place][0] == "D" for place in (0, 1)] == best
    bars = [line.get_xdata() for line in first.lines if len(line.get_xdata()) == 2]
    ends = [row["ci95"] for row in results if row["task"].endswith("first.tsv")]
    for bar, interval in zip(bars, ends, strict=True):
        assert bar == pytest.approx(interval, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_is_drawn(kind, graded, draw):
    _, content = draw("eval", "cls", "--task", graded("pairs.tsv"), kind=kind)
    assert content.startswith(KINDS[kind])


def test_a_model_without_a_score_of_a_task_leaves_its_line_empty():
    panel = Figure().subplots()
    draw_dots(panel, [Dot("a", 1.0, (0.0, 2.0)), Dot("b" * 60, None), Dot("c", 3.0)])
    assert names_at(panel) == ["a", f"{'b' * 47}…", "c"]
    assert marks(panel) == {0: ("o", 1.0), 2: ("D", 3.0)}


def test_a_score_alone_is_not_the_best():
    panel = Figure().subplots()
    draw_dots(panel, [Dot("a", 1.0, (0.0, 2.0))])
    assert marks(panel) == {0: ("o", 1.0)}


def test_layers_are_drawn_in_their_order(figures, graded, draw):
    ran, _ = draw("search-layers", "--on", graded("pairs.tsv"), "--json", "--model", "cls")
    (panel,) = figures[0].axes
    ranked = {row["choice"]: row["value"] for row in ran.json["ranked"]}
    layers = [f"layer-{number}/cls" for number in range(len(ranked) - 3)]
    shown = names_at(panel)
    assert shown == [*layers, "last/cls", "first-last/cls", "first-last:1/cls"]
    drawn = marks(panel)
    for place, name in enumerate(shown):
        assert drawn[place][1] == pytest.approx(ranked[name], abs=1e-3)
    own = ran.json["baseline"]["own"]
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.texts] == [f"{own['choice']}: {own['value']:.1f}"]


def test_templates_are_drawn_best_first_and_the_averages_as_lines(figures, graded, draw, tmp_path):
    file = tmp_path / "templates.txt"
    file.write_text('It costs $5 "[X]" or $6 [MASK] .\n[X] is [MASK] .\n[X] [MASK]\n')
    free = ("--mode", "free", "--candidates", file)
    ran, _ = draw("search-templates", "--on", graded("pairs.tsv"), *free, "--json")
    (panel,) = figures[0].axes
    assert names_at(panel) == [row["choice"] for row in ran.json["ranked"]]
    assert marks(panel)[0][0] == "D"
    (legend,) = figures[0].legends
    averages = [text.get_text().split(":")[0] for text in legend.texts]
    assert averages == [row["choice"] for row in ran.json["baseline"].values()]


@pytest.mark.parametrize("command", ["eval", "search-layers", "search-templates"])
def test_pictures_that_cannot_be_drawn_are_refused_before_any_work(command, run, tmp_path):
    (tmp_path / "taken.png").write_text("")
    refused(run(command, "--plot", tmp_path / "taken.png", "-q"), 2, "taken.png", "--force")
    refused(run(command, "--plot", "scores.gif", "-q"), 2, ".png or .svg or .pdf")
