"""Texts from which queries can be made: letters with subjects, in our own words."""

import csv
import itertools

THINGS = "boat bridge castle drum engine fence garden hammer island jacket kettle ladder".split()
TROUBLES = ["leaks at the bottom", "makes a strange noise", "was never delivered"]
COLOURS = "red green".split()


def write_letters(path):
    """Write 72 letters as a table with subjects; return its path."""
    rows = [["subject", "text"]]
    numbers = itertools.count(1000)
    for thing in THINGS:
        for trouble in TROUBLES:
            for colour in COLOURS:
                subject = f"{thing} in {colour} {trouble}"
                told = trouble.replace("leaks", "drips")
                rows.append(
                    [subject, f"Order {next(numbers)}: the {thing} {told}, please help me!"]
                )
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path
