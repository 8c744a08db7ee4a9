"""Numbers that are out of range are refused before the work: by options, in sweeps, and in the library."""

import pytest

from promptcli.errors import UsageError
from promptcli.pretraining.plan import Plan
from promptcli.searching.search_settings import SearchSettings
from promptcli.serving.settings import ServeSettings
from promptcli.training.methods import METHODS
from tests.embed_running import refused


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("train simcse", "--learning-rate"),
        ("pretrain x -o y", "--learning-rate"),
        ("index build x -o y", "--target-recall"),
        ("index search x y", "--min-score"),
    ],
)
@pytest.mark.parametrize("value", ["inf", "nan", "-1e400"])
def test_no_option_takes_what_is_not_finite(command, option, value, run):
    refused(run(*command.split(), f"{option}={value}"), 2, option)


@pytest.mark.parametrize("words", ["train simcse --epochs", "pretrain x -o y --layers", "serve --port"])
def test_no_option_takes_more_than_64_bits(words, run):
    refused(run(*words.split(), 10**30), 2, words.split()[-1])


@pytest.mark.parametrize(
    ("swept", "said"),
    [
        ("learning-rate=1e-3,inf", "--learning-rate inf is not allowed; valid: at least 0 and at most 1000000"),
        ("epochs=1,1e12", "--epochs 1000000000000.0 is not allowed"),
        ("dropout=0.1,0.95", "`dropout` 0.95 is not allowed; valid: at least 0 and at most 0.9"),
        ("batch-size=64,1", "--batch-size 1 is not allowed; valid: at least 2"),
        ("temperature=nan", "--temperature nan is not allowed"),
        ("mlm-head=frozen,thawed", "unknown mlm-head 'thawed'"),
    ],
)
def test_sweeps_keep_to_the_ranges_of_options(swept, said, run, home):
    refused(run("train", "simcse", "--offline", "-q", "--sweep", swept), 2, said)
    assert not (home / "runs").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1])
def test_the_library_keeps_to_them_too(value):
    small = METHODS["simcse"][0].small
    for make in (
        lambda: type(small)(learning_rate=value),
        lambda: small.replace(epochs=value),
        lambda: Plan(learning_rate=value),
        lambda: Plan(weight_decay=value),
        lambda: ServeSettings(gather_ms=value),
        lambda: SearchSettings(beam=value),
    ):
        with pytest.raises(UsageError, match=r"is not allowed|give a whole number"):
            make()
