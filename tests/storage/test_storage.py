"""Stored documents, files, locks, run folders."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.index.stored import IndexManifest
from promptcli.models.entries import Manifest
from promptcli.recipe import Recipe
from promptcli.settings import SettingsFile
from promptcli.storage.documents import read_document, to_json
from promptcli.storage.files import (
    check_output,
    hold,
    remove_leftovers,
    scratch_folder,
    temporary,
    write_text,
)
from promptcli.storage.runs import RunFolder, log_until, read_log, truncate_log
from tests import processes
from tests.killing import in_a_process_that_dies

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


# Documents


@dataclass(frozen=True)
class Inner:
    a: int
    b: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sample:
    dim: int
    name: str | None
    inner: Inner
    scores: list[dict[str, Any]]
    sums: dict[str, str] = field(default_factory=dict)


WHOLE = {"dim": 3, "name": "ü", "inner": {"a": 1, "b": [0.5]}, "scores": [{"x": 1}], "sums": {"f": "0"}}


def parsed(content, kind=Sample, name="FILE", **options):
    return read_document(Path(name), kind, hint="MEND", content=content, **options)


def test_a_document_comes_back():
    made = parsed(json.dumps(WHOLE))
    assert made == Sample(3, "ü", Inner(1, (0.5,)), [{"x": 1}], {"f": "0"})
    assert parsed(to_json(made)) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dim": "x"}, "'dim': must be a whole number, not text"),
        ({"dim": True}, "'dim': must be a whole number, not true or false"),
        ({"name": 5}, "'name': must be text or null, not a whole number"),
        ({"inner": 5}, "'inner': must be a table"),
        ({"inner": {}}, "'inner.a' is missing"),
        ({"inner": {"a": 1, "b": [0, "x"]}}, r"'inner\.b\[1\]': must be a number, not text"),
        ({"scores": [1]}, r"'scores\[0\]': must be"),
        ({"sums": {"f": 1}}, "must be text"),
        ({"dim": 1 << 70}, "an integer of more than 64 bits"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_holds(change, said):
    with pytest.raises(CheckFailedError, match=f"^FILE: .*{said}.*; MEND$"):
        parsed(json.dumps({**WHOLE, **change}))


HOSTILE = {
    "empty": b"",
    "cut short": b'{"dim": 3',
    "no UTF-8": b"\xff\xfe",
    "another kind": b"[]",
    "not a number": b'{"dim": NaN}',
    "infinite": b'{"dim": -Infinity}',
    "too large a number": b'{"dim": 1e999}',
    "5,000 digits": b'{"dim": ' + b"1" * 5000 + b"}",
    "half a surrogate pair": rb'{"dim": "\ud800"}',
    "half a surrogate pair as key": rb'{"\udfff": 1}',
    "nesting beyond the decoder": b"[" * 100_000,
    "nesting within the decoder": b'{"dim": ' + b"[" * 500 + b"]" * 500 + b"}",
    "a zero byte": b"\x00",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", [Sample, Manifest, IndexManifest, dict[str, str]])
def test_hostile_content_is_one_short_line(name, kind):
    content = HOSTILE[name]
    if (name, kind) == ("half a surrogate pair as key", dict[str, str]):
        content = rb'{"\udfff": "x"}'
    with pytest.raises(CheckFailedError) as raised:
        parsed(content, kind)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400 and str(raised.value).isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = {
    Sample: WHOLE,
    Manifest: asdict(Manifest({"pooling": "last/cls"}, "x", "2026", "0.1", scores=[{"task": "x"}])),
    IndexManifest: asdict(IndexManifest("f", {}, None, {}, 5, 2, "Flat", True, None, "2026", 5)),
    SettingsFile: {"backbone": "mini-bert"},
}


@relaxed
@given(st.sampled_from(sorted(DOCUMENTS, key=str)), st.data())
def test_any_value_in_any_field_is_read_or_refused_in_one_line(kind, data):
    name = data.draw(st.sampled_from([one.name for one in fields(kind)]))
    content = json.dumps({**DOCUMENTS[kind], name: data.draw(json_values)})
    try:
        parsed(content, kind, closed=True)
    except CheckFailedError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
        str(error).encode("utf-8")


@relaxed
@given(st.sampled_from([one.name for one in fields(Recipe)]), json_values)
def test_any_value_in_a_recipe_is_read_or_refused(name, value):
    try:
        Recipe.from_text(json.dumps({name: value}))
    except UsageError as error:
        assert "\n" not in str(error)


@relaxed
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_line(content):
    for name in ("FILE.json", "FILE.toml"):
        try:
            parsed(content, name=name)
        except CheckFailedError as error:
            assert "\n" not in str(error)


def test_what_cannot_be_opened_is_one_line(tmp_path):
    (tmp_path / "folder.json").mkdir()
    for name in ("folder.json", "none.json"):
        with pytest.raises(UsageError, match=name):
            read_document(tmp_path / name, Sample, hint="MEND", error=UsageError)


def test_help_needs_no_schema_library():
    code = "import sys, promptcli.cli.app, promptcli.storage.documents; assert 'msgspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Files


def test_leftovers_of_killed_writers_go_after_a_day(tmp_path):
    target = tmp_path / ("long name " * 20)
    with temporary(target) as first, temporary(target) as other, temporary(tmp_path / "another") as another:
        for path in (first, other, another):
            path.touch()
        for path in (other, another):
            os.utime(path, (0, 0))
        write_text(target, "complete")
        assert first.exists() and not other.exists() and another.exists()
        remove_leftovers(tmp_path)
        assert first.exists() and not another.exists()
        remove_leftovers(tmp_path, age=0)
        assert not first.exists() and target.read_text() == "complete"


def test_a_scratch_folder_is_for_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as folder:
        assert folder.stat().st_mode & 0o077 == 0 and not os.listdir(folder)
    assert not os.listdir(tmp_path)


# Where results may go


def test_a_new_name_in_a_folder_is_allowed(tmp_path):
    check_output(tmp_path / "new.toml", force=False)
    (tmp_path / "there.toml").write_text("")
    check_output(tmp_path / "there.toml", force=True)


@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_file_is_refused_even_with_force(force, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        ("/dev/null", "a device or a pipe, not a file"),
        (tmp_path / "pipe", "a device or a pipe, not a file"),
        (tmp_path, "a folder, not a file"),
    ):
        with pytest.raises(UsageError, match=message):
            check_output(type(tmp_path)(path), force=force)
    with pytest.raises(NotFoundError, match=r"no folder .*nowhere'; make it first"):
        check_output(tmp_path / "nowhere" / "a.toml", force=force, option="-o")


def test_a_file_that_is_there_takes_force(tmp_path):
    (tmp_path / "a.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"^-o .*a.toml: the file is there; choose another name, or give `force`$"):
        check_output(tmp_path / "a.toml", force=False, option="-o")


# Locks


def _hold(path, held, ended):
    with hold(path):
        held.set()
        ended.wait()


def test_a_lock_that_cannot_be_had_is_named_and_a_dead_process_holds_none(tmp_path):
    context = processes.context()
    held, ended = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", held, ended))
    process.start()
    held.wait()
    with pytest.raises(PromptcliError, match=f"another process.*{tmp_path / 'lock'}"):
        with hold(tmp_path / "lock", patience=0.05):
            pass
    process.kill()
    process.join()
    with hold(tmp_path / "lock", patience=0.05):
        pass


# Run folders


def opened(folder, seed=1, *, resume=False):
    return RunFolder(folder).open({"seed": seed, "rate": 0.1}, resume=resume, name=folder, elsewhere="ELSEWHERE")


def test_a_run_goes_on_only_with_its_own_settings(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(UsageError, match="no unfinished run"):
        opened(folder, resume=True)
    assert opened(folder) == {"seed": 1, "rate": 0.1}
    with pytest.raises(UsageError, match=r"holds an unfinished run.*`resume`.*ELSEWHERE"):
        opened(folder)
    with pytest.raises(UsageError, match="was started with seed 1, not 2"):
        opened(folder, 2, resume=True)
    assert opened(folder, resume=True)["seed"] == 1
    (folder / "run.json").write_text("[" * 5000)
    with pytest.raises(UsageError, match=r"run\.json.*nested"):
        opened(folder, resume=True)


def test_a_new_run_takes_nothing_from_one_that_was_killed_while_it_was_removed(tmp_path):
    folder = tmp_path / "run"
    for step in range(40):
        opened(folder)
        for name in ("trials.jsonl", "state.safetensors"):
            (folder / name).write_text("old")
        if in_a_process_that_dies(step, RunFolder(folder).remove) == 0:
            break
        if not RunFolder(folder).begun:
            opened(folder)
            assert [path.name for path in folder.iterdir()] == ["run.json"]
        RunFolder(folder).remove()
    assert step > 1 and not folder.exists()


def test_a_log_is_cut_to_the_state(tmp_path):
    @dataclass(frozen=True)
    class Line:
        step: int
        loss: float | None = None

    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 2}\n{"step": 3}\n{"step": 4, "lo')
    truncate_log(path, log_until(path, 2, Line))
    assert read_log(path, Line) == [Line(1, 2.5), Line(2)]
    path.write_text('{"step": "x"}\n')
    with pytest.raises(UsageError, match=r"log\.jsonl: the field 'step': must be a whole number"):
        read_log(path, Line)
    assert read_log(Path(tmp_path / "none"), Line) == []
