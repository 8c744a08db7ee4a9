"""Numbers and dates of a table, by the form of all its cells, its other columns and separator."""

import pytest

from promptcli.data.column_forms import ColumnForms, scale_value


def read(separator, **columns):
    """Return the cells of columns as they are read, and what was not certain."""
    forms = ColumnForms(separator)
    for cells in zip(*columns.values(), strict=True):
        forms.see(dict(zip(columns, cells, strict=True)))
    converts = forms.decide()
    plain = {
        name: [converts[name](cell) if cell and name in converts else cell for cell in cells]
        for name, cells in columns.items()
    }
    return plain, set(forms.doubts)


PRICES = ["3,50", "4,10", "0,99"]
CERTAIN = {
    "decimal commas by the price": (";", ["1,250", "2,500", "3"], ["1.250", "2.500", "3"]),
    "points of thousands by the price": (",", ["950", "1.200", "12.000"], ["950", "1200", "12000"]),
    "both signs": (",", ["1.250,50", "3", "-2"], ["1250.50", "3", "-2"]),
    "spaces": ("\t", ["1 250", "3", "12\u00a0000,5"], ["1250", "3", "12000.5"]),
    "apostrophes": (";", ["1'250.50", "3", ""], ["1250.50", "3", ""]),
    "a currency behind": (";", ["1.250,50 €", "3 €", ""], ["1250.50", "3", ""]),
    "a currency before": (",", ["$1,250.00", "-$3", "$ 4"], ["1250.00", "-3", "4"]),
    "a currency's code": (",", ["EUR 12,50", "EUR 3", ""], ["12.50", "3", ""]),
    "percent": (";", ["12,5 %", "7%", ""], ["12.5", "7", ""]),
    "minus": (";", ["−1.200,5", "-3", "0"], ["-1200.5", "-3", "0"]),
    "exponents": (",", ["1e5", "2.5E-3", "3"], ["1e5", "2.5E-3", "3"]),
    "numbers as they are": (",", ["1.25", "-2", "3"], ["1.25", "-2", "3"]),
    "codes": (",", ["007", "12", "1,5"], ["007", "12", "1,5"]),
    "too many digits": (",", ["12345678901234567", "1,5", "2"], ["12345678901234567", "1,5", "2"]),
    "addresses": (",", ["192.168.100.200", "10.0.0.1", ""], ["192.168.100.200", "10.0.0.1", ""]),
    "versions": (",", ["1.2.30", "1.10.12", "2.1.3"], ["1.2.30", "1.10.12", "2.1.3"]),
    "versions that may be dates": (",", ["1.2.30", "1.10.12", ""], ["1.2.30", "1.10.12", ""]),
    "telephones": (",", ["+49 170 123 456", "1", "2"], ["+49 170 123 456", "1", "2"]),
    "two units": (",", ["5 €", "5 $", "1,5 €"], ["5 €", "5 $", "1,5 €"]),
    "a word": (",", ["1,5", "2,5", "soon"], ["1,5", "2,5", "soon"]),
    "numbers of JSON": (None, ["12,50", 12.5, 1], ["12,50", 12.5, 1]),
    "points": (",", ["31.12.2024", "2.1.2026", ""], ["2024-12-31", "2026-01-02", ""]),
    "short years": (",", ["31.12.24", "01.01.99", ""], ["2024-12-31", "1999-01-01", ""]),
    "short years without zeros": (
        ";",
        ["1.2.24", "31.12.23", "5.11.99"],
        ["2024-02-01", "2023-12-31", "1999-11-05"],
    ),
    "a late day in the month": (";", ["1.2.24", "28.2.24", ""], ["2024-02-01", "2024-02-28", ""]),
    "short years beside long ones": (
        ";",
        ["1.2.24", "1.2.2023", ""],
        ["2024-02-01", "2023-02-01", ""],
    ),
    "days first": ("\t", ["31/12/2024", "1/2/2024", ""], ["2024-12-31", "2024-02-01", ""]),
    "months first": (",", ["12/31/2024", "1/2/24", ""], ["2024-12-31", "2024-01-02", ""]),
    "without zeros": (",", ["2024-5-1", "2024/5/2", ""], ["2024-5-1", "2024/5/2", ""]),
    "years first": (",", ["2024/5/1", "2024/12/2", ""], ["2024-05-01", "2024-12-02", ""]),
    "times": (
        ";",
        ["31.12.2024 14:30", "2.1.2026, 9:05:01,5", "3.1.2026"],
        ["2024-12-31 14:30", "2026-01-02 09:05:01.5", "2026-01-03"],
    ),
    "halves": (
        ",",
        ["12/31/2024 12:30 AM", "1/2/2024 3:05 pm", ""],
        ["2024-12-31 00:30", "2024-01-02 15:05", ""],
    ),
    "zones": (",", ["31.12.2024T14:30+01:00", "", ""], ["2024-12-31 14:30+01:00", "", ""]),
    "ISO": (",", ["2024-05-31", "2024-05-31T10:00Z", ""], ["2024-05-31", "2024-05-31T10:00Z", ""]),
    "names": (",", ["31 Dec 2024", "1. März 2025", ""], ["2024-12-31", "2025-03-01", ""]),
    "names first": (",", ["Dec 31, 2024", "May 1, 2025", ""], ["2024-12-31", "2025-05-01", ""]),
    "no day": (",", ["31.02.2024", "01.01.2024", ""], ["31.02.2024", "01.01.2024", ""]),
    "two forms": (",", ["31.12.2024", "2024-12-31", ""], ["31.12.2024", "2024-12-31", ""]),
    "orders that differ": (",", ["31/12/2024", "12/31/2024", ""], ["31/12/2024", "12/31/2024", ""]),
}


