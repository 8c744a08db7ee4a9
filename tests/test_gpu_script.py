"""``benchmarks/gpu.sh`` where its pieces are stopped: what is done stays, what was begun goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.senteval import write_pairs
from tests.tiny import SENTENCES, save_tiny

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.sh"


@pytest.fixture
def tables(tmp_path):
    """Return a function that starts the piece ``tables``: one method, on a tiny backbone made by the piece before."""
    save_tiny("bert", tmp_path / "out" / "mini")
    (tmp_path / "text.txt").write_text("".join(f"{text} {number}\n" for number in range(40) for text in SENTENCES))
    for split in ("dev", "test"):
        pairs = [(text, SENTENCES[0], row % 6) for row, text in enumerate(SENTENCES)]
        write_pairs(tmp_path / "data", "STS-B", pairs, split)
    folders = {"OUT": tmp_path / "out", "DATA": tmp_path / "data", "CORPUS": tmp_path}
    settings = "--steps 60 --batch-size 4 --set eval-steps=5"
    environment = {**os.environ, **folders, "METHODS": "simcse", "PYTHON": sys.executable, "TRAIN": settings}
    return lambda: subprocess.Popen(
        [SCRIPT, "tables"], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_tables_goes_on_after_a_kill_and_leaves_alone_what_is_done(tables, tmp_path):
    with tables() as stopped:
        for line in stopped.stderr:
            if line.startswith("step 10/60"):
                break
        os.killpg(stopped.pid, signal.SIGKILL)
    written = tmp_path / "out" / "train.simcse.json"
    assert stopped.returncode == -signal.SIGKILL and not written.exists()

    with tables() as resumed:
        told = [line for line in resumed.stderr if line.startswith("step ")]
    assert resumed.returncode == 0 and '"STS-B"' in written.read_text()
    assert told[-1].startswith("step 60/60") and not told[0].startswith("step 0/60")

    with tables() as again:
        assert again.stderr.read() == ""
    assert again.returncode == 0
