"""Stored documents, files, locks, run folders."""

import errno
import itertools
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.models.entries import Entry
from promptcli.recipe import Recipe
from promptcli.storage import locks
from promptcli.storage.cache import Cache
from promptcli.storage.files import (
    atomic_path,
    check_output,
    delete_leftovers,
    temporary_folder,
    write_text,
)
from promptcli.storage.locks import claim, hold, try_lock
from promptcli.storage.runs import RunFolder, load_state, read_log, truncate_log
from promptcli.storage.tensors import check_seal, open_tensors, save_tensors
from promptcli.storage.typed_documents import read_document, to_json
from tests import processes
from tests.comparing import refusal

relaxed = settings(suppress_health_check=[HealthCheck.too_slow])


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


WHOLE = {
    "dim": 3,
    "name": "ü",
    "inner": {"a": 1, "b": [0.5]},
    "scores": [{"x": 1}],
    "sums": {"f": "0"},
}


def parsed(content, kind=Sample, name="FILE", **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_document(path, kind, hint="MEND", **options)


def test_a_document_comes_back():
    made = parsed(json.dumps(WHOLE))
    assert made == Sample(3, "ü", Inner(1, (0.5,)), [{"x": 1}], {"f": "0"})
    assert parsed(to_json(made)) == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dim": "x"}, r"`int`, got `str` - at `\$\.dim`"),
        ({"dim": True}, r"`int`, got `bool` - at `\$\.dim`"),
        ({"inner": {}}, r"missing required field `a` - at `\$\.inner`"),
        ({"inner": {"a": 1, "b": [0, "x"]}}, r"`float`, got `str` - at `\$\.inner\.b\[1\]`"),
        ({"dim": 1 << 70}, "an integer of more than 64 bits"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_holds(change, said):
    with refusal(f"/FILE: .*{said}.*; MEND$", CheckFailedError):
        parsed(json.dumps({**WHOLE, **change}))


HOSTILE = {
    "not a number": b'{"dim": NaN}',
    "too large a number": b'{"dim": 1e999}',
    "5,000 digits": b'{"dim": ' + b"1" * 5000 + b"}",
    "half a surrogate pair": rb'{"dim": "\ud800"}',
    "half a surrogate pair as key": rb'{"\udfff": 1}',
    "nesting beyond the decoder": b"[" * 100_000,
    "nesting within the decoder": b'{"dim": ' + b"[" * 500 + b"]" * 500 + b"}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_one_short_line(name):
    with pytest.raises(CheckFailedError) as raised:
        parsed(HOSTILE[name])
    assert (
        "\n" not in str(raised.value)
        and len(str(raised.value)) < 400
        and str(raised.value).isprintable()
    )


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
DOCUMENTS = {
    Sample: WHOLE,
    Entry: asdict(Entry("x", Recipe(pooling="last/cls"), created="2026", scores=[{"task": "x"}])),
}


@relaxed
@given(st.sampled_from(sorted(DOCUMENTS, key=str)), st.data())
def test_any_value_in_any_field_is_read_or_refused(kind, data):
    name = data.draw(st.sampled_from([one.name for one in fields(kind)]))
    content = json.dumps({**DOCUMENTS[kind], name: data.draw(json_values)})
    try:
        parsed(content, kind)
    except CheckFailedError as error:
        assert "\n" not in str(error) and len(str(error)) < 400
        str(error).encode("utf-8")


@relaxed
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_line(content):
    for name in ("FILE.json", "FILE.toml"):
        try:
            parsed(content, name=name)
        except CheckFailedError as error:
            assert "\n" not in str(error)


def test_a_folder_and_a_missing_file_are_not_documents(tmp_path):
    (tmp_path / "folder.json").mkdir()
    for name in ("folder.json", "none.json"):
        with refusal(name):
            read_document(tmp_path / name, Sample, hint="MEND", error=UsageError)


def test_help_needs_no_schema_library_and_no_reader_of_data():
    code = (
        "import sys, promptcli.storage.typed_documents\n"
        "from promptcli.cli.command_line import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'msgspec', 'promptcli.data'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_leftovers_go_at_once_and_what_a_running_writer_holds_stays(tmp_path):
    target = tmp_path / ("long name " * 20)
    with temporary_folder(target) as running:
        os.utime(running, (0, 0))
        left = running.with_name(running.name.replace(running.name[-12:-4], "0a1b2c3d"))
        other = tmp_path / ".another.0a1b2c3d.tmp"
        for folder in (left, other):
            folder.mkdir()
            (folder / "half").touch()
        write_text(target, "complete")
        assert running.exists() and not left.exists() and other.exists()
        delete_leftovers(tmp_path)
        assert running.exists() and not other.exists()
    assert os.listdir(tmp_path) == [target.name] and target.read_text() == "complete"


def test_what_is_no_leftover_of_ours_is_left_alone(tmp_path):
    (tmp_path / ".out.0a1b2c3d.tmp").write_text("a file of the user's")
    (tmp_path / "mine").mkdir()
    (tmp_path / ".out.1a1b2c3d.tmp").symlink_to("mine")
    (tmp_path / ".out.tmp").mkdir()
    before = sorted(os.listdir(tmp_path))
    write_text(tmp_path / "out", "complete")
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "out"])


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_in_the_meantime_is_refused_or_replaced(links, tmp_path, monkeypatch):
    def link(source, target):
        raise OSError(errno.EPERM, "no links")

    if not links:
        monkeypatch.setattr(os, "link", link)
    target = tmp_path / "out"
    with refusal(r"out appeared in the meantime; choose"):
        with atomic_path(target, replace=False) as path:
            path.write_text("late")
            target.write_text("early")
    assert target.read_text() == "early" and os.listdir(tmp_path) == ["out"]
    with atomic_path(target) as path:
        path.write_text("forced")
    assert target.read_text() == "forced" and os.listdir(tmp_path) == ["out"]
    target.unlink()
    with atomic_path(target, replace=False) as path:
        path.write_text("alone")
    assert target.read_text() == "alone" and os.listdir(tmp_path) == ["out"]


def test_an_output_is_a_new_file_or_takes_force(tmp_path):
    check_output(tmp_path / "a.toml", force=False)
    (tmp_path / "a.toml").write_text("mine")
    check_output(tmp_path / "a.toml", force=True)
    with refusal(r"^output: .*a\.toml exists.*force"):
        check_output(tmp_path / "a.toml", force=False, parameter="output")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("/dev/null", UsageError, "device"),
        ("pipe", UsageError, "pipe"),
        (".", UsageError, "a folder"),
        ("nowhere/a.toml", NotFoundError, "nowhere"),
        ("file/a.toml", UsageError, "file is a file; give a path in a folder"),
        ("file/deeper/a.toml", UsageError, "file is a file; give a path in a folder"),
        ("n" * 201, UsageError, "200 bytes"),
        ("loop", UsageError, "leads to itself"),
    ],
)
def test_a_place_where_no_file_can_be_written_is_refused(name, error, message, force, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    (tmp_path / "file").touch()
    with pytest.raises(error, match=message):
        check_output(tmp_path / name, force=force)


def _hold(path, held, ended):
    with hold(path):
        held.set()
        ended.wait()


def test_a_lock_that_is_held_is_named_and_a_dead_process_holds_none(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "PATIENCE_S", 0.05)
    context = processes.context()
    held, ended = context.Event(), context.Event()
    (tmp_path / "lock").touch()
    process = context.Process(target=_hold, args=(tmp_path / "lock", held, ended))
    process.start()
    held.wait()
    with (
        refusal(str(tmp_path / "lock"), PromptcliError),
        hold(tmp_path / "lock"),
    ):
        pass
    process.kill()
    process.join()
    with hold(tmp_path / "lock"):
        pass


def test_a_lock_is_waited_for_with_a_line_until_it_is_free_or_patience_ends(
    tmp_path, monkeypatch, notes
):
    """The clock advances by itself while the lock is requested; the test does not wait."""
    path = tmp_path
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    descriptor = os.open(path, os.O_RDONLY)
    assert try_lock(descriptor)
    with (
        refusal(f"another process has held the lock on {path} for 60 s", PromptcliError),
        hold(path),
    ):
        pass
    assert 60 <= next(clock) < 90
    assert notes == [f"waiting for {path}, which another process has locked"]

    tries = iter(range(30))

    def sleep(seconds):
        if next(tries, None) is None:
            os.close(descriptor)

    monkeypatch.setattr(time, "sleep", sleep)
    with hold(path):
        assert len(notes) == 2


def test_who_holds_a_claim_is_named_and_nothing_is_left_of_it(tmp_path):
    lock = tmp_path / "runs" / "lock"
    lock.parent.mkdir()
    lock.write_text("process 1 on a machine that lost power")  # nobody holds it
    with claim(lock, "the run", "REMEDY"):
        said = (
            f"^the run is running: process {os.getpid()} on {re.escape(socket.gethostname())}; wait"
            " .*, or REMEDY$"
        )
        with refusal(said), claim(lock, "the run", "REMEDY"):
            pass
        assert lock.exists()
    assert os.listdir(tmp_path) == []


def test_a_claim_whose_file_is_removed_while_it_is_opened_is_made_again(tmp_path, monkeypatch):
    lock, opening, removed = tmp_path / "lock", os.open, []

    def opened_late(*given):
        descriptor = opening(*given)
        if not removed:
            removed.append(lock.unlink())
        return descriptor

    monkeypatch.setattr(os, "open", opened_late)
    with claim(lock, "the run", "REMEDY"):
        assert lock.read_text().startswith("process")


def opened(folder, seed=1, *, resume=False):
    return RunFolder(folder).open(
        {"seed": seed, "rate": 0.1}, resume=resume, name=folder, elsewhere="ELSEWHERE"
    )


def test_a_run_resumes_only_with_its_own_settings(tmp_path):
    folder = tmp_path / "run"
    opened(folder)
    with refusal(r"resume.*ELSEWHERE"):
        opened(folder)
    with refusal("seed 1, not 2"):
        opened(folder, 2, resume=True)
    opened(folder, resume=True)
    RunFolder(folder).discard()
    assert not os.listdir(tmp_path)


def test_a_run_of_other_content_says_so_without_hashes(tmp_path):
    for identity in ({"data": ["a" * 64]}, {"data": ["b" * 64]}):
        try:
            RunFolder(tmp_path / "run").open(
                identity, resume="b" * 64 in identity["data"], name="run", elsewhere="ELSEWHERE"
            )
        except UsageError as error:
            message = str(error)
    assert "other content (data)" in message and "bbb" not in message


def test_a_log_is_cut_to_the_state(tmp_path):
    @dataclass(frozen=True)
    class Line:
        step: int
        loss: float | None = None

    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 2.5}\n{"step": 2}\n{"step": 3}\n{"step": 4, "lo')
    truncate_log(path, 2)
    assert read_log(path, Line) == [Line(1, 2.5), Line(2)]
    assert read_log(tmp_path / "none", Line) == []


@pytest.mark.parametrize(
    "line", ["{", "[]", "1", "{}", '{"step": null}', '{"step": "1"}', "[" * 100_000, "\0"]
)
def test_a_damaged_log_is_one_line(line, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n')
    for use in (lambda: truncate_log(path, 2), lambda: read_log(path, dict, 2)):
        with refusal(r"log.jsonl is damaged .* and start again"):
            use()
    assert path.read_text() == f'{{"step": 1}}\n{line}\n'


@pytest.mark.parametrize("step", [None, "one"])
@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_a_state_of_other_weights_is_one_line(step, shape, tmp_path):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([weight])
    tensors = {f"{kind}.w": torch.zeros(shape) for kind in ("weight", "exp_avg", "exp_avg_sq")}
    save_tensors(
        tensors, tmp_path / "state.safetensors", {"seen": "1", **({"step": step} if step else {})}
    )
    with refusal(r"state.safetensors is damaged .* and start again"):
        load_state(tmp_path / "state.safetensors", {"w": weight}, optimizer)


def test_a_cache_that_may_not_be_written_keeps_nothing_and_says_so_once(tmp_path, notes):
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file" / "cache")
    for value in (1, 2):
        cache.put({"a": 1}, value)
    assert cache.get({"a": 1}) is None
    [said] = notes
    assert said.startswith(f"{tmp_path / 'file' / 'cache'} cannot be written (")


def test_a_cache_is_shared_by_processes_and_made_again_if_it_is_damaged(tmp_path, notes):
    cache, other = Cache(tmp_path), Cache(tmp_path)
    cache.put({"a": 1}, [0.1, 1e-17])
    assert cache.get({"a": 1}) == [0.1, 1e-17] and cache.get({"a": 2}) is None
    other.put({"a": 1}, {"b": None})
    assert cache.get({"a": 1}) == other.get({"a": 1}) == {"b": None}
    file = tmp_path / "values.sqlite"
    whole = file.read_bytes()
    for damaged in (b"", b"no database", whole[:5000], whole[:4096] + bytes(len(whole) - 4096)):
        file.write_bytes(damaged)
        assert cache.get({"a": 1}) is None
        cache.put({"a": 1}, 3)
        assert cache.get({"a": 1}) == 3
    assert not notes


def test_a_cache_on_a_full_disk_keeps_nothing_and_says_so_once(tmp_path, monkeypatch, notes):
    def full(statement, *values):
        raise sqlite3.OperationalError("database or disk is full")

    cache = Cache(tmp_path)
    monkeypatch.setattr(cache, "_execute", full)
    for value in (1, 2):
        cache.put({"a": 1}, value)
    [said] = notes
    assert "database or disk is full" in said and "not stored" in said


def test_a_sealed_file_that_has_changed_is_refused(tmp_path):
    path = tmp_path / "best.safetensors"
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    save_tensors({**tensors, "one": torch.tensor(3)}, path, sealed=True)
    check_seal(path, hint="start again")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with refusal(r"best.safetensors is damaged .*; start again"):
        check_seal(path, hint="start again")
    save_tensors(tensors, path)  # not sealed, as those of older versions
    check_seal(path, hint="start again")
    with refusal("is damaged"):
        check_seal(tmp_path / "none", hint="start again")


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_a_number_that_is_not_finite_is_found_among_any_others(kind, tmp_path):
    limits = np.finfo(kind)
    most = np.array([limits.max, limits.min, limits.tiny, -limits.tiny, 0, -0.0], kind)
    fine = {
        "none": most[:0],
        "counts": np.arange(3),
        "one": most[:1].reshape(()),
        "columns": most[:, None],
    }
    path = tmp_path / "tensors.safetensors"
    save_file(fine, path)
    assert dict(open_tensors(path, hint="HINT")).keys() == fine.keys()
    for bad in (np.inf, -np.inf, np.nan, -np.nan):
        for numbers in (most, abs(most), -abs(most)):
            save_file(fine | {"bad": np.append(numbers, bad).astype(kind)}, path)
            with refusal(r"its bad holds numbers .*; HINT", CheckFailedError):
                open_tensors(path, hint="HINT")
