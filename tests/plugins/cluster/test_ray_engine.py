"""What is decided about Ray before it starts: folders, variables, signals, the workers' modules."""

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from promptcli.embedding import parts
from promptcli.models.entries import Entry
from promptcli.plugins.cluster import ray_engine, ray_worker
from promptcli.recipe import RECIPES
from tests.comparing import refusal


@pytest.fixture
def folders(tmp_path):
    """Make folders with an answer to whether others may write there."""
    modes = {"own": 0o755, "sticky": 0o1777, "open": 0o777, "open/below": 0o755}
    for name, mode in modes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    return {tmp_path / name: name != "own" for name in modes}


def test_folders_that_others_may_write(folders, tmp_path):
    assert {path: ray_worker.others_may_write(path) for path in folders} == folders
    replaceable = [path.name for path in folders if ray_worker.others_may_replace(path)]
    assert replaceable == ["open", "below"]


def test_the_workers_import_from_folders_of_the_user_alone(folders, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_SEEN", "")
    monkeypatch.chdir(tmp_path / "own")
    (tmp_path / "modules").mkdir()
    python = [path for path in sys.path if path.startswith(sys.base_prefix)]
    given = ["", *map(str, folders), str(tmp_path), str(tmp_path / "modules"), *python]
    monkeypatch.setattr(sys, "path", given)
    ray_worker.prepare({"HF_SEEN": "yes"}, str(tmp_path))
    assert sys.path == [str(tmp_path / "modules"), *python]
    assert os.environ["HF_SEEN"] == "yes"


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="extra ray")
def test_a_worker_gets_the_code_that_cleans_its_path_and_does_not_look_for_it(tmp_path):
    from ray import cloudpickle

    (tmp_path / "code").write_bytes(cloudpickle.dumps(ray_engine.worker_module().prepare))
    (tmp_path / "promptcli.py").write_text("raise SystemExit('of the current folder')")
    script = """
        import sys, pathlib
        from ray import cloudpickle
        sys.path.insert(0, sys.argv[1])  # as Ray does
        cloudpickle.loads(pathlib.Path('code').read_bytes())({}, sys.argv[1])
        import promptcli
    """
    lines = "\n".join(line.strip() for line in script.splitlines())
    command = [sys.executable, "-P", "-c", lines, str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, check=True)


def test_the_variables_of_the_hub_are_passed_on(monkeypatch, here):
    for name in list(os.environ):
        if name.startswith(ray_engine._PASSED_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", "cache")
    monkeypatch.setenv("PROMPTCLI_HOME", "home")
    monkeypatch.setenv("PROMPTCLI_API_KEY", "a secret")
    passed = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(here / "cache")}
    assert ray_engine.worker_environment() == {**passed, "PROMPTCLI_HOME": str(here / "home")}


def test_the_place_of_a_session_leaves_room_for_sockets(monkeypatch, tmp_path):
    long = "/var/tmp/" + "x" * 60
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", long)
    assert ray_engine._session_parent() == "/tmp"
    monkeypatch.setenv("RAY_TMPDIR", long)
    with refusal(r"RAY_TMPDIR .*too many for the path of a socket"):
        ray_engine._session_parent()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr(ray_engine, "_MAX_PARENT_BYTES", 1000)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "open"))
    with refusal(r"RAY_TMPDIR .*moved away by other users"):
        ray_engine._session_parent()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ray_engine._session_parent() == str(tmp_path)


class Stopped(Exception):
    pass


@pytest.mark.parametrize("during", [True, False])
def test_sigterm_is_answered_by_this_program(during, monkeypatch):
    def stop(number, frame):
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(Stopped):
            with ray_engine._keep_sigterm_handler():
                signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # as Ray does
                if during:
                    signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("name", ["glove:{}", "{}.gguf", "{}"])
def test_a_backbone_is_found_from_another_folder(name, here):
    Path("folder").mkdir()
    Path("words").touch()
    Path("words.gguf").symlink_to("words")  # as in the hub's cache, by another name
    given = name.format("folder" if name == "{}" else "words")
    entry = Entry("x", RECIPES["static-avg"].replace(backbone=given))
    prefix, _, path = parts.portable_choice(entry).model.recipe.backbone.rpartition(":")
    assert Path(path) == here / given.removeprefix("glove:")
    assert given.startswith(prefix)
