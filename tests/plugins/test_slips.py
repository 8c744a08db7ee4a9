"""Slips of an author of a plug-in: one line that names the package and the fault."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import pytest

import promptcli as pc
from promptcli import extensions
from promptcli.cli import command_line
from promptcli.errors import PromptcliError, UsageError
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry

STRANGERS = """
from dataclasses import dataclass

import torch

from promptcli.extending import Command, Job, Model, Transform, Weights, option, result


class WithoutSpec(Weights):
    def pool(self, states, batch, hidden):
        return states[:, 0]


class Whole(Weights):
    spec = "whole"

    def pool(self, states, batch, hidden):
        return states


class Nothing(Weights):
    spec = "nothing"

    def pool(self, states, batch, hidden):
        return states[:, 0] * float("nan")


class OfEachToken(Weights):
    spec = "of-each-token"

    def pool(self, states, batch, hidden):
        return states[:, :, 0]


class OfTheLongest(Weights):
    spec = "of-the-longest"

    def pool(self, states, batch, hidden):
        return states[:, 0, : int(batch.lengths.max())]


class Three(Weights):
    spec = "three-dimensions"

    def pool(self, states, batch, hidden):
        return states[:, 0, :3]


class Fails(Weights):
    spec = "fails"

    def pool(self, states, batch, hidden):
        return states.no_such_thing


class Flat(Transform):
    def __init__(self, context):
        self.spec = "flat"
        self.stages = [("vector", lambda vectors: vectors.flatten())]


@dataclass(frozen=True)
class NamedJob(Job[None]):
    model: Model = option("mini-static", "A model.", kind="model")


def named(job: NamedJob) -> None:
    result(str(job.model.model))


@dataclass(frozen=True)
class BareJob(Job[None]):
    value: int = 3


def bare(job: BareJob) -> None:
    pass


def broken(job: NamedJob) -> None:
    raise KeyError("of its own")


def latin(job: NamedJob) -> None:
    b"caf\\xe9".decode("utf-8")


