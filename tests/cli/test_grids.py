"""Tables in narrow terminals."""

import re

import pytest
from rich.console import Console

from promptcli.cli.grids import Grid
from promptcli.cli.pictures import head_map, token_map

MODELS = [
    [
        "mini",
        'This sentence : "[X]" means [MASK] . | last/mask | -',
        "85.17 STS-B:dev",
        "mini-bert",
        "256",
    ],
    [
        "bert-base-uncased",
        "[X] | first-last/avg | whitening:256 normalize",
        "-",
        "bert-base-uncased",
        "768",
    ],
]
HEADS = ["name", "method", "score", "backbone", "width"]
SCORES = [["bert-base-uncased", *["39.71"] * 8], ["", *["±12.34"] * 8]]


def shown(grid, width):
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("grid", [Grid(HEADS, MODELS), Grid(["", *"abcdefgh"], SCORES)])
def test_no_word_and_no_number_is_broken(grid, width):
    lines = shown(grid, width)
    assert max(map(len, lines)) <= width
    words = {word for cells in [grid.heads, *grid.rows] for cell in cells for word in cell.split()}
    assert {word for line in lines for word in line.split()} == words


def test_columns_without_room_follow_below_beside_the_first():
    lines = shown(Grid(["", *"abcdefgh"], SCORES), 60)
    assert [line.split()[0] for line in lines if "bert" in line] == ["bert-base-uncased"] * 2
    assert [re.findall(r"\b[a-h]\b", line) for line in (lines[0], lines[4])] == [
        list("abcde"),
        list("fgh"),
    ]


def test_a_column_without_a_head_stays_at_the_one_before_it():
    rows = [["a long name of a model", "12.34", "±1.23", "56.78", "±5.67"]]
    assert [line.split() for line in shown(Grid(["", "one", "", "two", ""], rows), 40)][-1][
        -2:
    ] == ["56.78", "±5.67"]


def test_a_wide_table_is_unchanged():
    assert shown(Grid(["task", "score"], [["STS-B", "85.17"], ["SICK", "-"]]), 80) == [
        "task   score",
        "STS-B  85.17",
        "SICK       -",
    ]


def test_a_word_longer_than_the_terminal_is_folded():
    assert "".join(shown(Grid(["name"], [["x" * 50]]), 20)[1:]) == "x" * 50


@pytest.mark.parametrize("width", [60, 80])
def test_maps_fit_the_terminal(width):
    tokens, values = (
        [f"token{number}" for number in range(30)],
        [[float(number) for number in range(30)]] * 30,
    )
    for heads, lines in (
        ("layer", head_map(values, width)),
        ("", token_map(tokens, values, width)),
    ):
        plain = [line.plain for line in lines]
        assert max(map(len, plain)) <= width
        above = [
            line.removeprefix(heads).split()
            for line in plain
            if re.fullmatch(rf"{heads or ' '}[\d ]+", line)
        ]
        assert [int(column) for columns in above for column in columns] == list(range(1, 31))


def test_a_block_has_no_row_in_which_it_holds_nothing():
    rows = [["1", "a name of some length", "12.34", "56.78"], ["", "plain", "1.23", ""]]
    lines = shown(Grid(["", "name", "value", "correlation"], rows), 32)
    assert [line.split() for line in lines[-2:]] == [["correlation"], ["1", "56.78"]]
