"""How rare a cosine is among pairs of the demo sentences: shipped, kept, counted."""

import numpy as np
import pytest

import promptcli as pc
from promptcli.backbones.locating import SHIPPED
from promptcli.evaluation import demo_rarity
from promptcli.evaluation.demo_rarity import SHIPPED_SAMPLES, count_rarity, rarity_of
from promptcli.evaluation.rarity import PAIRS, ROWS
from promptcli.settings import home_folder
from tests.embed_fakes import FakeEncoder

STATIC = ("mini-static", "mini-multi")


def kept_files():
    return sorted((home_folder() / "cache" / "rarity").glob("*"))


@pytest.mark.parametrize("name", STATIC)
def test_what_is_shipped_is_what_would_be_counted(name):
    encoder = pc.load(name)
    shipped = rarity_of(encoder)
    assert shipped.cosines == pytest.approx(count_rarity(encoder).cosines, abs=1e-6)
    assert (len(shipped.cosines), shipped.rows) == (PAIRS, ROWS) and not kept_files()


def test_mini_is_among_the_shipped_ones(monkeypatch):
    monkeypatch.setattr(demo_rarity, "_SECONDS", float("inf"))  # however busy the machine is
    encoder = pc.load("mini")
    with np.load(SHIPPED_SAMPLES) as shipped:
        assert set(shipped) == {pc.load(name).fingerprint for name in ("mini", *STATIC)}
        few = np.sort(count_rarity(encoder).cosines)
        assert np.median(shipped[encoder.fingerprint]) == pytest.approx(np.median(few), abs=0.02)
    assert "mini-bert" in SHIPPED and not kept_files()


def test_another_model_is_counted_once_and_a_damaged_file_counted_again(monkeypatch):
    first = FakeEncoder()
    wanted = rarity_of(first).cosines
    assert sum(first.calls) == 512 and len(kept_files()) == 1
    again = FakeEncoder()
    assert rarity_of(again).cosines == pytest.approx(wanted, abs=1e-6) and not again.calls
    kept_files()[0].write_bytes(b"PK no archive")
    mended = FakeEncoder()
    assert rarity_of(mended).cosines == pytest.approx(wanted, abs=1e-6)
    assert sum(mended.calls) == 512
    assert rarity_of(FakeEncoder()).cosines == pytest.approx(wanted, abs=1e-6)


def test_a_slow_model_encodes_few_sentences_and_says_nothing(monkeypatch):
    monkeypatch.setattr(demo_rarity, "_SECONDS", 0)
    encoder = FakeEncoder()
    assert not rarity_of(encoder).is_known and not kept_files()
    assert sum(encoder.calls) == 8
    assert not rarity_of(encoder).is_known and sum(encoder.calls) == 8, "it is not asked again"
    assert rarity_of(encoder).percents([0.5, 1]) == [None, None]


def test_a_home_that_cannot_be_written_is_no_error():
    home_folder().parent.mkdir(parents=True, exist_ok=True)
    home_folder().write_text("a file in its place")
    assert rarity_of(FakeEncoder()).is_known and not kept_files()


def test_rarities_of_cosines():
    percents = pc.rarity([-1, 0.2, 0.4, 1], "mini-static")
    assert percents == sorted(percents) and (percents[0], percents[3]) == (0, 99.99)
    assert 85 < percents[1] < 99 < percents[2]
