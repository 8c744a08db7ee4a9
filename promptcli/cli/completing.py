"""What the shell completes: names of models, recipes, templates, tasks, methods and tables.

Nothing here loads torch: a shell waits for it at every press of the key.
"""

import contextlib
import inspect
import io
import os
import shlex
from collections.abc import Callable, Iterable
from typing import NoReturn

from promptcli.errors import PromptcliError


def _models() -> Iterable[str]:
    from promptcli.models.registry import Registry
    from promptcli.recipe import RECIPES
    from promptcli.settings import home_folder

    return [*Registry(home_folder()).names(), *RECIPES]


def _saved_models() -> Iterable[str]:
    from promptcli.models.registry import Registry
    from promptcli.settings import home_folder

    return Registry(home_folder()).names()


def _templates() -> Iterable[str]:
    from promptcli.named_templates import named_templates

    return named_templates()


def _tasks() -> Iterable[str]:
    from promptcli.data.task_table import TASKS

    return TASKS


def _methods() -> Iterable[str]:
    from promptcli.training.methods import METHODS

    return METHODS


#: Parameter, or command and parameter -> the names that it takes.
NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "model": _models,
    "models": _models,
    "encoder": _models,
    "named": _models,
    "show name": _saved_models,
    "remove name": _saved_models,
    "prompt": _templates,
    "templates text": _templates,
    "tasks": _tasks,
    "on": _tasks,
    "tests": _tasks,
    "train method": _methods,
}


def offer_names(command: str, called: Callable[..., None]) -> None:
    """Let the shell complete the parameters of a command that take names."""
    for name, parameter in inspect.signature(called).parameters.items():
        names = NAMES.get(f"{command} {name}", NAMES.get(name))
        if names is None:
            continue
        for about in parameter.annotation.__metadata__:
            about.autocompletion = _completion(names)


def _completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what Typer calls with the beginning of a word."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except (PromptcliError, OSError):  # e.g. a folder that may not be read
            return []

    return complete


def answer_shell(program: Callable[[], None]) -> NoReturn:
    """Answer a shell that asks for completions, and end the process.

    Typer offers the values of an option unchanged. A shell wants them in the place of the word at
    the cursor, which also has the option in ``--task=STS-B:d``; bash breaks that word and replaces
    ``d`` alone.
    """
    shell = os.environ["_PROMPTCLI_COMPLETE"].removeprefix("complete_")
    standing = ""
    if shell == "bash":
        standing = _mend_words()
    printed = io.StringIO()
    code: object = 0
    try:
        with contextlib.redirect_stdout(printed):
            program()
    except SystemExit as ended:
        code = ended.code
    option = ""
    if shell in ("zsh", "fish"):
        option = _option_at_cursor()
    if option and shell == "zsh":
        print("compset -P '*=';")  # zsh completes what follows
        option = ""
    for line in printed.getvalue().splitlines():
        print(option + line.removeprefix(standing))
    raise SystemExit(code)


def _option_at_cursor() -> str:
    """Return what the word at the cursor has up to the value of its option: ``--task=``."""
    _, _, word = os.environ.get("_TYPER_COMPLETE_ARGS", "").rpartition(" ")
    option, equals, _ = word.partition("=")
    return option + equals if option.startswith("--") and equals else ""


def _mend_words() -> str:
    """Join the words of bash at ``:`` and ``=``; return the text before the word at the cursor.

    That is the beginning of the value that is completed: ``STS-B:`` in ``--task=STS-B:d``. It is
    empty if bash has not broken the value.
    """
    try:
        words = shlex.split(os.environ["COMP_WORDS"])
    except ValueError:  # a quote that is still open
        return ""
    current = int(os.environ["COMP_CWORD"])
    if len(words) <= current:  # a new word
        return ""
    mended: list[str] = []
    standing = ""  # of the last word, what its other pieces have
    joins = False
    for word in words[: current + 1]:
        is_break = word != "" and word.strip(":=") == ""
        if mended and (is_break or joins):
            standing = mended[-1]
            mended[-1] += word
        else:
            standing = ""
            mended.append(word)
        if is_break:
            standing = mended[-1]
        joins = is_break
    os.environ["COMP_WORDS"] = shlex.join(mended)
    os.environ["COMP_CWORD"] = str(len(mended) - 1)
    if standing.startswith("--"):
        _, _, standing = standing.partition("=")
    return standing
