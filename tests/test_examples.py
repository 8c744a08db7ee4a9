"""The programs of examples/ run with the shipped models, without network, and find what there is to
find.
"""

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import processes

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch, capsys):
    """Run a program of the folder with words on its command line.

    Return the lines of its standard output.
    """

    def ran(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return ran


def test_search_notes_finds_the_passage_that_answers(example, tmp_path):
    (tmp_path / "house.md").write_text(
        "# House\n\nThe plumber fixed the leak under the kitchen sink.\n\nPaint the bedroom.\n"
    )
    (tmp_path / "trips").mkdir()
    (tmp_path / "trips" / "summer.txt").write_text("We took the night train\nto Lisbon.")
    found = example("search_notes.py", tmp_path, "Who fixed the leaking kitchen sink?")
    assert found[0].split("  ")[1:] == [
        "house.md:2",
        "The plumber fixed the leak under the kitchen sink.",
    ]
    assert len(found) == 4 and any(
        "trips/summer.txt:1  We took the night train to Lisbon." in line for line in found
    )


def test_near_duplicates_prints_each_text_once(example, tmp_path):
    moved, weather = "The meeting was moved to Monday.", "It will rain in the mountains."
    (tmp_path / "lines.txt").write_text(
        "\n".join([moved, weather, moved, "", "The meeting has been moved to Monday."])
    )
    assert example("near_duplicates.py", tmp_path / "lines.txt") == [moved, weather]


def test_few_labels_tells_three_classes_apart(example):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert [line.split()[0] for line in example("few_labels.py")] == [
        "delivery",
        "payment",
        "account",
    ]


def test_paper_table_ranks_ditto_above_static_vectors(example):
    _, *rows = example("paper_table.py")
    figures = {recipe: float(measured) for recipe, measured, *_ in map(str.split, rows)}
    assert len(figures) == 6 and figures["last-ditto"] > figures["static-avg"]


def test_the_package_of_a_plugin_is_built_and_passes_its_tests(tmp_path):
    built = EXAMPLES / "plugin"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=built, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    words = ["-q", "-p", "no:cacheprovider", "-o", f"pythonpath={tmp_path / 'site'}"]
    tests = processes.Program(*words, built / "test_example.py", main=pytest.console_main)
    said, _ = tests.communicate()
    assert tests.returncode == 0 and b"3 passed" in said, said.decode()[-3000:]
