"""Curves of trainings: points, the table, the picture, and the commands that show them."""

import statistics

import pytest

from promptcli.cli.curves import Curve, Point, curve_grid, curve_records, curves_of, draw_curves
from promptcli.errors import UsageError
from promptcli.models.entries import Entry
from promptcli.recipe import RECIPES
from tests.embed_running import refused


def scores(*values, loss=1.0):
    made = []
    for number, value in enumerate(values):
        best = value > max(values[:number], default=-1)
        of_step = {"step": 10 * number, "loss": loss if number else None, "value": value}
        made.append({**of_step, "best": best, "seconds": 1.0, "rate": 20.0 if number else None})
    return made


RECORDS = [
    {"changes": {"temperature": 0.05, "seed": 0}, "curve": scores(50.0, 60.0, 58.0)},
    {"changes": {"temperature": 0.05, "seed": 1}, "curve": scores(50.0, 64.0)},
    {"changes": {"temperature": 0.1, "seed": 0}, "curve": scores(50.0, 40.0, 41.0)},
]


def test_runs_that_differ_in_their_seed_are_one_curve():
    curves = curves_of(RECORDS)
    assert [(curve.name, len(curve.runs)) for curve in curves] == [
        ("temperature 0.05", 2),
        ("temperature 0.1", 1),
    ]
    spread = statistics.stdev([60.0, 64.0])
    assert curves[0].points("value") == [
        Point(0, 50.0, 0.0),
        Point(10, 62.0, spread),
        Point(20, 58.0, 0.0),  # one seed came that far
    ]
    assert [point.step for point in curves[0].points("loss")] == [10, 20]


def test_one_run_is_shown_with_its_loss_several_with_their_spread():
    grid = curve_grid([Curve("", [scores(50.0, 60.25)])], "demo:dev")
    assert list(grid.heads) == ["step", "loss", "demo:dev", "best", "examples/s"]
    assert list(grid.rows) == [("0", "-", "50.00", "*", "-"), ("10", "1.0000", "60.25", "*", "20")]
    grid = curve_grid(curves_of(RECORDS), "demo:dev")
    assert list(grid.heads) == ["step", "temperature 0.05", "temperature 0.1"]
    assert grid.rows[1] == ("10", "62.00 ±2.83", "40.00")


def test_the_picture_has_means_bands_and_names(tmp_path):
    file = tmp_path / "curve.svg"
    draw_curves(file, curves_of(RECORDS), "Training of mine (simcse)", "demo:dev")
    drawn = file.read_text().replace("\N{NO-BREAK SPACE}", " ")
    for text in ("temperature 0.05", "Mean of 2 seeds; band: one standard deviation.", "step"):
        assert text in drawn
    assert drawn.count('id="FillBetweenPolyCollection') == 2  # one of two settings, two panels
    first = file.read_bytes()
    draw_curves(file, curves_of(RECORDS), "Training of mine (simcse)", "demo:dev")
    assert file.read_bytes() == first


def test_score_and_loss_have_the_same_steps(tmp_path, monkeypatch):
    limits = []
    monkeypatch.setattr(
        "promptcli.cli.curves.figure_title",
        lambda figure, *lines: limits.extend(panel.get_xlim() for panel in figure.axes),
    )
    records = [{"changes": {}, "curve": scores(50.0, 60.0)}]  # one loss, at the last step
    draw_curves(tmp_path / "c.svg", curves_of(records), "Training", "demo:dev")
    assert limits[0] == limits[1]


def test_of_many_settings_the_best_are_drawn(tmp_path):
    records = [{"changes": {"steps": n}, "curve": scores(1.0 * n, 2.0 * n)} for n in range(1, 12)]
    file = tmp_path / "curve.svg"
    draw_curves(file, curves_of(records), "Training", "demo:dev")
    drawn = file.read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "The best 7 of 11 settings." in drawn
    assert "<!-- steps 11 -->" in drawn and "<!-- steps 4 -->" not in drawn


@pytest.fixture
def trained(registry):
    facts = {"method": "simcse", "chosen_by": "demo:dev", "curve": RECORDS[0]["curve"]}
    registry.save(Entry("one", RECIPES["cls"], provenance={"trained": facts}))
    registry.save(Entry("many", RECIPES["cls"], provenance={"trained": facts | {"runs": RECORDS}}))
    registry.save(Entry("other", RECIPES["cls"]))


def test_a_model_shows_its_curve(run, trained, tmp_path):
    shown = run("models", "show", "one", "--curve")
    assert [line.split()[:3] for line in shown.out.splitlines()][-1] == ["20", "1.0000", "58.00"]
    assert run("models", "show", "many", "--curve", "--json").json == RECORDS
    file = tmp_path / "curve.png"
    ran = run("models", "show", "many", "--plot", file)
    assert ran.code == 0 and file.read_bytes().startswith(b"\x89PNG")
    refused(run("models", "show", "many", "--plot", file), 2, "--force")
    assert run("models", "show", "many", "--plot", file, "--force").code == 0
    refused(run("models", "show", "other", "--curve"), 2, "'other'", "no curve")


def test_a_record_without_a_curve_is_refused():
    with pytest.raises(UsageError, match="was not trained here"):
        curve_records({}, "mine")