@pytest.mark.parametrize("name", CERTAIN)
def test_what_the_cells_and_the_prices_show_is_certain(name):
    separator, cells, plain = CERTAIN[name]
    prices = PRICES if "price" in name else ["a", "b", "c"]
    assert read(separator, n=cells, price=prices)[0]["n"] == plain
    assert not read(separator, n=cells, price=prices)[1]


@pytest.mark.parametrize(
    ("separator", "cells", "plain"),
    [
        (",", ["12.500"], ["12.500"]),
        ("\t", ["12.500"], ["12.500"]),
        (None, ["12.500"], ["12.500"]),
        (";", ["12.500"], ["12500"]),
        (";", ["1,250", "3"], ["1.250", "3"]),
        (",", ["1,250"], ["1250"]),
        (None, ["1,250"], ["1.250"]),
        (",", ["1.25", "12,50"], ["1.25", "12.50"]),
        (",", ["01/02/2024"], ["2024-02-01"]),
        (",", ["01/02/2024 3:00 PM"], ["2024-01-02 15:00"]),
    ],
)
def test_what_nothing_shows_is_read_and_said(separator, cells, plain):
    columns, doubts = read(separator, n=cells)
    assert columns["n"] == plain and doubts == {"n"}


def test_other_dates_show_which_is_the_month():
    columns, doubts = read(",", a=["01/02/2024", "03/04/2024"], b=["12/31/2024", "01/01/2025"])
    assert columns["a"] == ["2024-01-02", "2024-03-04"] and not doubts


def test_columns_that_contradict_each_other_show_nothing():
    assert read(",", n=["12.500"], a=["3,50"], b=["3.50"])[1] == {"n"}


@pytest.mark.parametrize(
    ("cell", "value"),
    [("2024-07-02", 2024.5), ("2023-01-01 10:00", 2023.0), ("1.5", 1.5), ("1,5", 1.5), ("a", None)],
)
def test_the_place_of_a_cell_on_a_scale(cell, value):
    assert scale_value(cell) == value
