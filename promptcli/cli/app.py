"""The entrance: the table of commands, and the one place where an error becomes a line and an exit code.

Exit codes: 0 well; 1 failure; 2 usage; 3 data or model not there; 4 a check failed; 130 Ctrl-C; 143 SIGTERM.
"""

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

import promptcli
from promptcli.cli.commands import (
    analyze,
    config,
    ditto_search,
    embed,
    evaluate,
    fit,
    index,
    models,
    pretrain,
    reproduce,
    rerun,
    search_templates,
    templates,
    train,
    transfer,
)
from promptcli.cli.commands.train_options import settings_in_force
from promptcli.cli.console import note
from promptcli.cli.options import expand
from promptcli.errors import PromptcliError

app = typer.Typer(
    name="promptcli",
    help="Strong sentence encoders from pre-trained language models, by prompts.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("embed")(expand(embed.embed))
app.command("similarity")(expand(embed.similarity))
app.command("eval")(expand(evaluate.evaluate_command))
app.command("transfer")(expand(transfer.transfer))
app.command("fit")(expand(fit.fit))
app.command("ditto-search")(expand(ditto_search.ditto_search))
app.command("search-templates")(expand(search_templates.search_templates))
app.command("train", epilog=settings_in_force())(expand(train.train))
app.command("optiprompt")(expand(train.optiprompt))
app.command("pretrain")(expand(pretrain.pretrain))
app.command("perplexity")(expand(pretrain.perplexity))
app.command("reproduce")(expand(reproduce.reproduce))
app.command("rerun")(expand(rerun.rerun))
app.command("recipes")(models.recipes)
app.add_typer(index.app, name="index")
app.add_typer(models.app, name="models")
_templates = typer.Typer(help="Named templates.", no_args_is_help=True)
_templates.command("list")(templates.list_templates)
_templates.command("show")(templates.show_template)
_templates.command("check")(expand(templates.check_template))
app.add_typer(_templates, name="templates")
_config = typer.Typer(help="Your own defaults.", no_args_is_help=True)
_config.command("show")(config.show)
app.add_typer(_config, name="config")
app.add_typer(analyze.app, name="analyze")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(promptcli.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Strong sentence encoders from pre-trained language models, by prompts."""


class _Stopped(BaseException):
    """A signal asked the program to end. No Exception, so that nothing on the way takes it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = 128 + number


def _stop(number: int, frame: Any) -> NoReturn:
    raise _Stopped(number)


@contextlib.contextmanager
def _ending_well() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM unwind the stack, so that temporary files go; Typer would end on Ctrl-C without a word."""
    before = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    try:
        try:
            with _ending_well():
                app(args=None if arguments is None else list(arguments))
        finally:
            sys.stdout.flush()  # here, where a full disk or a closed pipe can still be said and become an exit code
    except PromptcliError as error:
        _fail(str(error), error.exit_code)
    except _Stopped as stopped:
        _fail("interrupted; nothing half written is left", stopped.code)
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        _drop_stdout()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = f"disk full: {error.filename or 'the output'} could not be written" if full else str(error)
        _fail(f"{what}; nothing half written is left", 1)


def _drop_stdout() -> None:
    """Send what is still buffered for stdout nowhere, else Python tries again at its end and complains."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's own stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    note(f"promptcli: {' '.join(message.split())}")
    sys.exit(code)
