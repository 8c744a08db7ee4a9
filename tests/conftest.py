"""Fixtures: tiny backbones, an empty home for each test, real data, and the command line.

There are three ways to run the command line, the cheapest first:

- ``run("embed", ...)`` runs it in this process.
- ``Program("embed", ...)`` of ``tests/processes.py`` forks a process that has torch loaded. It is
  for tests of signals, streams and kills.
- ``subprocess`` starts a new interpreter, which takes seconds. It is for tests of the start alone.

Scoring all demo pairs takes seconds, too. A test therefore sees a few of each kind, unless it asks
for ``all_demo_pairs``.
"""

import contextlib
import functools
import gc
import importlib
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # a thread that may outlive its test
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

from promptcli.notes import LOG
from tests import network, unsynced  # noqa: F401

# a garbage collection walks over all that torch and transformers have made: none until then
gc.disable()
network.block()
# an example may take any time on a busy machine
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let the second worker import the test files in reverse order.

    If no bytecode is there yet, each worker compiles half of the files and reads the other half.
    """
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw1" or session.config.args != ["tests"]:
        return
    for path in sorted(Path(__file__).parent.rglob("test_*.py"), reverse=True):
        name = ".".join(path.relative_to(session.config.rootpath).with_suffix("").parts)
        # the collection reports what cannot be imported
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests: those that fork this process first, because it grows, then the longest.

    Otherwise one worker would still be busy with a long test at the end.
    """
    items.sort(
        key=lambda item: (
            "a_kill_at_any" not in item.name,
            not ("every_line_of_the_page" in item.name or item.get_closest_marker("data")),
        )
    )


