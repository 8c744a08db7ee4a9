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
    "train word": _methods,
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

    Bash breaks words at colons and replaces only what follows the last one: it is offered ``dev``,
    not ``STS-B:dev``, which Typer does not know.
    """
    typed = ""
    if os.environ["_PROMPTCLI_COMPLETE"] == "complete_bash":
        typed = _mend_words()
    printed = io.StringIO()
    code: object = 0
    try:
        with contextlib.redirect_stdout(printed):
            program()
    except SystemExit as ended:
        code = ended.code
    for line in printed.getvalue().splitlines():
        print(line.removeprefix(typed))
    raise SystemExit(code)


def _mend_words() -> str:
    """Join the words of bash at colons, and return what the word at the cursor has up to its last.

    It is empty if bash has not broken that word.
    """
    try:
        words = shlex.split(os.environ["COMP_WORDS"])
    except ValueError:  # a quote that is still open
        return ""
    current = int(os.environ["COMP_CWORD"])
    if len(words) <= current:  # a new word
        return ""
    mended: list[str] = []
    joins = is_broken = False
    for word in words[: current + 1]:
        is_colon = word.strip(":") == "" and word != ""
        is_broken = bool(mended) and (is_colon or joins)
        if is_broken:
            mended[-1] += word
        else:
            mended.append(word)
        joins = is_colon
    os.environ["COMP_WORDS"] = shlex.join(mended)
    os.environ["COMP_CWORD"] = str(len(mended) - 1)
    return mended[-1][: mended[-1].rindex(":") + 1] if is_broken else ""
