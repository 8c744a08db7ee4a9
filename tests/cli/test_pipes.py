"""A pipe in the place of a file: every line arrives, since it is read once (tests/data reads pipes of other kinds)."""

import os
import threading
from pathlib import Path

import pytest

from tests.embed_running import fake_encoder  # noqa: F401

#: Read at once, a pipe gives 64 KiB; these lines are more.
LINES = [f"line {number} of very many" for number in range(5000)]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("index build one -o index -q", ("rows      5,000 of 8 numbers",)),
        ("embed one -q", [f'{{"id":{number},"text":"{line}"' for number, line in enumerate(LINES)]),
        ("similarity one two", ["1.0000"] * len(LINES)),
    ],
)
def test_every_line_arrives(words, lines, run):
    for name in ("one", "two"):
        os.mkfifo(name)
        threading.Thread(target=Path(name).write_text, args=("\n".join(LINES),), daemon=True).start()
    ran = run(*words.split())
    assert ran.code == 0, ran.err
    shown = ran.out.replace(", ", ",").replace(": ", ":").splitlines() if "embed" in words else ran.out.splitlines()
    shown = [line for line in shown if line.startswith(("rows", "{", "1"))]
    assert len(shown) == len(lines) and all(map(str.startswith, shown, lines))