@pytest.fixture(autouse=True, scope="session")
def answer_of_the_processor() -> Iterator[None]:
    """Let ``auto`` mean float32 on every processor, or bfloat16 if PROMPTCLI_TEST_BFLOAT16 is 1."""
    answer = os.environ.get("PROMPTCLI_TEST_BFLOAT16", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("promptcli.backbones.kernels.cpu_computes_bfloat16", lambda: answer == "1")
        yield


def pytest_collection_finish() -> None:
    """Leave all that is imported out of later garbage collections.

    They would take a tenth of the suite's time and free little.
    """
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Fork the server of processes: everything is imported, and no test has changed anything."""
    if processes := sys.modules.get("tests.processes"):
        processes.context()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny random backbone by family; made once."""
    from tests.tiny import save_tiny
    from tests.tiny_causal import CAUSAL, save_tiny_causal

    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            save = save_tiny_causal if family in CAUSAL else save_tiny
            made[family] = save(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


@pytest.fixture(scope="session")
def bert_folder(tiny_folder: Callable[[str], Path]) -> Path:
    """The folder of the tiny random BERT."""
    return tiny_folder("bert")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny_backbone(tiny_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """Return a loaded tiny backbone by family; loaded once."""
    from promptcli.backbones.by_name import load_backbone

    loaded: dict[str, Any] = {}

    def backbone(family: str) -> Any:
        if family not in loaded:
            loaded[family] = load_backbone(str(tiny_folder(family)))
        return loaded[family]

    return backbone


@pytest.fixture(scope="session")
def plain_backbone(tiny_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """Return a tiny backbone by family as transformers computes it; loaded once."""
    from tests.reference.plain import Plain
    from tests.tiny_causal import CAUSAL

    @functools.cache
    def backbone(family: str) -> Any:
        return Plain(tiny_folder(family), causal=family in CAUSAL)

    return backbone


@pytest.fixture(autouse=True, scope="session")
def few_demo_pairs() -> Iterator[dict[str, Any]]:
    """Let `demo` and `demo:dev` have two or three pairs of each kind; return the whole tasks.

    Most tests need any score, not a certain one.
    """
    from promptcli.data.demo import read_demo
    from promptcli.data.task_table import TASKS

    whole = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, split in (("demo", "test"), ("demo:dev", "dev")):
            few = {kind: pairs[:: len(pairs) // 2] for kind, pairs in read_demo(split).items()}
            pairs = sum(map(len, few.values()))
            whole[name] = TASKS[name]
            task = replace(TASKS[name], read=lambda _, few=few: few, pairs=pairs)
            patch.setitem(TASKS, name, task)
        yield whole


@pytest.fixture
def all_demo_pairs(few_demo_pairs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `demo` and `demo:dev` have all of their pairs in a test."""
    from promptcli.data.task_table import TASKS

    for name, task in few_demo_pairs.items():
        monkeypatch.setitem(TASKS, name, task)


_numbers = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a new folder, as pytest does, which lists all folders of earlier tests each time."""
    name = "".join(sign if sign.isalnum() else "_" for sign in request.node.name[:30])
    folder = tmp_path_factory.getbasetemp() / f"{name}{next(_numbers)}"
    folder.mkdir(mode=0o700)
    return folder


#: Variables for the tests themselves.
_OF_TESTS = ("PROMPTCLI_TEST_DATA", "PROMPTCLI_REAL_MODELS", "PROMPTCLI_FUZZ")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test an empty registry, and no option from the user's environment."""
    for name in [*os.environ]:
        if name.startswith("PROMPTCLI_") and name not in _OF_TESTS:
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("PROMPTCLI_HOME", str(folder))
    return folder


@pytest.fixture
def registry(home: Path) -> Any:
    """Return the registry of the test's home."""
    from promptcli.models.entries import Registry

    return Registry(home)


@pytest.fixture(autouse=True)
def no_network() -> Iterator[list[str]]:
    """Fail a test in which anything tried to leave this machine.

    This holds even if a library caught the error. A test that tries on purpose clears the list.
    """
    network.attempts.clear()
    yield network.attempts
    assert not network.attempts


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Return the folder of real data, or skip by name."""
    named = os.environ.get("PROMPTCLI_TEST_DATA")
    if not named or not Path(named).is_dir():
        pytest.skip("real data: PROMPTCLI_TEST_DATA names no folder")
    return Path(named)


class Ran(NamedTuple):
    """The exit code and the output of one run of the command line."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The printed document of a run that succeeded."""
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Return a function that makes a loaded tiny backbone the published one of a name."""
    from promptcli.backbones.published_backbones import PUBLISHED, PublishedBackbone, Shape
    from promptcli.storage.files import sha256

    def known(name: str, backbone: Any) -> None:
        family, rows = backbone.provenance.family, len(backbone.word_embeddings)
        shape = Shape(family, backbone.width, backbone.n_layers, vocabulary=rows)
        digest = None
        if not backbone.is_word_table:
            digest = sha256(backbone.folder / "model.safetensors")
        monkeypatch.setitem(PUBLISHED, name, PublishedBackbone(shape, ("",), sha256=digest))

    return known


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Ran]]:
    """Return a function that runs promptcli in this process, as ``run("embed", "file.txt")``."""
    from promptcli.cli.command_line import main

    monkeypatch.setenv("COLUMNS", "3000")

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = ended.value.code
        return Ran(
            code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err
        )

    yield call


class Notes(list[str]):
    """The messages of the library."""

    @property
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    """Return the library's messages in a test, of level info and above.

    Pytest's ``caplog`` is off, because it walks over the loggers of all libraries at every test.
    """
    said = Notes()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(LOG, "handlers", [handler])
    LOG.setLevel(logging.INFO)
    return said


@pytest.fixture(scope="session")
def pretended_device(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder that the pretended device is compiled into, kept where pytest has a cache."""
    cache = getattr(request.config, "cache", None)
    return cache.mkdir("pretend-cuda") if cache else tmp_path_factory.mktemp("pretend-cuda")


@pytest.fixture
def cuda(pretended_device: Path) -> Iterator[Any]:
    """The GPU, or the pretended one if there is none."""
    import torch
    from accelerate.state import AcceleratorState

    from tests.pretend_cuda import RealCuda, pretended

    if torch.cuda.is_available():
        yield RealCuda()
        return
    # it remembers the device of its first user
    AcceleratorState._reset_state(reset_partial_state=True)
    with pretended(pretended_device) as device:
        yield device
    AcceleratorState._reset_state(reset_partial_state=True)
