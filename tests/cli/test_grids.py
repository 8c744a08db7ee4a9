"""Tables in the terminal."""

import pytest
from rich.console import Console

from promptcli.cli.console import Grid

SCORES = [["bert-base-uncased", *["39.71"] * 4], ["", *["±12.34"] * 4]]


def shown(grid, width):
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_number_is_broken(width):
    lines = shown(Grid(["", *"abcd"], SCORES), width)
    words = {word for cells in SCORES for cell in cells for word in cell.split()}
    assert words <= {word for line in lines for word in line.split()}


def test_numbers_are_aligned_on_the_right():
    assert shown(Grid(["task", "score"], [["STS-B", "85.17"], ["SICK", "-"]]), 80) == [
        "task   score",
        "STS-B  85.17",
        "SICK       -",
    ]


def test_a_word_longer_than_the_terminal_is_folded():
    assert "".join(shown(Grid(["name"], [["x" * 50]]), 20)[1:]) == "x" * 50
