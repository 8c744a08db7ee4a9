"""The program: its table of commands, its own options, and the end of a command.

Errors become messages and exit codes only here.

Exit codes: 0 success; 1 failure; 2 usage; 3 data or model missing; 4 a check failed; 130 Ctrl-C;
143 SIGTERM.
"""

import contextlib
import contextvars
import copy
import errno
import functools
import importlib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

import promptcli
from promptcli.cli.console import progress, say, set_up_streams
from promptcli.cli.options import RUNTIME, configure_libraries, spell_name
from promptcli.cli.stopping import Terminated, interruptible
from promptcli.errors import PromptcliError, is_out_of_memory, join_lines, short_repr, state_after
from promptcli.extensions import Table
from promptcli.notes import recording_command, showing_stages, silent, without_network
from promptcli.recipe import ModelChoice
from promptcli.settings import ANOTHER_HOME, is_program_file, read_settings
from promptcli.threads import computing

#: Type of an option's values -> the word for a value on the help page.
VALUE_WORDS: dict[Any, str] = {
    bool: "",
    str: "TEXT",
    list[str]: "TEXT",
    int: "N",
    float: "NUMBER",
    Path: "PATH",
}


def _with_value_words(parameters: list[Any]) -> list[Any]:
    """Let the help page name the values of parameters by plain words, not by Python's types.

    Older versions of Typer do so themselves.
    """
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: ""
        elif parameter.metavar is None and hasattr(parameter, "type_descriptor"):
            parameter.metavar = VALUE_WORDS.get(parameter.type_descriptor.annotation)
    return parameters


class Commands(TyperGroup):
    """A table of commands: the whole program or one group."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_value_words(super().get_params(ctx))

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield every command and group in the table, loaded, with the words that name it."""
        for name in self.list_commands(None):  # type: ignore[arg-type]
            command = self.commands[name]
            if isinstance(command, Command):
                command.load()
            yield (*path, name), command
            if isinstance(command, Commands):
                yield from command.walk((*path, name))


#: Panel of the help page for commands that ``_PANELS`` lacks.
_PLUGIN_PANEL = "Plug-ins"


class Command(TyperCommand):
    """A command, ``module:function``, whose module is imported when the command is used.

    A command also takes the program's options. ``leading_words`` go before the typed arguments.
    """

    def __init__(self, name: str, target: str, help_text: str, *leading_words: str) -> None:
        super().__init__(name, short_help=help_text, rich_help_panel=_PLUGIN_PANEL)
        self.target = target
        self.leading_words = leading_words

    def load(self) -> None:
        """Import the module, and take the help and the options from the function."""
        if self.callback is not None:
            return
        module, _, name = self.target.partition(":")
        function = getattr(importlib.import_module(module, "promptcli.cli.commands"), name)
        app = typer.Typer(add_completion=False)
        app.command(self.name)(function)
        command = typer.main.get_command(app)
        self.callback = command.callback
        # Rich would keep the line breaks of the docstring
        self.help = re.sub(r"(?<!\n)\n(?!\n|- )", " ", command.help or "")
        self.params = [*command.params, *map(_hidden, _program_options())]

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_value_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self.load()
        _set_environment_variables_of(self.params, ctx.command_path)
        return super().parse_args(ctx, [*self.leading_words, *args])

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the program's options, which may come before or after it."""
        program_values = ctx.find_root().params
        values = {}
        for option in _program_options():
            value = ctx.params.pop(option.name)
            values[option.name] = program_values[option.name] if value is None else value
        offline, quiet = values.pop("offline"), values.pop("quiet")
        if values["dtype"] == "auto":
            values["dtype"] = None
        RUNTIME.set(ModelChoice(**values))
        configure_libraries(values["threads"], offline=offline, quiet=quiet)
        with without_network(offline), showing_stages(progress), silent(quiet):
            try:
                return super().invoke(ctx)
            except PromptcliError as error:  # names a parameter of a function of the library
                typed_names = {option.name: _typed_name(option) for option in self.params}
                if error.parameter in typed_names:
                    error.parameter = typed_names[error.parameter]
                elif error.parameter and "set" in typed_names:
                    error.parameter = f"--set {spell_name(error.parameter)}"
                backbone = read_settings(os.environ)["backbone"]
                if backbone.source != "built in" and repr(backbone.value) in error.message:
                    error.message += f"; {backbone.source} names this default backbone"
                raise


def _program_options() -> list[Any]:
    program: Any = command()
    return [option for option in program.params if option.rich_help_panel == _PROGRAM_PANEL]


def _set_environment_variables_of(parameters: list[Any], path: str) -> None:
    """Let the environment set options: ``PROMPTCLI_INDEX_BUILD_ROWS`` is ``--rows`` of
    ``index build``.

    The guide describes these variables; the help pages do not.
    """
    for parameter in parameters:
        is_option = parameter.param_type_name == "option" and not parameter.is_eager
        if is_option and not parameter.hidden:
            words = [*path.split(), _typed_name(parameter).lstrip("-")]
            parameter.envvar = "_".join(words).replace("-", "_").upper()
            parameter.show_envvar = False


