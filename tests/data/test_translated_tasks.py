"""STS-B in other languages: ``STS-B:de``, read from a folder of stsb-multi-mt."""

from pathlib import Path

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.task_table import TaskName
from promptcli.data.tasks import load_graded_tasks, load_tasks, task_names
from tests.comparing import refusal

ROWS = 'Ein Hund läuft.,"Ein Hund, der läuft.",4.5\nEs regnet.,Die Katze schläft.,0.2\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stsb-multi").mkdir()
    for name in ("stsb-de-dev.csv", "stsb-de-test.csv"):
        (tmp_path / "stsb-multi" / name).write_text(ROWS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("word", ["STS-B:de", "STS-B:de:dev"])
def test_a_language_and_a_split_are_named(word: str, folder: Path) -> None:
    [task] = load_graded_tasks(folder, task_names([word])).tasks
    assert task.label == word
    assert task.pairs().second == ["Ein Hund, der läuft.", "Die Katze schläft."]
    assert np.array_equal(task.pairs().gold, [4.5, 0.2])


def test_it_is_scored_beside_others(folder: Path) -> None:
    result = pc.evaluate("mini-static", ["STS-B:de:dev", "demo:dev"], data_dir=folder)
    assert {score.task for score in result} >= {"STS-B", "demo"}


def test_a_split_that_has_no_file_is_missing(folder: Path) -> None:
    loaded = load_graded_tasks(folder, task_names(["STS-B:fr", "STS-B:de:dev"]))
    assert [task.label for task in loaded.tasks] == ["STS-B:de:dev"]
    assert "stsb-fr-test.csv" in loaded.missing["STS-B:fr"]


@pytest.mark.parametrize("word", ["STS-B:xx", "STS-B:de:all", "STS-B:dve"])
def test_another_word_is_unknown(word: str) -> None:
    with refusal(r"STS-B:dev.* STS-B:de,"):
        task_names([word])


def test_without_a_folder_it_is_missing() -> None:
    assert "stsb-multi" in load_tasks(None, [TaskName("STS-B", "de")]).missing["STS-B:de"]


def test_a_folder_without_them_misses_them(tmp_path: Path) -> None:
    loaded = load_tasks(tmp_path, [TaskName("STS-B", "de")])
    assert "stsb-multi" in loaded.missing["STS-B:de"]


def test_a_row_with_other_fields_is_named(folder: Path) -> None:
    (folder / "stsb-multi/stsb-de-dev.csv").write_text("a,b,1\na,b\n", encoding="utf-8")
    with refusal("line 2: 2 columns"):
        load_tasks(folder, [TaskName("STS-B", "de:dev")])


@pytest.mark.parametrize(
    ("name", "is_test"),
    [
        (TaskName("STS-B", "de"), True),
        (TaskName("STS-B", "de:dev"), False),
        (TaskName("STS-B"), True),
    ],
)
def test_its_test_sets_choose_nothing(name: TaskName, is_test: bool) -> None:
    assert name.is_published_test == is_test
