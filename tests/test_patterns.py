"""The time of every regular expression grows with the length of the text, not with its square:
steps are counted.
"""

import ast
import importlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import promptcli
from tests.regex_steps import Steps

INPUTS = int(os.environ.get("PROMPTCLI_FUZZ", "0"))
ROOT = Path(promptcli.__file__).parent
#: Reads our own docstrings only.
OURS = ("cli/typer_commands.py",)
#: Files with patterns that are made when they run: words of ours or of a model, which repeat
#: nothing.
OF_WORDS = {
    "backbones/tokenizer.py",
    "data/column_forms.py",
    "data/senteval.py",
    "serving/app.py",
}
#: Repetitions; they are doubled and trebled.
SHORT = 24
#: Steps that the third part of the repetitions may cost more than the second.
STRAIGHT = 4 * SHORT


def patterns():
    """Return (place, pattern, flags, functions called) of every pattern, and the files of those
    made when called.
    """
    found, made = [], []
    for path in sorted(ROOT.rglob("*.py")):
        text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        if place in OURS or not re.search(r"^import re$", text, re.MULTILINE):
            continue
        module = importlib.import_module(
            f"promptcli.{place[:-3].replace('/', '.')}".removesuffix(".__init__")
        )
        tree = ast.parse(text)
        names = {
            node.value: ast.unparse(node.targets[0])
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        }
        for call in ast.walk(tree):
            function = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if not re.fullmatch(r"re\.(?!escape)\w+", function):
                continue
            try:
                pattern = eval(ast.unparse(call.args[0]), vars(module))
            except NameError:
                made.append(place)
                continue
            others = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
            flags = [
                getattr(re, other.attr) for other in others if ast.unparse(other).startswith("re.")
            ]
            functions = {function.removeprefix("re.")}
            if function == "re.compile" and call in names:
                functions = set(re.findall(rf"\b{names[call]}\.(\w+)", text)) or {"search"}
            found.append((f"{place}:{call.lineno}", pattern, sum(flags), functions))
    return found, made


FOUND, MADE = patterns()


def bend(steps, called, before, repeated, after):
    """Return how many steps the third part of the repetitions costs more than the second."""
    first, second, third = (
        steps.of(before + repeated * SHORT * times + after, called) for times in (1, 2, 3)
    )
    return third - 2 * second + first if third < float("inf") else third


def worst(steps, called):
    """Return the largest bend and the attack that reaches it."""
    attacks = dict.fromkeys(
        (*attack, after) for attack in steps.attacks() for after in ("", "\0", "9x", "\n ")
    )
    return max(((bend(steps, called, *attack), attack) for attack in attacks), default=(0, None))


def test_every_pattern_is_looked_at():
    assert len(FOUND) > 50 and set(MADE) == OF_WORDS


@pytest.mark.parametrize(
    ("place", "pattern", "flags", "called"), FOUND, ids=[place for place, *_ in FOUND]
)
def test_steps_grow_with_the_length(place, pattern, flags, called):
    steps = Steps(pattern, flags)
    bent, attack = worst(steps, called)
    assert bent < STRAIGHT, attack
    signs = st.text(st.sampled_from(steps.alphabet), max_size=4)

    @settings(
        max_examples=max(INPUTS // len(FOUND), 5),
        derandomize=not INPUTS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(signs, signs.filter(bool), signs)
    def check(before, repeated, after):
        assert bend(steps, called, before, repeated, after) < STRAIGHT

    check()


@pytest.mark.parametrize(
    ("pattern", "function"),
    [
        (r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.-])", "match"),
        (r"[\d\s.,:/%+-]*\d[\d\s.,:/%+TZ-]*", "fullmatch"),
        (r"[-+]?[0-9]*\.?[0-9]+(e[-+]?[0-9]+)?", "fullmatch"),
        (r"^\S+(/\S*|\.[a-z][a-z0-9]+)$", "search"),
        (r"\S*\Z", "findall"),
        (r"\d+x", "search"),
        (r"(?:a+)+b", "match"),
    ],
)
def test_the_count_finds_patterns_that_go_back(pattern, function):
    assert worst(Steps(pattern), {function})[0] >= STRAIGHT


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(
    st.sampled_from(
        [
            "(a|ab)(c|bcd)(d*)",
            "a*?b{2,3}(?!c)",
            r"(?<=a)(?:[^\W\d]|\.)+$",
            r"(?:a+|b?)*c\Z",
            r"([ab])\1{1,}c*",
        ]
    ),
    st.text(st.sampled_from("aabbcd.1"), max_size=7),
)
def test_the_counter_matches_as_python_does(pattern, text):
    steps = Steps(pattern)
    for start in range(len(text)):
        steps.start(text)
        match = re.compile(pattern).match(text, start)
        assert steps.end(start) == (match and match.end())
