"""`embed` and `similarity` as real processes: killed, piped, on a full disk, on a terminal."""

import contextlib
import json
import os
import pty
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from promptcli.data.rows import BATCH_ROWS
from tests import fake_encoder
from tests.fake_commands import names
from tests.processes import PIPE, Program


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Run every program in an empty folder."""
    monkeypatch.chdir(tmp_path)


program = partial(Program, main=fake_encoder.main)


def lines(count):
    Path("a.txt").write_text("".join(f"line {i}\n" for i in range(count)))


def test_progress_is_for_a_terminal():
    lines(40)
    asked = {"FAKE_WINDOW": "4", "TERM": "xterm", "COLUMNS": "100"}
    shown = on_terminal("embed", "a.txt", environment={**asked, "FAKE_PAUSE": "0.05"})
    assert "embed" in shown and "/40" in shown and "/s" in shown and "0:00" in shown
    assert on_terminal("embed", "a.txt", "--force", "-q", environment=asked) == ""
    running = program("embed", "a.txt", "--force", environment=asked)
    assert running.communicate()[1].decode().count("\n") == 1


def on_terminal(*arguments, environment):
    """Return what a program writes to stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    running = program(*arguments, environment=environment, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert running.wait() == 0
    return shown.decode()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_ended_run_leaves_no_file(sent):
    lines(500)
    asked = {"FAKE_WINDOW": "2", "FAKE_PAUSE": "0.05", "FAKE_MOST": "200"}
    running = program("embed", "a.txt", "-o", "v.npy", environment=asked)
    deadline = time.monotonic() + 300
    while not list(Path().glob(".v.*.tmp")):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    running.send_signal(sent)
    out, err = running.communicate()
    assert (out, running.returncode, names()) == (b"", 128 + sent, ["a.txt"])
    assert err == b"promptcli: interrupted; nothing was changed\n"


def test_a_closed_pipe_ends_quietly():
    lines(2000)
    running = program("embed", "a.txt", "-o", "-", environment={"FAKE_WINDOW": "10"})
    assert json.loads(running.stdout.readline())["id"] == 0
    running.stdout.close()
    assert running.wait() == 1
    assert running.stderr.read() == b""


def test_a_pipe_closed_from_the_start():
    lines(3)  # less than any buffer: the failure shows only in the last flush
    read, written = os.pipe()
    os.close(read)
    for arguments in (["embed", "a.txt", "-o", "-", "-q"], ["similarity", "a", "b"]):
        done = program(*arguments, stdout=written)
        _, err = done.communicate()
        assert (done.returncode, err) == (1, b"")
    os.close(written)


def test_rows_leave_as_soon_as_a_batch_of_them_has_arrived():
    running = program("embed", "-", stdin=PIPE, environment={"FAKE_WINDOW": "512"})
    for start in (0, BATCH_ROWS):
        running.stdin.write(
            "".join(f"line {row}\n" for row in range(start, start + BATCH_ROWS)).encode()
        )
        running.stdin.flush()
        rows = [json.loads(running.stdout.readline())["id"] for _ in range(BATCH_ROWS)]
        assert rows == list(range(start, start + BATCH_ROWS))
    out, _ = running.communicate()
    assert (out, running.returncode) == (b"", 0)
