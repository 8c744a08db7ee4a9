"""docs/line.md and the published figures of the line."""

import runpy
import tomllib
from pathlib import Path

import pytest

from promptcli.plugins.papers import published
from promptcli.recipe import RECIPES
from promptcli.training.methods import METHODS

ROOT = Path(__file__).parents[3]
FACTS = tomllib.loads((Path(published.__file__).parent / "line.toml").read_text(encoding="utf-8"))


def test_the_page_is_up_to_date():
    page = runpy.run_path(str(ROOT / "docs" / "generate_line.py"))["page"]()
    assert page == (ROOT / "docs" / "line.md").read_text(encoding="utf-8"), "run `make docs`"


@pytest.mark.parametrize(
    "row", FACTS["rows"], ids=lambda row: f"{row['method']}, {row['backbone']}"
)
def test_a_row_is_whole_and_its_mean_that_of_its_figures(row):
    scores = row.get("scores", [])
    assert len(scores) in (0, len(FACTS["tasks"])) and row["source"]
    if scores and "printed mean differs" not in row.get("note", ""):
        assert sum(scores) / len(scores) == pytest.approx(row["mean"], abs=0.0151)
    words = row.get("command", "").split()
    if words[:1] == ["eval"]:
        assert words[1] in RECIPES
    if words[:1] == ["train"]:
        assert words[1] in METHODS