THREE = 3
NAMED = Command("named", "strange_parts:named", "Print the model.")
BARE = Command("bare", "strange_parts:bare", "A field without an option.")
LATIN = Command("latin", "strange_parts:latin", "Read a file that is not UTF-8.")
BROKEN = Command("broken", "strange_parts:broken", "Fail.")
GONE = Command("gone", "strange_parts:no_such_function", "A function that is missing.")
"""
ROWS = {
    "poolings": {
        "without-spec": "WithoutSpec",
        "whole": "Whole",
        "nothing": "Nothing",
        "fails": "Fails",
        "of-each-token": "OfEachToken",
        "of-the-longest": "OfTheLongest",
        "three-dimensions": "Three",
    },
    "transforms": {"flat": "Flat"},
    "commands": {name: name.upper() for name in ("named", "bare", "broken", "gone", "latin")},
    "poolingz": {"median": "Whole"},
}


for name in extensions.TABLES:
    ROWS.setdefault(name, {})["three"] = "THREE"


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
    caches = (extensions._entry_points, extensions._roots_of_others, command_line.command)
    for cache in caches:
        cache.cache_clear()
    for table in map(extensions.table_named, extensions.TABLES):
        monkeypatch.setattr(table, "_all", None)
        monkeypatch.setattr(table, "_extensions", {})
        monkeypatch.setattr(table, "_faults", {})
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        ("last/without-spec", ["pooling 'without-spec' of the package strange-parts 1.0", "spec"]),
        ("last/whole", ["pooling 'whole'", "not vectors (n, d) of 2 sentences"]),
        ("last/fails", ["pooling 'fails'", "no_such_thing", "strange_parts.py, line "]),
        ("last/of-each-token", ["pooling 'of-each-token'", "3 values for 3 tokens"]),
        ("last/nothing", ["the vector of 'a' is not finite"]),
    ],
)
def test_a_wrong_pooling_is_one_line(pooling, said, strangers, run):
    ran = run("similarity", "a", "b", "--pooling", pooling)
    assert ran.code == 1 and not ran.out
    assert all(part in ran.err for part in said), ran.err
    assert "Traceback" not in ran.err


def test_vectors_may_be_as_wide_as_a_batch_has_tokens(strangers):
    encoder = pc.load(pc.Recipe(pooling="last/three-dimensions"))
    assert [encoder.encode([text]).shape for text in ("a", "a longer text")] == [(1, 3)] * 2


def test_vectors_whose_width_changes_are_refused(strangers, run, tmp_path):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("short\n" * 64 + "longer than the others by some words\n" * 64)
    ran = run("embed", sentences, "--pooling", "last/of-the-longest", "-o", tmp_path / "out.npy")
    assert ran.code == 1 and "pooling 'of-the-longest' of the package strange-parts" in ran.err
    assert "returned vectors of " in ran.err and not (tmp_path / "out.npy").exists()


def test_a_wrong_transform_is_one_line(strangers):
    recipe = pc.Recipe(pooling="last/avg", transforms=("flat",))
    with pytest.raises(PromptcliError, match=r"transform 'flat' of the package strange-parts 1\.0"):
        pc.load(recipe).encode(["a", "b"])


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bare", "command 'bare' of the package strange-parts 1.0: TypeError: field value has no"),
        ("gone", "command 'gone' of the package strange-parts 1.0: AttributeError"),
        ("broken", "a fault of the package strange-parts 1.0: KeyError: 'of its own'"),
    ],
)
def test_a_wrong_command_is_one_line(command, said, strangers, run):
    ran = run(command)
    assert ran.code == 1 and said in ran.err and "Traceback" not in ran.err


def test_a_file_that_is_not_utf_8_is_no_fault_of_the_author(strangers, run):
    ran = run("latin")
    assert ran.code == 2 and "Traceback" not in ran.err
    assert "reads is not UTF-8: byte 0xe9 at 3" in ran.err and "a fault of" not in ran.err


def test_the_development_mode_shows_all_of_a_fault(strangers, monkeypatch):
    flags = {name: getattr(sys.flags, name) for name in dir(sys.flags) if name[0] != "_"}
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**{**flags, "dev_mode": True}))
    with pytest.raises(KeyError, match="of its own"):
        command_line.main(["broken"])
    with pytest.raises(PromptcliError) as raised:
        command_line.main(["similarity", "a", "b", "--pooling", "last/fails"])
    assert isinstance(raised.value.__cause__, AttributeError)


def test_a_row_that_is_left_out_is_noted_where_its_table_is_needed(strangers, run):
    assert "adds to commands" not in run("config").err
    assert "'three' that strange_parts:THREE adds to commands is left out" in run("--help").err


def test_the_default_of_a_model_is_that_of_its_field(strangers, run):
    assert run("named").out == "mini-static\n"
    assert run("named", "-m", "mini").out == "mini\n"
    assert "Default: mini-static." in run("named", "--help").out


def test_a_group_that_is_no_table_is_said(strangers, run, capsys):
    ran = run("plugins")
    assert "'promptcli.poolingz', of the package strange-parts 1.0" in ran.err
    assert "did you mean poolings?" in ran.err


def test_the_rows_of_plugins_are_listed_with_their_faults(strangers, run):
    ran = run("plugins", "--json")
    count = 3 + len(extensions.TABLES)
    assert ran.code == 4 and f"{count} rows cannot be used" in ran.err
    faults = {(row["table"], row["name"]): row["fault"] for row in json.loads(ran.out)}
    assert faults["poolings", "whole"] is None
    assert "no table" in faults["poolingz", "median"]
    assert "no_such_function" in faults["commands", "gone"]
    assert "has no help" in faults["commands", "bare"]
    assert faults["commands", "named"] is None
    for table in extensions.TABLES:
        assert "TypeError" in faults[table, "three"], table


def test_a_model_of_a_package_that_is_gone_says_what_to_install():
    row = extensions.Extension("poolings", "median", "my-encoders", "2.0", "0" * 64)
    recipe = pc.Recipe(pooling="last/median")
    record = {"extensions": [dataclasses.asdict(row), {"unknown": 1}]}
    open_registry().save(Entry("medians", recipe, provenance=record))
    with pytest.raises(UsageError, match=r"my-encoders 2\.0, .*: pip install my-encoders"):
        pc.load("medians")
