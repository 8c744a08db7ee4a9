"""Compares the output that a page shows with what is printed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def shape(line):
    """Return a line of output without its numbers, hashes and spacing, which differ by machine.

    A narrow model's numbers have other signs, and another one is in bold in LaTeX.
    """
    line = re.sub(r"\\textbf\{(.*?)\}", r"\1", line)
    line = re.sub(r"(?:[-+]|\$-\$)(?=\d)", "", line)
    line = re.sub(r"\b[0-9a-f]{8,}\b", "#", line)
    return " ".join(re.sub(r"\d+(?:[.,:]\d+)*", "#", line).split())


def decimals(line):
    """Return the decimal fractions of a line."""
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


def is_shown(line, printed, page):
    """Return whether a line of a page is a printed one; ``...`` at its end means any rest.

    The README shows what the shipped models print, up to the difference of bfloat16 to float32.
    """
    if line.endswith(" ..."):
        line = line.removesuffix(" ...")
        printed = printed[: len(line)]
    if page == README and decimals(line) != pytest.approx(decimals(printed), abs=0.02):
        return False
    return shape(line) == shape(printed)


def check_output(shown, printed, page):
    """Fail unless each line that the page shows is printed; a line ``...`` means lines left out."""
    missing = [
        line
        for line in shown.splitlines()
        if line.strip() not in ("", "...")
        and not any(is_shown(line, other, page) for other in printed.splitlines())
    ]
    assert missing == [], f"{page.name} shows what is not printed; printed is:\n{printed}"


def shorten(name, lines):
    """Leave the first lines of a file: every command takes them, in less time."""
    path = Path(name)
    path.write_text(
        "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]),
        encoding="utf-8",
    )
