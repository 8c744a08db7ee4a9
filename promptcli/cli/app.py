"""The entrance: the table of commands, and the one place where an error becomes a line and an exit code.

Exit codes: 0 well; 1 failure; 2 usage; 3 data or model missing; 4 a check failed; 130 Ctrl-C; 143 SIGTERM.
"""

import contextlib
import contextvars
import errno
import functools
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TextIO

import typer

import promptcli
from promptcli.cli.console import say, set_up_streams
from promptcli.cli.options import Runtime
from promptcli.cli.signatures import expand
from promptcli.cli.usage import Commands, Listed, usage_message
from promptcli.errors import PromptcliError, is_out_of_memory, one_line

#: Name, ``module.function`` of cli/commands, and help in the list: the commands of the papers' methods.
_FIRST = (
    Listed("embed", "embed.embed", "Encode sentences into vectors."),
    Listed("eval", "evaluate.evaluate_command", "Score encoders on STS, transfer, retrieval and own tasks."),
    Listed("train", "train.train", "Train a sentence encoder by a method of the papers.", ends="settings_in_force"),
    Listed("search-templates", "searching.search_templates", "Find the template that suits a backbone best."),
    Listed("ditto-search", "searching.ditto_search", "Find the attention head that weighs tokens best."),
    Listed("optiprompt", "train.train", "Learn a template's words as vectors: train optiprompt.", word="optiprompt"),
    Commands.of(
        "index",
        "Build, change and search an index of sentences.",
        Listed("build", "index.build", "Index sentences, or stored vectors, for search by cosine."),
        Listed("add", "index.add", "Add sentences, or vectors of the same encoder, to an index."),
        Listed("delete", "index.delete", "Delete rows by their ids."),
        Listed("compact", "index.compact", "Rewrite an index without its deleted rows."),
        Listed("search", "index.search", "Print the rows that are nearest to each query."),
        Listed("dups", "index.dups", "Print groups of near-duplicates, or the nearest pairs."),
        Listed("info", "index.info", "Print what an index holds."),
        Listed("check", "index.check", "Compare the sizes of an index's files, and open it."),
    ),
)
_OTHERS = (
    Listed("analyze", "analyze.analyze", "Look inside models: anisotropy, attention, tokens, maps.", ends="help_text"),
    Listed("config", "config.config", "Show, set and unset your own defaults."),
    Listed("examples", "examples.examples", "Write the small files that the guides' commands read."),
    Listed("export", "export.export", "Write an encoder as other programs load it."),
    Listed("fit", "fit.fit", "Fit TF-IDF weights or a transform into a model."),
    Listed("pretrain", "pretrain.pretrain", "Pre-train a small BERT on plain text.", ends="help_text"),
    Listed("pull", "export.pull", "Save a model that was pushed to the hub."),
    Listed("push", "export.push", "Send a model to the Hugging Face hub."),
    Listed("reproduce", "reproduce.reproduce", "Measure the papers' tables and figures again."),
    Listed("search-layers", "searching.search_layers", "Find the layer that a recipe reads best."),
    Listed("serve", "serve.serve", "Serve embeddings and search over HTTP, with a page."),
    Listed("similarity", "embed.similarity", "Compare two sentences, or the rows of two files, by cosine."),
    Listed("templates", "templates.templates", "List templates, or show what one becomes for a backbone."),
    Commands.of(
        "models",
        "List, show, import, remove and alias models.",
        Listed("list", "models.list_models", "List the models: shipped with promptcli, and saved by you."),
        Listed("import", "models.import_model", "Import a model trained elsewhere."),
        Listed("show", "models.show", "Show a model: its recipe, where it came from, and its scores."),
        Listed("remove", "models.remove", "Delete a model you saved and its aliases, or only an alias."),
        Listed("alias", "models.alias", "Set an alias of a model."),
    ),
)


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


@functools.cache
def command() -> Commands:
    """Return the program with its table of commands."""
    app = typer.Typer(
        name="promptcli",
        no_args_is_help=True,
        cls=Commands,
        context_settings={"help_option_names": ["-h", "--help"]},
        add_completion=False,
        rich_markup_mode="rich",
    )
    app.callback()(expand(_root))
    program = typer.main.get_command(app)
    assert isinstance(program, Commands)
    for panel, rows in (("Commands", _FIRST), ("More commands", _OTHERS)):
        for row in rows:
            row.rich_help_panel = panel
            program.add_command(row)
    return program


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which unwinds the stack as Ctrl-C does."""


def _terminate(number: int, frame: Any) -> NoReturn:
    raise _Terminated


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    contextvars.copy_context().run(_run, sys.argv[1:] if arguments is None else list(arguments))


def _run(words: list[str]) -> NoReturn:
    set_up_streams()
    before = signal.signal(signal.SIGTERM, _terminate)
    code = 0
    try:
        try:
            with command().make_context("promptcli", words) as context:
                command().invoke(context)
        except typer.Exit as ended:
            code = ended.exit_code
        sys.stdout.flush()  # a full disk or a closed pipe can still be said and become an exit code
    except BaseException as error:
        ending = _ending(error)
        if ending is None:
            raise
        if isinstance(error, OSError):
            _drop(sys.stdout)
        _end(*ending)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _ending(error: BaseException) -> tuple[int, str] | None:
    """Return the exit code and the line of an error; None if it is a fault of the program."""
    if isinstance(error, PromptcliError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 143 if isinstance(error, _Terminated) else 130, "interrupted; nothing half written is left"
    if isinstance(error, BrokenPipeError):
        return 1, ""
    if isinstance(error, OSError):
        return _ending_of_system(error)
    if is_out_of_memory(error):
        return 1, "out of memory; take a smaller --batch-size, --dtype bfloat16 or another --device"
    if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):
        return 1, f"the GPU stopped: {one_line(error, 120)}; start again, with --resume if the command has it"
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2, ""
    return (2, usage_message(error)) if hasattr(error, "format_message") else None


def _ending_of_system(error: OSError) -> tuple[int, str]:
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return 2, f"{str(error.filename)!r} cannot be opened ({error.strerror}); give another path"
    message = str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        message = f"disk full: {error.filename or 'the output'} could not be written"
    elif error.errno == errno.EBADF:
        message = "stdout is closed, so the result could not be written"
    return 1, f"{message}; nothing half written is left"


def _end(code: int, message: str) -> NoReturn:
    with contextlib.suppress(OSError):  # a full or closed stderr: the code says it
        if message:
            say(f"promptcli: {message}")
        sys.exit(code)
    _drop(sys.stderr)
    sys.exit(code)


def _drop(stream: TextIO) -> None:
    """Send what is still buffered for a stream nowhere, else Python tries again at its end and complains."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's own stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
