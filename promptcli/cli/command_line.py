"""The table of commands, and the one place where an error becomes a line and an exit
code.

Exit codes: 0 well; 1 failure; 2 usage; 3 data or model missing; 4 a check failed; 130 Ctrl-C; 143
SIGTERM.
"""

import contextlib
import contextvars
import copy
import dataclasses
import errno
import functools
import importlib
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

import promptcli
from promptcli.cli.completing import answer_shell, offer_names
from promptcli.cli.console import note, progress, say, set_up_streams
from promptcli.cli.options import RUNTIME, Runtime, written_name
from promptcli.cli.stopping import Terminated, interruptible
from promptcli.cli.typer_commands import fields_by_set, prose, typer_command
from promptcli.cli.usage_lines import source, spelling, usage_line
from promptcli.cli.visible import visible_lines
from promptcli.errors import PromptcliError, UsageError, is_out_of_memory, left_by, one_line
from promptcli.extensions import Table, absent_plugin, author_of, fault_of, must_be
from promptcli.notes import command_typed, keywords_typed, stages_shown, warn, without_network
from promptcli.settings import ANOTHER_HOME, program_folder
from promptcli.threads import computing


class Commands(TyperGroup):
    """A table of commands: the program, or a group of it; see ``group``."""

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield every command and group below, loaded, with the words that name it."""
        for name, command in self.commands.items():
            if isinstance(command, Command):
                command.load()
            yield (*path, name), command
            if isinstance(command, Commands):
                yield from command.walk((*path, name))


class Program(Commands):
    """The program: its own commands, and those of plug-ins, looked up when another is typed or all
    are listed.
    """

    def add_plugins(self) -> None:
        """Add the rows that plug-ins put into ``COMMANDS``, under their own heading."""
        for name, row in COMMANDS.items():
            if name in self.commands:
                continue
            if not isinstance(row, Command | Commands) or row.name != name:
                warn(f"the command {name!r} of a plug-in is left out: it is not a Command {name!r}")
                continue
            row.rich_help_panel = "Plug-ins"
            self.add_command(row)

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        self.add_plugins()
        return super().walk(path)

    def list_commands(self, ctx: Any) -> list[str]:
        self.add_plugins()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:  # for one of the core's no plug-in is looked at
            self.add_plugins()
            if cmd_name in COMMANDS.absent() and not ctx.resilient_parsing:
                raise absent_plugin(f"promptcli {cmd_name}")
        return super().get_command(ctx, cmd_name)


class Command(TyperCommand):
    """A command, ``module:function``, imported when it is asked for.

    It takes the program's options.

    ``example`` is what is typed after its name, which a message about something missing shows;
    ``implied_argument`` its first argument, if the name implies it; ``help_tail`` names the
    function of the module that makes the last section of its help; ``usual`` are the options that
    ``--help`` describes, in order, if not all of the command's own; ``--help-all`` describes all.
    """

    def __init__(
        self,
        name: str,
        target: str,
        short_help: str,
        *,
        example: str = "",
        implied_argument: str = "",
        help_tail: str = "",
        usual: str = "",
    ) -> None:
        also = " ".join(f"--{item.name}" for item in dataclasses.fields(Runtime))
        super().__init__(name, short_help=short_help, epilog=f"Also: {also}; see promptcli --help.")
        self.target = target
        self.example = example
        self.implied_argument = implied_argument
        self.help_tail = help_tail
        self.usual = usual.split()
        self.path = name  #: its typed words: ``index build``
        self.by_set: list[str] = []  #: fields that its ``--set`` takes

    @functools.cache  # noqa: B019 - the commands live as long as the program
    def load(self) -> Any:
        """Import the module and take the options of its function; return the module.

        Raises:
            PromptcliError: A command of another package that cannot be loaded.
        """
        if self.target.startswith((".", "promptcli.")):
            return self._load()
        with COMMANDS.naming_author("command", self.path.split()[0]):
            return self._load()

    def _load(self) -> Any:
        path, _, function = self.target.partition(":")
        module = importlib.import_module(path, "promptcli.cli.commands")
        called = typer_command(getattr(module, function))
        self.by_set = fields_by_set(called)
        offer_names(str(self.name), called)
        app = typer.Typer(add_completion=False)
        app.command(self.name, help=prose(called))(called)
        made = typer.main.get_command(app)
        self.callback = made.callback
        self.help = made.help
        _read_variables(made.params, self.path)
        self.params = [*made.params, *_program_options()]
        return module

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with those that show help."""
        return [*super().get_params(ctx), _help_of_all()]

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Read the command line with the command's options."""
        self.load()
        return super().make_context(*args, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line.

        Refuse empty values of options and files, and numbers that are not finite.
        """
        empty = any(word == "" or (word.startswith("--") and word.endswith("=")) for word in args)
        if self.implied_argument:
            args = [self.implied_argument, *args]
        ctx.meta["words"] = args
        rest: list[str] = super().parse_args(ctx, list(args))
        if ctx.resilient_parsing:  # the shell asks what comes next
            return rest
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            named = parameter.param_type_name == "option" or parameter.name in ("file", "files")
            if empty and (value == Path() or (named and value in ("", [""]))):
                raise UsageError(
                    f"{spelling(parameter)} is empty (a variable that is not set?); give a value"
                )
            if isinstance(value, float | int) and not abs(value) < 1 << 63:
                raise UsageError(
                    f"{spelling(parameter)} {value} is not allowed; give a finite number below 2^63"
                )
        return rest

    def _note_repeated(self, args: Sequence[str]) -> None:
        """Say that of an option with one value, given several times, the last one counts."""
        counts = Counter(word.partition("=")[0] for word in args[: _end_of_options(args)])
        for parameter in self.params:
            is_flag = getattr(parameter, "is_flag", True)
            if is_flag or parameter.multiple or parameter.nargs != 1:
                continue
            if sum(counts[name] for name in parameter.opts) > 1:
                note(f"{spelling(parameter)} is given several times; the last one counts")

    def _note_variables(self, ctx: Any) -> None:
        """Say which options the environment sets: a variable may be forgotten."""
        root = ctx.find_root()
        for parameter in self.params:
            if source(ctx, parameter.name) != "ENVIRONMENT":
                continue
            if parameter.name in root.params and source(root, parameter.name) == "COMMANDLINE":
                continue
            note(f"{spelling(parameter)} is set by the environment, {parameter.envvar}")

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the program's options, given before or after it."""
        root = ctx.find_root()
        values = dict(root.params)
        for name in Runtime.__dataclass_fields__:
            value = ctx.params.pop(name)
            in_file = source(ctx, name) == "DEFAULT_MAP" and source(root, name) != "COMMANDLINE"
            if in_file or source(ctx, name) == "COMMANDLINE":
                values[name] = value
        runtime = Runtime(**{name: values[name] for name in Runtime.__dataclass_fields__})
        runtime.configure_libraries()
        RUNTIME.set(runtime)
        self._note_repeated(ctx.meta["words"])
        self._note_variables(ctx)
        typed_words = ctx.meta["words"][1 if self.implied_argument else 0 :]
        command = shlex.join(["promptcli", *self.path.split(), *typed_words])
        with (
            without_network(runtime.offline),
            stages_shown(None if runtime.quiet else progress),
            command_typed(command),
            keywords_typed(self.keywords()),
        ):
            try:
                return super().invoke(ctx)
            except PromptcliError as error:
                error.parameter = self._typed(error.parameter)
                raise

    def _typed(self, parameter: str) -> str:
        """Return how a parameter of the library is typed: ``--bad-lines``, ``--set dims``."""
        for option in self.params:
            if option.name == parameter:
                return spelling(option)
        if any(option.name == "set" for option in self.params):
            return f"--set {written_name(parameter)}" if parameter else ""
        return parameter

    def keywords(self) -> dict[str, str]:
        """Return how the command's keywords are typed, up to their values."""
        by_set = {field: f"--set {written_name(field)}=" for field in self.by_set}
        return by_set | {parameter.name: f"{spelling(parameter)} " for parameter in self.params}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write Typer's help page and the command's own section."""
        parameters = self.get_params(ctx)
        folded = [] if _ALL in ctx.meta else self._folded(parameters)
        with _shortened(parameters), _hidden(folded), self._sorted():
            super().format_help(ctx, formatter)
        if folded:
            _print_panel("More options", _more(self.path, folded))
        if self.help_tail and (_ALL in ctx.meta or self._shows_tail(ctx)):
            _print_panel(*getattr(self.load(), self.help_tail)(ctx.meta.get("words", ())))

    def _folded(self, parameters: Sequence[Any]) -> list[Any]:
        """Return the options that ``--help`` names without describing them."""
        folded = []
        for parameter in parameters:
            if parameter.param_type_name != "option" or parameter.hidden or parameter.required:
                continue
            name = spelling(parameter).removeprefix("--")
            of_model = parameter.rich_help_panel == _MODEL_PANEL and name != "model"
            if name not in _ALWAYS and name not in self.usual and (self.usual or of_model):
                folded.append(parameter)
        return folded

    @contextlib.contextmanager
    def _sorted(self) -> Iterator[None]:
        """Put the usual options first in a help page."""
        before = self.params
        places = {name: place for place, name in enumerate(self.usual)}
        self.params = sorted(
            before, key=lambda option: places.get(spelling(option).removeprefix("--"), len(places))
        )
        try:
            yield
        finally:
            self.params = before

    def _shows_tail(self, ctx: Any) -> bool:
        """Whether ``--help`` ends in the last section: of training, for a method that is named."""
        words = ctx.meta.get("words", ())
        return not self.usual or any(not word.startswith("-") for word in words)


_ALL = "promptcli.help_all"  #: key of a context that is to describe all options
#: Options that every help page describes.
_MODEL_PANEL = "Model"  #: of the options that change a model's recipe
_ALWAYS = ("json", "help", "help-all")


def _show_all(ctx: typer.Context, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help(), color=ctx.color)
        raise typer.Exit


_HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_show_all, is_eager=True, help="Show all options.")
]


@functools.cache
def _help_of_all() -> Any:
    """Return the option that describes all options and ends."""

    def all_options(help_all: _HelpAll = False) -> None:
        pass

    app = typer.Typer(add_completion=False)
    app.command()(all_options)
    (option,) = typer.main.get_command(app).params
    option.expose_value = False
    return option


def _more(path: str, folded: Sequence[Any]) -> Iterator[tuple[str, ...]]:
    """Yield the names of options by their panels, and how all are described."""
    by_panel: dict[str, list[str]] = {}
    for option in folded:
        names = by_panel.setdefault(option.rich_help_panel or "Options", [])
        names += [spelling(option), *option.secondary_opts]
    for panel, names in by_panel.items():
        yield panel, " ".join(names)
    yield "", f"promptcli {path} --help-all describes them."


def _print_panel(heading: str, rows: Iterable[Sequence[str]]) -> None:
    table = Grid.grid(padding=(0, 2))
    for row in rows:
        table.add_row(*(Text(visible_lines(cell)) for cell in row))
    Console().print(Panel(table, title=heading, title_align="left", border_style="dim"))


@contextlib.contextmanager
def _hidden(options: Sequence[Any]) -> Iterator[None]:
    for option in options:
        option.hidden = True
    try:
        yield
    finally:
        for option in options:
            option.hidden = False


@contextlib.contextmanager
def _shortened(parameters: Sequence[Any]) -> Iterator[None]:
    """Leave out of a help page the types of flags, which take no value, and the variables of
    options: the guide says how they are called, and messages about wrong values name them.
    """
    options = [parameter for parameter in parameters if hasattr(parameter, "show_envvar")]
    before = [(option.show_envvar, option.metavar) for option in options]
    for option in options:
        option.show_envvar = False
        if getattr(option, "is_flag", False):
            option.metavar = ""
    try:
        yield
    finally:
        for option, (is_shown, metavar) in zip(options, before, strict=True):
            option.show_envvar = is_shown
            option.metavar = metavar


def _end_of_options(args: Sequence[str]) -> int:
    """Return where the options end: at ``--``, or after the last word."""
    return args.index("--") if "--" in args else len(args)


def _read_variables(parameters: Sequence[Any], path: str) -> None:
    """Let the environment set options: ``PROMPTCLI_INDEX_BUILD_MEMORY`` is ``--memory`` of
    ``index build``.
    """
    for parameter in parameters:
        if parameter.param_type_name == "option":
            words = ["promptcli", *path.split(), spelling(parameter).lstrip("-")]
            parameter.envvar = "_".join(words).replace("-", "_").upper()


def _program_options() -> list[Any]:
    """Return the options of the program, hidden, which every command takes too."""
    options: list[Any] = [
        copy.copy(each) for each in command().params if each.name in Runtime.__dataclass_fields__
    ]
    for option in options:
        option.hidden = True
    return options


def group(name: str, about: str, *rows: Command) -> Commands:
    """Return a group of commands, whose name is typed before theirs."""
    commands: Any = {row.name: row for row in rows}
    for row in rows:
        row.path = f"{name} {row.name}"
    return Commands(
        name=name, help=about, commands=commands, no_args_is_help=True, rich_markup_mode="rich"
    )


#: Name, ``module:function`` (of cli/commands), and help in the list.
_FIRST = (
    Command(
        "search",
        ".search_files:search_files",
        "Search in texts and tables by meaning, without an index.",
        example='"a cat sleeps" sentences.txt',
    ),
    group(
        "index",
        "Build, change and search an index of sentences.",
        Command(
            "build",
            ".index:build",
            "Index sentences, or stored vectors, for search by cosine.",
            example="sentences.txt -o my-index",
            usual="output model text-field id-field rows factory memory bad-lines force",
        ),
        Command(
            "add",
            ".index:add",
            "Add sentences, or vectors of the same encoder, to an index.",
            example="my-index more.txt",
        ),
        Command(
            "sync",
            ".index:sync",
            "Make an index equal to files and folders: only what changed is encoded.",
            example="my-index notes/",
            usual="model rows text-field id-field split dry-run verbose yes",
        ),
        Command("delete", ".index:delete", "Delete rows by their ids.", example="my-index 3 5"),
        Command(
            "compact",
            ".index:compact",
            "Rewrite an index without its deleted rows.",
            example="my-index",
        ),
        Command(
            "search",
            ".index:search",
            "Print the rows that are nearest to each query.",
            example='my-index "a cat sleeps"',
        ),
        Command(
            "dups",
            ".index:dups",
            "Print groups of near-duplicates, or the rows of another set that an index holds, too.",
            example="my-index",
            usual="threshold links against min-rarity check format show json",
        ),
        Command("info", ".index:info", "Print what an index holds.", example="my-index"),
    ),
    Command(
        "dups",
        ".dups:dups",
        "Find the rows of a test set that also occur in the training data.",
        example="train.txt --against test.txt",
    ),
    Command(
        "embed",
        ".embed:embed",
        "Encode sentences into vectors.",
        example="sentences.txt -o vectors.npy",
        usual="output model text-field id-field precision normalize split batch-size force json",
    ),
    Command(
        "similarity",
        ".embed:similarity",
        "Compare two sentences, or the rows of two files, by cosine.",
        example='"A cat sleeps." "A dog sleeps."',
    ),
    Command(
        "eval",
        ".evaluate:evaluate_command",
        "Score encoders on STS, transfer, retrieval and own tasks.",
        usual="task model compare paper data-dir subsets vectors plot output format",
    ),
    Command(
        "train",
        ".train:train",
        "Train a sentence encoder by a method of the papers.",
        help_tail="settings_in_force",
        usual="data backbone name from on test paper epochs learning-rate resume",
    ),
    Command(
        "examples", ".examples:examples", "Write the small files that the guides' commands read."
    ),
)
_MODELS = (
    group(
        "models",
        "List, show, import and remove models.",
        Command(
            "list",
            ".models:list_models",
            "List the models: shipped with promptcli, and saved by you.",
        ),
        Command(
            "import",
            ".models:import_model",
            "Import a model trained elsewhere.",
            example="FOLDER --name my-model",
        ),
        Command(
            "show",
            ".models:show",
            "Show a model: its recipe, where it came from, and its scores.",
            example="mini",
        ),
        Command("remove", ".models:remove", "Delete a model you saved.", example="my-model"),
        Command(
            "compare",
            ".models:compare",
            "Compare trained models over the seeds of their runs.",
            example="'simcse-*' 'promptbert-*' --over seeds",
        ),
    ),
    Command(
        "export",
        ".models:export",
        "Write an encoder as other programs load it.",
        example="mini -o my-export --to sentence-transformers",
    ),
    Command(
        "push",
        ".models:push",
        "Send a model to the Hugging Face hub.",
        example="my-model OWNER/NAME",
    ),
    Command(
        "pull",
        ".models:pull",
        "Save a model that was pushed to the hub.",
        example="OWNER/NAME --name my-model",
    ),
    Command(
        "templates",
        ".templates:templates",
        "List templates, or show what one becomes for a backbone.",
    ),
    Command("config", ".config:config", "Show, set and unset your own defaults."),
    Command("plugins", ".plugins:plugins", "List what plug-ins add, and check it."),
)
_RESEARCH = (
    Command(
        "search-templates",
        ".searching:search_templates",
        "Find the template that suits a backbone best.",
    ),
    Command(
        "ditto-search",
        ".searching:ditto_search",
        "Find the attention head that weighs tokens best.",
    ),
    Command(
        "search-layers", ".searching:search_layers", "Find the layer that a recipe reads best."
    ),
    Command(
        "optiprompt",
        ".train:train",
        "Learn a template's words as vectors: train optiprompt.",
        implied_argument="optiprompt",
    ),
    Command(
        "fit",
        ".fit:fit",
        "Fit TF-IDF weights or a transform into a model.",
        example="whitening --on sentences.txt --name my-model",
    ),
)
#: Panels of the help page, in the order of a user.
_PANELS = (
    ("Commands", _FIRST),
    ("Models and settings", _MODELS),
    ("Research", _RESEARCH),
)
#: Plug-ins add theirs, which ``--help`` lists after these.
COMMANDS = Table[Command | Commands](
    "commands",
    {str(row.name): row for _, rows in _PANELS for row in rows},
    must_be(Command, Commands),
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(promptcli.__version__)
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
]


def _root(version: _Version = False, *, runtime: Runtime) -> None:
    """Strong sentence encoders from pre-trained language models, by prompts."""


@functools.cache
def command() -> Program:
    """Return the program with its table of commands."""
    app = typer.Typer(
        name="promptcli",
        no_args_is_help=True,
        cls=Program,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="rich",
    )
    app.callback()(typer_command(_root))
    program = typer.main.get_command(app)
    assert isinstance(program, Program)
    options = [each for each in program.params if each.name in Runtime.__dataclass_fields__]
    _read_variables(options, "")
    for panel, rows in _PANELS:
        for row in rows:
            row.rich_help_panel = panel
            program.add_command(row)
    return program


#: Set by the shell when it asks for completions.
_COMPLETING = "_PROMPTCLI_COMPLETE"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    if arguments is None and _COMPLETING in os.environ:
        answer_shell(lambda: command().main(prog_name="promptcli"))
    words = sys.argv[1:] if arguments is None else list(arguments)
    contextvars.copy_context().run(_run, words, ends_process=arguments is None)


def _end_with(error: BaseException) -> int:
    """Print the line of an error and return its exit code; a fault of the program goes on, and in
    Python's development mode (``-X dev``) one of a plug-in, too.
    """
    fault = error
    if isinstance(error, PromptcliError) and error.__cause__ is not None:
        fault = error.__cause__
    is_line = isinstance(fault, PromptcliError)
    if sys.flags.dev_mode and not is_line and author_of(fault) is not None:
        raise error
    ending = _ending(error)
    if ending is None:
        raise error
    if isinstance(error, OSError):
        _drop(sys.stdout)
    code, message = ending
    try:
        if message:
            say(f"promptcli: {message}")
    except OSError:  # a full or closed stderr: the code says it
        _drop(sys.stderr)
    return code


def _run(words: list[str], ends_process: bool) -> NoReturn:
    set_up_streams()
    code = 0
    with interruptible(ends_process) as interrupts:
        try:
            try:
                with command().make_context("promptcli", words) as context:
                    command().invoke(context)
            except typer.Exit as ended:
                code = ended.exit_code
            sys.stdout.flush()  # a full disk or a closed pipe can still become an exit code
        except BaseException as error:
            if interrupts and not isinstance(error, KeyboardInterrupt):
                code = _end_with(interrupts[-1])  # a library turned it into its own error
            else:
                code = _end_with(error)
    if computing():  # for requests that a server has dropped: C++ code, which nothing else ends
        os._exit(code)
    sys.exit(code)


_UNCHANGED = "nothing was changed"


def _ending(error: Any) -> tuple[int, str] | None:
    """Return the exit code and the line of an error; None if it is a fault of the program."""
    if isinstance(error, PromptcliError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        code = 143 if isinstance(error, Terminated) else 130
        return code, f"interrupted; {left_by(error) or _UNCHANGED}"
    if isinstance(error, BrokenPipeError):
        return 1, ""
    if isinstance(error, OSError):
        return _ending_of_file_error(error)
    if is_out_of_memory(error):
        return 1, "out of memory; take a smaller --batch-size, --dtype bfloat16 or another --device"
    if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):
        again = "start again, with --resume if the command has it"
        return 1, f"the GPU stopped: {one_line(error, 120)}; {again}"
    if type(error).__name__ == "NoArgsIsHelpError":
        return 2, ""
    if hasattr(error, "format_message"):  # of Typer's parser
        return 2, usage_line(error)
    author = author_of(error)
    if author is not None and isinstance(error, UnicodeDecodeError):
        return 2, _not_decoded(error, author)
    if author is not None:
        return 1, f"a fault of {author}: {fault_of(error)}"
    return None


def _not_decoded(error: UnicodeDecodeError, author: str) -> str:
    wrong, encoding = error.object[error.start], error.encoding.upper()
    what = f"a file that {author} reads is not {encoding}: byte 0x{wrong:02x} at {error.start:,}"
    return f"{what}; save it as {encoding}"


_CANNOT_BE_OPENED = (errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _ending_of_file_error(error: OSError) -> tuple[int, str]:
    name = repr(str(error.filename))
    if error.errno in _CANNOT_BE_OPENED:
        return 2, f"{name} cannot be opened ({error.strerror}); give another path"
    if error.filename and error.errno in _NOT_ALLOWED:
        why = f"{name} may not be opened or written ({error.strerror})"
        return 2, f"{why}; {_elsewhere(error)}"
    if error.errno in _DISK_FULL:
        output = error.filename or "the output"
        return 1, f"disk full: {output} could not be written; {left_by(error) or _UNCHANGED}"
    return 1, f"{error}; {left_by(error) or _UNCHANGED}"


def _elsewhere(error: OSError) -> str:
    """Return what to give in the place of a file that may not be written."""
    homes = [program_folder(os.environ, kind) for kind in ("user_data_dir", "user_config_dir")]
    ours = any(Path(os.fsdecode(error.filename)).is_relative_to(home) for home in homes)
    return ANOTHER_HOME if ours else "give another path"


def _drop(stream: TextIO) -> None:
    """Send what is still buffered for a stream nowhere, else Python tries again at its end and
    complains.
    """
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's own stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
