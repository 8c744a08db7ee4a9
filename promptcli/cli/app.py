"""The entrance: the table of commands, and the one place where an error becomes a line and an exit code.

Exit codes: 0 well; 1 failure; 2 usage; 3 data or model not there; 4 a check failed; 130 Ctrl-C; 143 SIGTERM.
"""

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn, TextIO

import typer
from typer.core import TyperGroup

import promptcli
from promptcli.cli.commands import (
    analyze,
    config,
    embed,
    evaluate,
    examples,
    export,
    fit,
    index,
    models,
    pretrain,
    reproduce,
    searching,
    serve,
    templates,
    train,
    vectors,
)
from promptcli.cli.console import say, show_library_notes, write_what_cannot_be_shown
from promptcli.cli.options import Runtime, Section, expand
from promptcli.cli.stopping import Stopped, stopped_by, stopping_by_exception
from promptcli.cli.usage import AliasCommand, PanelGroup, PanelHelpCommand, check_spelling, usage_message
from promptcli.errors import PromptcliError, is_out_of_memory, one_line

app = typer.Typer(
    name="promptcli",
    help="Strong sentence encoders from pre-trained language models, by prompts.",
    no_args_is_help=True,
    cls=PanelGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
#: Name, function, what it does: the commands of the papers' methods, then the others.
_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("embed", embed.embed, "Encode sentences into vectors."),
    ("eval", evaluate.evaluate_command, "Score encoders on STS, transfer, retrieval and own tasks."),
    ("train", train.train, "Train a sentence encoder by a method of the papers."),
    ("search-templates", searching.search_templates, "Find the template that suits a backbone best."),
    ("ditto-search", searching.ditto_search, "Find the attention head that weighs tokens best."),
    ("optiprompt", lambda: None, "Learn a template's words as vectors: train optiprompt."),
    ("analyze", analyze.analyze, "Look inside models: anisotropy, attention, tokens, maps."),
    ("config", config.config, "Show, set and unset your own defaults."),
    ("examples", examples.examples, "Write the small files that the guides' commands read."),
    ("export", export.export, "Write an encoder as other programs load it."),
    ("fit", fit.fit, "Fit TF-IDF weights or a transform into a model."),
    ("pretrain", pretrain.pretrain, "Pre-train a small BERT or Llama on plain text."),
    ("pull", export.pull, "Save a model that was pushed to the hub."),
    ("push", export.push, "Send a model to the Hugging Face hub."),
    ("reproduce", reproduce.reproduce, "Measure the papers' tables and figures again."),
    ("search-layers", searching.search_layers, "Find the layer that a recipe reads best."),
    ("serve", serve.serve, "Serve embeddings and search over HTTP, with a page."),
    ("similarity", embed.similarity, "Compare two sentences, or the rows of two files, by cosine."),
    ("templates", templates.templates, "List templates, or show what one becomes for a backbone."),
    ("vectors", vectors.vectors, "Check, merge or sample a folder of vectors in parts."),
)


def _named(*functions: Callable[..., None]) -> dict[str, Callable[..., None]]:
    return {function.__name__: function for function in functions}


#: Name of a group, what it is for, its commands.
_GROUPS: tuple[tuple[str, str, dict[str, Callable[..., None]]], ...] = (
    (
        "index",
        "Build, change and search an index of sentences.",
        _named(index.build, index.add, index.delete, index.compact, index.search, index.dups, index.info, index.check),
    ),
    (
        "models",
        "List, show, import, remove and alias models.",
        {"list": models.list_models, "import": models.import_model, **_named(models.show, models.remove, models.alias)},
    ),
)
#: What a help page ends with, made when it is shown.
_ENDS: dict[str, Callable[[Sequence[str]], Section]] = {
    "analyze": analyze.help_text,
    "train": train.settings_in_force,
    "pretrain": pretrain.help_text,
}

for _name, _function, _about in _COMMANDS:
    _class = AliasCommand if _name == "optiprompt" else PanelHelpCommand
    app.command(_name, short_help=_about, cls=_class)(expand(_function, ends=_ENDS.get(_name)))
for _name, _about, _functions in _GROUPS:
    _group = typer.Typer(help=_about, no_args_is_help=True)
    for _key, _function in _functions.items():
        _group.command(_key, cls=PanelHelpCommand)(expand(_function))
    app.add_typer(_group, name=_name)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(promptcli.__version__)
        raise typer.Exit


@dataclass(frozen=True)
class ProgramOptions(Runtime):
    """The options that may stand before or after a command."""


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    *,
    runtime: ProgramOptions,
) -> None:
    """Strong sentence encoders from pre-trained language models, by prompts."""


app.callback()(expand(_root))


@functools.cache
def command() -> TyperGroup:
    """Return the table of commands as it is run; made once, whoever runs several."""
    made = typer.main.get_command(app)
    assert isinstance(made, TyperGroup)
    return made


_INTERRUPTED = "interrupted; nothing half written is left"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    write_what_cannot_be_shown()
    show_library_notes()
    try:
        with stopping_by_exception():
            try:
                check_spelling(given)
                ended = command()(args=given, prog_name="promptcli", standalone_mode=False)
            finally:
                sys.stdout.flush()  # here, where a full disk or a closed pipe can still be said and become an exit code
        sys.exit(ended if isinstance(ended, int) else 0)
    except PromptcliError as error:
        _fail(str(error), error.exit_code)
    except Stopped:
        _fail(_INTERRUPTED, 1)
    except BrokenPipeError:
        _drop(sys.stdout)
        sys.exit(1)
    except OSError as error:
        _drop(sys.stdout)
        _fail(*_what_failed(error))
    except Exception as error:
        if not hasattr(error, "format_message"):
            if stopped_by:
                _fail(_INTERRUPTED, 1)
            if reason := _device_trouble(error):
                _fail(reason, 1)
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message(), err=True)
            sys.exit(2)
        _fail(usage_message(error, given), 2)


def _device_trouble(error: Exception) -> str | None:
    """Return the line for an error of memory or of a GPU; None for another one."""
    if is_out_of_memory(error):
        return (
            "out of memory; take a smaller --batch-size, a shorter max-length, --dtype bfloat16, or another --device;"
            " --resume continues what a run has kept"
        )
    if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):
        return f"the GPU stopped: {one_line(error, 120)}; start again, a run that keeps its state by --resume"
    return None


def _what_failed(error: OSError) -> tuple[str, int]:
    """Return the line for an error of the system, and the exit code."""
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return f"{str(error.filename)!r} cannot be opened ({error.strerror}); give another path", 2
    what = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = f"disk full: {error.filename or 'the output'} could not be written"
    if error.errno == errno.EBADF:
        what = "stdout is closed, so the result could not be written"
    return f"{what}; nothing half written is left", 1


def _drop(stream: TextIO) -> None:
    """Send what is still buffered for a stream nowhere, else Python tries again at its end and complains."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's own stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: int) -> NoReturn:
    if stopped_by:
        message, code = _INTERRUPTED, 128 + stopped_by[0]
    try:
        say(f"promptcli: {message}")
    except OSError:  # a full or closed stderr: the code says it
        _drop(sys.stderr)
    sys.exit(code)
