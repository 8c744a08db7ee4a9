"""The entrance: the table of commands, and the one place where an error becomes a line and an exit code.

Exit codes: 0 well; 1 failure; 2 usage; 3 data or model not there; 4 a check failed; 130 Ctrl-C; 143 SIGTERM.
"""

import contextlib
import errno
import functools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn, TextIO

import typer

import promptcli
from promptcli.cli.console import say, show_library_notes, write_what_cannot_be_shown
from promptcli.cli.options import Runtime
from promptcli.cli.signatures import expand
from promptcli.cli.stopping import Stopped, stopped_by, stopping_by_exception
from promptcli.cli.usage import Commands, Listed, check_spelling, usage_message
from promptcli.errors import PromptcliError, is_out_of_memory, one_line

#: The commands of the papers' methods, then the others: name, ``module.function`` of cli/commands, help in the list.
_COMMANDS = (
    Listed("embed", "embed.embed", "Encode sentences into vectors."),
    Listed("eval", "evaluate.evaluate_command", "Score encoders on STS, transfer, retrieval and own tasks."),
    Listed("train", "train.train", "Train a sentence encoder by a method of the papers.", ends="settings_in_force"),
    Listed("search-templates", "searching.search_templates", "Find the template that suits a backbone best."),
    Listed("ditto-search", "searching.ditto_search", "Find the attention head that weighs tokens best."),
    Listed("optiprompt", "train.train", "Learn a template's words as vectors: train optiprompt.", word="optiprompt"),
    Listed("analyze", "analyze.analyze", "Look inside models: anisotropy, attention, tokens, maps.", ends="help_text"),
    Listed("config", "config.config", "Show, set and unset your own defaults."),
    Listed("examples", "examples.examples", "Write the small files that the guides' commands read."),
    Listed("export", "export.export", "Write an encoder as other programs load it."),
    Listed("fit", "fit.fit", "Fit TF-IDF weights or a transform into a model."),
    Listed("pretrain", "pretrain.pretrain", "Pre-train a small BERT or Llama on plain text.", ends="help_text"),
    Listed("pull", "export.pull", "Save a model that was pushed to the hub."),
    Listed("push", "export.push", "Send a model to the Hugging Face hub."),
    Listed("reproduce", "reproduce.reproduce", "Measure the papers' tables and figures again."),
    Listed("search-layers", "searching.search_layers", "Find the layer that a recipe reads best."),
    Listed("serve", "serve.serve", "Serve embeddings and search over HTTP, with a page."),
    Listed("similarity", "embed.similarity", "Compare two sentences, or the rows of two files, by cosine."),
    Listed("templates", "templates.templates", "List templates, or show what one becomes for a backbone."),
    Listed("vectors", "vectors.vectors", "Check, merge or sample a folder of vectors in parts."),
    Commands.of(
        "index",
        "Build, change and search an index of sentences.",
        Listed("build", "index.build", "Index sentences, or stored vectors, for search by cosine."),
        Listed("add", "index.add", "Add sentences, or vectors of the same encoder, to an index."),
        Listed("delete", "index.delete", "Delete rows by their ids."),
        Listed("compact", "index.compact", "Write an index again without its deleted rows."),
        Listed("search", "index.search", "Print the rows that are nearest to each query."),
        Listed("dups", "index.dups", "Print groups of near-duplicates, or the nearest pairs."),
        Listed("info", "index.info", "Print what an index holds."),
        Listed("check", "index.check", "Read every file of an index and compare its checksum."),
    ),
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
        rich_markup_mode=None,
    )
    app.callback()(expand(_root))
    program = typer.main.get_command(app)
    assert isinstance(program, Commands)
    program.commands.update({row.name: row for row in _COMMANDS if row.name})
    return program


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
