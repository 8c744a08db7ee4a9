"""No text of a stranger makes a regular expression slow: long repetitions take milliseconds."""

import ast
import importlib
import re
import time
from pathlib import Path

import pytest

import promptcli

ROOT = Path(promptcli.__file__).parent
#: Reads our own docstrings only.
OURS = ("cli/typer_commands.py",)
#: Repetitions: a few for what doubles with each, many for what grows with the square.
FEW, MANY = 24, 10_000
#: Seconds of the processor; a pattern that never goes back needs a fiftieth of it.
LIMIT = 0.1
#: What is repeated beside the signs that a pattern itself names.
UNITS = ("a", "A", "1", "é", " ", "\t", "\n", ".", "-", "_", '"', "a ", "1,", "a\n", "1.", "a-")
ENDS = ("", "\0", "9x", "\n ")


def called_patterns():
    """Yield the place and a call on a text for each pattern that is known before a text is."""
    for path in sorted(ROOT.rglob("*.py")):
        text, place = path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()
        if place in OURS or not re.search(r"^import re$", text, re.MULTILINE):
            continue
        name = f"promptcli.{place.removesuffix('.py').replace('/', '.')}"
        module = vars(importlib.import_module(name.removesuffix(".__init__")))
        tree = ast.parse(text)
        assigned = {
            node.value: ast.unparse(node.targets[0])
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        }
        for call in ast.walk(tree):
            function = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if not re.fullmatch(r"re\.(?!escape)\w+", function):
                continue
            try:
                pattern = eval(ast.unparse(call.args[0]), module)
            except NameError:  # made of words when it runs
                continue
            others = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
            flags = sum(
                getattr(re, other.attr) for other in others if ast.unparse(other).startswith("re.")
            )
            functions = {function.removeprefix("re.")}
            if function == "re.compile":
                variable = assigned.get(call, "no name")
                functions = set(re.findall(rf"\b{variable}\.(\w+)", text)) or {"search"}
            if isinstance(pattern, str):
                yield f"{place}:{call.lineno}", re.compile(pattern, flags), functions


def hostile_texts(pattern):
    """Yield long repetitions, of what the pattern names and of other signs, and how they end."""
    named = re.sub(r"\\.|[\[\](){}?*+|^$]", "", pattern.pattern)
    for times in (FEW, MANY):
        for unit in dict.fromkeys((*UNITS, *named)):
            for end in ENDS:
                yield unit * times + end


def slow_text(pattern, functions):
    """Return the first text for which a function takes too long, or None."""
    for text in hostile_texts(pattern):
        for function in sorted(functions & {"match", "fullmatch", "search", "findall", "split"}):
            start = time.process_time()
            getattr(pattern, function)(text)
            if time.process_time() - start > LIMIT:
                return text
    return None


def test_a_long_repetition_takes_milliseconds():
    found = [*called_patterns()]
    assert len(found) > 50
    slow = {place: slow_text(pattern, functions) for place, pattern, functions in found}
    assert {place: text[:40] for place, text in slow.items() if text} == {}


@pytest.mark.parametrize(
    ("pattern", "function"),
    [(r"(?:a+)+b", "match"), (r"\d+x", "search"), (r"\S*\Z", "findall")],
)
def test_a_pattern_that_goes_back_is_found(pattern, function):
    assert slow_text(re.compile(pattern), {function})