def _hidden(option: Any) -> Any:
    """Return a program option as a hidden option of a command, with the default None."""
    hidden = copy.copy(option)
    hidden.hidden = True
    hidden.default = hidden.envvar = None
    return hidden


def _typed_name(parameter: Any) -> str:
    """Return a parameter as the user types it, e.g. ``FILE``, ``--on``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def group(name: str, help_text: str, *members: Command) -> Commands:
    """Return a group of commands; its name is typed before theirs."""
    for member in members:
        member.rich_help_panel = None
    commands: Any = {member.name: member for member in members}
    return Commands(
        name=name,
        help=help_text,
        commands=commands,
        no_args_is_help=True,
        rich_markup_mode="rich",
        rich_help_panel=_PLUGIN_PANEL,
    )


_MAIN_COMMANDS = (
    Command(
        "search",
        ".search_files:search_files",
        "Search texts and tables by meaning and words, without an index.",
    ),
    group(
        "index",
        "Build, change and search an index of sentences.",
        Command(
            "build", ".index:build", "Index sentences, or stored vectors, for search by cosine."
        ),
        Command("add", ".index:add", "Add sentences, or vectors of the same encoder, to an index."),
        Command(
            "sync",
            ".index:sync",
            "Make an index equal to files and folders: only what changed is encoded.",
        ),
        Command("delete", ".index:delete", "Delete rows by their ids."),
        Command("compact", ".index:compact", "Free the space of deleted rows."),
        Command("migrate", ".index:migrate", "Give an index the vectors of another model."),
        Command("search", ".index:search", "Print the rows that are nearest to each query."),
        Command(
            "dups",
            ".index:dups",
            "Find near-duplicates within an index, or rows of a file that are also in it.",
        ),
        Command("info", ".index:info", "Describe an index: its rows, type, encoder and columns."),
    ),
    Command(
        "dups", ".dups:dups", "Find the rows of a test set that also occur in the training data."
    ),
    Command("embed", ".embed:embed", "Encode sentences into vectors."),
    Command(
        "similarity",
        ".embed:similarity",
        "Compare two sentences, or the rows of two files, by cosine.",
    ),
    Command(
        "eval",
        ".evaluate:evaluate_command",
        "Score encoders on STS, transfer, retrieval and your own tasks.",
    ),
    Command("train", ".train:train", "Train a sentence encoder by a method of the papers."),
    Command(
        "examples", ".examples:examples", "Write the small files that the guides' commands read."
    ),
)
_MODEL_COMMANDS = (
    group(
        "models",
        "List, show, import and remove models.",
        Command(
            "list",
            ".models:list_models",
            "List the models: shipped with promptcli, and saved by you.",
        ),
        Command("import", ".models:import_model", "Import a model trained elsewhere."),
        Command(
            "show", ".models:show", "Show a model: its recipe, where it came from, and its scores."
        ),
        Command("remove", ".models:remove", "Delete a model you saved."),
    ),
    Command("export", ".models:export", "Write an encoder for other programs."),
    Command("push", ".models:push", "Send a model to the Hugging Face hub."),
    Command("pull", ".models:pull", "Save a model that was pushed to the hub."),
    Command("templates", ".templates:templates", "List templates, or show the tokens of one."),
    Command("config", ".config:config", "Show, set and unset your own defaults."),
)
_RESEARCH_COMMANDS = (
    Command(
        "search-templates",
        ".select:search_templates",
        "Find the template that suits a backbone best.",
    ),
    Command(
        "ditto-search", ".select:ditto_search", "Find the attention head that weighs tokens best."
    ),
    Command("search-layers", ".select:search_layers", "Find the best layer for a recipe."),
    Command(
        "optiprompt",
        ".train:train",
        "Learn a template's words as vectors: train optiprompt.",
        "optiprompt",
    ),
    Command("fit", ".fit:fit", "Fit TF-IDF weights or a transform, and save the model."),
)
#: Panels of the help page, in the order in which a user needs them.
_PANELS = (
    ("Commands", _MAIN_COMMANDS),
    ("Models and settings", _MODEL_COMMANDS),
    ("Research", _RESEARCH_COMMANDS),
)
#: ``--help`` lists the commands of plug-ins last.
COMMANDS = Table[Any](
    "commands",
    {str(member.name): member for _, members in _PANELS for member in members},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(promptcli.__version__)
        raise typer.Exit


_PROGRAM_PANEL = "Options of every command"
_program_option = functools.partial(typer.Option, rich_help_panel=_PROGRAM_PANEL)


def _declare_program_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    device: Annotated[
        str, _program_option(help="Device that computes: auto, cpu, cuda, cuda:1 or mps.")
    ] = "auto",
    dtype: Annotated[
        str,
        _program_option(
            help="auto, float32, bfloat16, float16, tf32 (on a GPU), int8 (with a backend; its loss"
            " is not checked). auto: float32 for scores; bfloat16 for embed, index and serve if the"
            " hardware supports it; the stored type for causal models."
        ),
    ] = "auto",
    backend: Annotated[
        str,
        _program_option(
            help="Library that computes on a CPU: torch; openvino or onnx (a graph that is made"
            " once, checked and kept); openvino-int8 or onnx-int8 (8 bits; the loss is"
            " measured); auto (openvino or torch, whichever is probably faster)."
        ),
    ] = "torch",
    threads: Annotated[
        int | None, _program_option(min=1, max=4096, help="CPU threads. Default: all cores.")
    ] = None,
    offline: Annotated[bool, _program_option("--offline", help="Never use the network.")] = False,
    quiet: Annotated[
        bool, _program_option("--quiet", "-q", help="No progress and no notes on stderr.")
    ] = False,
) -> None:
    """Turn pre-trained language models into sentence encoders."""


@functools.cache
def command() -> Commands:
    """Return the program: its own options, and the table of commands."""
    app = typer.Typer(
        name="promptcli",
        no_args_is_help=True,
        cls=Commands,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )
    app.callback()(_declare_program_options)
    program = typer.main.get_command(app)
    assert isinstance(program, Commands)
    _set_environment_variables_of(program.params, "promptcli")
    for panel, members in _PANELS:
        for member in members:
            member.rich_help_panel = panel
    program.commands = COMMANDS
    return program


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    if arguments is None and "_PROMPTCLI_COMPLETE" in os.environ:  # the shell asks for completions
        command().main(prog_name="promptcli")
    words = sys.argv[1:] if arguments is None else list(arguments)
    contextvars.copy_context().run(_run, words, ends_process=arguments is None)


def _run(words: list[str], ends_process: bool) -> NoReturn:
    set_up_streams()
    code = 0
    command_line = shlex.join(["promptcli", *words])
    with interruptible(ends_process) as interrupts, recording_command(command_line):
        try:
            try:
                with command().make_context("promptcli", words) as context:
                    command().invoke(context)
            except typer.Exit as ended:
                code = ended.exit_code
            sys.stdout.flush()  # a full disk or a closed pipe can still become an exit code
        except BaseException as error:
            if interrupts:  # a library may have turned an interrupt into its own error
                if isinstance(error, KeyboardInterrupt):
                    interrupts[-1].__notes__ = getattr(error, "__notes__", [])
                error = interrupts[-1]
            code = _report_error(error)
    # a worker thread may still run native code for a dropped request; only os._exit stops it
    if computing():
        os._exit(code)
    sys.exit(code)


def _report_error(error: BaseException) -> int:
    """Print an error in one line and return its exit code; a bug in the program is raised again."""
    code_and_message = _code_and_message(error)
    if code_and_message is None:
        raise error
    if isinstance(error, OSError):
        _discard_buffer(sys.stdout)
    code, message = code_and_message
    try:
        if message:
            say(f"promptcli: {message}")
    except OSError:  # stderr is full or closed: only the exit code reports the error
        _discard_buffer(sys.stderr)
    return code


def _code_and_message(error: Any) -> tuple[int, str] | None:
    """Return the exit code and the message of an error; None if it is a bug in the program."""
    if isinstance(error, PromptcliError):
        return error.exit_code, str(error)
    state = state_after(error) or "nothing was changed"
    if isinstance(error, KeyboardInterrupt):
        return 143 if isinstance(error, Terminated) else 130, f"interrupted; {state}"
    if isinstance(error, BrokenPipeError):
        return 1, ""
    if isinstance(error, OSError):
        name = error.filename
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return 1, f"disk full: {name or 'the output'} could not be written; {state}"
        if name and error.errno != errno.EIO:
            remedy = ANOTHER_HOME if is_program_file(str(name)) else "use another path"
            return 2, f"{str(name)!r} cannot be opened or written ({error.strerror}); {remedy}"
        return 1, f"{error}; {state}"
    if is_out_of_memory(error):
        return 1, "out of memory; use a smaller --batch-size, --dtype bfloat16 or another --device"
    if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):
        again = "start again, with --resume if the command has it"
        return 1, f"the GPU stopped: {join_lines(error, 120)}; {again}"
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2, ""
    if hasattr(error, "format_message"):  # Typer's parser raised it
        path = error.ctx.command_path if error.ctx else "promptcli"
        if hasattr(error.__cause__, "errors"):  # pydantic's message does not name the value
            problem, *_ = error.__cause__.errors()
            text = problem["msg"].removeprefix("Value error, ")
            error.message = text.replace("Input", short_repr(problem["input"]), 1)
        message = join_lines(error.format_message()).removesuffix(".")
        return 2, f"{message[0].lower()}{message[1:]}; see {path} --help"
    return None


def _discard_buffer(stream: TextIO) -> None:
    """Discard a stream's buffer; otherwise Python writes it again at exit, and fails again."""
    with contextlib.suppress(OSError, ValueError):  # the stdout of a test has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
