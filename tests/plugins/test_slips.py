"""Slips of an author of a plug-in: what cannot be imported is left out and listed."""

import pytest

import promptcli as pc
from promptcli.cli import command_line
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from tests.comparing import refusal
from tests.plugins.absent import forget_entry_points
from tests.plugins.tables import TABLES, table_named

STRANGERS = """
import typer

from promptcli.encoder.components import Weights
from promptcli.cli.command_line import Command


class Fails(Weights):
    spec = "fails"

    def pool(self, states, batch, hidden):
        return states.no_such_thing


GONE = Command("gone", "strange_parts:no_such_function", "A function that is missing.")
"""
ROWS = {
    "poolings": {"fails": "Fails", "missing": "NoSuchClass", "avg": "Fails"},
    "commands": {"gone": "GONE"},
    "poolingz": {"median": "Fails"},
}


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """Install a package with slips; the tables read their rows again."""
    site = tmp_path / "site"
    about = site / "strange_parts-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-parts\nVersion: 1.0\n")
    groups = []
    for table, rows in ROWS.items():
        lines = "".join(f"{name} = strange_parts:{target}\n" for name, target in rows.items())
        groups.append(f"[promptcli.{table}]\n{lines}")
    (about / "entry_points.txt").write_text("".join(groups))
    (site / "strange_parts.py").write_text(STRANGERS)
    monkeypatch.syspath_prepend(site)
    command_line.command.cache_clear()
    for table in map(table_named, TABLES):
        forget_entry_points(table, monkeypatch)
    yield
    command_line.command.cache_clear()


def test_a_row_that_is_left_out_is_said_where_its_table_is_needed(strangers, run):
    assert "strange_parts" not in run("config").err
    said = run("similarity", "a", "b", "--pooling", "last/missing").err
    assert "'missing' that strange_parts:NoSuchClass adds to poolings is left out" in said
    assert "left out: ValueError: that name is taken" in said


def test_a_fault_of_an_author_is_shown_whole(strangers):
    with pytest.raises(AttributeError, match="no_such_thing"):
        pc.load(pc.Recipe(pooling="last/fails")).encode(["a", "b"])


def test_a_model_of_a_package_that_is_gone_is_refused_with_the_names_that_are_there():
    open_registry().save(Entry("medians", pc.Recipe(pooling="last/median")))
    with refusal("unknown weights of pooling 'median'; valid: avg"):
        pc.load("medians")
