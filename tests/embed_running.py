"""For tests of `embed` and `similarity`: the commands in-process on the fake encoder, and what a refusal looks like."""

from pathlib import Path

import pytest

from promptcli.api import encoders, searching, templates  # noqa: F401 - bound before a test stands in for what it opens
from promptcli.cli import app as cli
from tests.embed_fakes import FakeEncoder

TEXT = "one\n\nthree is here\nfour\n"
ROWS = ["one", "", "three is here", "four"]


@pytest.fixture(autouse=True, name="fake")
def fake_encoder(monkeypatch, tmp_path):
    """Run every command in an empty folder, on the fake encoder; the value holds what it was opened with."""
    opened = []

    def open_model(model, *, dtype="stored", **_):
        opened.append((model, dtype))
        return FakeEncoder()

    monkeypatch.setattr(encoders, "open_model", open_model)
    monkeypatch.chdir(tmp_path)
    return opened


@pytest.fixture(name="run")
def run_command(capsysbinary):
    """Return a function that runs the command line and gives exit code, stdout and stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return ended.value.code or 0, out.decode(), err.decode()

    return call


def names():
    return sorted(path.name for path in Path().iterdir())


def refused(result, code, *parts):
    """Assert one line on stderr with every part, nothing on stdout."""
    assert (result[0], result[1]) == (code, "")
    assert result[2].count("\n") == 1 and result[2].startswith("promptcli: ")
    for part in parts:
        assert part in result[2]
