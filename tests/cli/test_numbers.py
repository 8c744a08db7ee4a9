"""Numbers that are out of range, refused before the work: by every option, in sweeps, and in the library."""

import pytest

from promptcli.cli.app import command
from promptcli.errors import UsageError
from promptcli.pretraining.plan import Plan
from promptcli.searching.search_settings import SearchSettings
from promptcli.serving.settings import ServeSettings
from promptcli.training.methods import METHODS


def numbers(found, path):
    """Yield the words of a command for each of its options that takes a number, the option, and whether a float."""
    for option in getattr(found, "params", ()):
        kind = option.get_runtime_param().annotation if option.param_type_name == "option" else None
        if kind in (int, float):
            needed = [one for one in found.params if one.required and one.name != option.name]
            words = [
                word
                for one in needed
                for word in ([max(one.opts, key=len)] if one.param_type_name == "option" else []) + ["x"]
            ]
            yield [*path, *words], max(option.opts, key=len), kind is float


ALL = [row for path, found in command().every() for row in numbers(found, path)]
FLOATS = [(words, option) for words, option, real in ALL if real]


def test_there_are_options_to_try():
    assert {"--minutes", "--save-minutes", "--learning-rate", "--epochs", "--gather-ms"} <= {
        option for _, option in FLOATS
    }


@pytest.mark.parametrize(("words", "option"), FLOATS, ids=[" ".join([words[0], option]) for words, option in FLOATS])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400"])
def test_no_option_takes_what_is_not_finite(words, option, value, run):
    ran = run(*words, f"{option}={value}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"{option} {value.replace('1e400', '')}" in ran.err and "is not allowed" in ran.err


@pytest.mark.parametrize("option", sorted({option for _, option, _ in ALL}))
def test_no_option_takes_more_than_64_bits(option, run):
    words = next(words for words, other, _ in ALL if other == option)
    ran = run(*words, f"{option}={10**30}")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1) and "is not allowed" in ran.err


@pytest.mark.parametrize("option", ["--minutes", "--save-minutes"])
def test_a_time_has_an_end(option, run):
    assert "--help" in run("pretrain", "x", "-o", "y", option, "1e12").err


@pytest.mark.parametrize(
    ("swept", "said"),
    [
        ("learning-rate=1e-3,inf", "learning-rate inf is not allowed; valid: at least 0 and at most 1000000"),
        ("epochs=1,1e12", "epochs 1000000000000.0 is not allowed"),
        ("dropout=0.1,0.95", "dropout 0.95 is not allowed; valid: at least 0 and at most 0.9"),
        ("batch-size=64,1", "batch-size 1 is not allowed; valid: at least 2"),
        ("temperature=nan", "temperature nan is not allowed"),
        ("mlm-head=frozen,thawed", "unknown mlm-head 'thawed'"),
    ],
)
def test_sweeps_keep_to_the_ranges_of_options(swept, said, run, home):
    ran = run("train", "simcse", "--offline", "-q", "--sweep", swept)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
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
        with pytest.raises(UsageError, match="is not allowed"):
            make()
