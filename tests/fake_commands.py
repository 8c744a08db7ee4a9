"""For tests of `embed` and `similarity`: the commands in-process on the fake encoder, and what a
refusal looks like.
"""

import importlib
from pathlib import Path

import pytest

from promptcli.embedding import embed_parts
from promptcli.models import loading as encoders
from promptcli.models.entries import Entry
from tests.fake_encoder import FakeEncoder

# each takes the functions that are replaced below when it is first imported
for _name in ("cosines", "exporting", "hub", "importing", "saving"):
    importlib.import_module(f"promptcli.models.{_name}")

TEXT = "one\n\nthree is here\nfour\n"
ROWS = ["one", "", "three is here", "four"]


@pytest.fixture(autouse=True, name="fake")
def fake_encoder(monkeypatch, tmp_path):
    """Run every command in an empty folder, on the fake encoder.

    The value holds what it was opened with.
    """
    opened = []

    def open_torch_encoder(model, *, dtype="stored", **_):
        opened.append((model, dtype))
        return FakeEncoder()

    monkeypatch.setattr(encoders, "open_torch_encoder", open_torch_encoder)
    monkeypatch.setattr(encoders, "open_encoder", open_torch_encoder)
    monkeypatch.chdir(tmp_path)
    return opened


def names():
    return sorted(path.name for path in Path().iterdir())


def contents(folder="out"):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def embed(folder, names, shards=4, encoder=None, **options):
    """Call ``embed_parts`` with an encoder that is open."""
    encoder = encoder or FakeEncoder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "open_torch_encoder", lambda *_, **__: encoder)
        patch.setattr(
            encoders,
            "resolve_entry",
            lambda model: Entry("fake", encoder.recipe, provenance={"end": model}),
        )
        return embed_parts(names, folder, shards, **options)
