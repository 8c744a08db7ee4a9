"""The message about a command line that the parser refuses: what was given, what is allowed,
what to type.
"""

from collections.abc import Sequence
from typing import Any

from promptcli.errors import did_you_mean, one_line

#: Type of an option -> what it takes, in words.
_TAKES: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}


def spelling(parameter: Any) -> str:
    """Return how a parameter is typed, e.g. ``FILE`` or ``--on``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def source(ctx: Any, name: str) -> str:
    """Return where a parameter's value comes from: COMMANDLINE, ENVIRONMENT, or another."""
    return str(ctx.get_parameter_source(name).name)


def usage_line(error: Any) -> str:
    """Return the line of an error of Typer's parser."""
    command = "promptcli"
    if error.ctx:
        command = error.ctx.command_path
    if hasattr(error, "possibilities"):
        error.possibilities = _near(error.option_name, error.possibilities or ())
    message = (
        _wrong_value(error)
        or _missing(error)
        or _setting(error)
        or one_line(error.format_message())
    )
    if not getattr(error, "option_name", "a").lstrip("-")[:1].isalpha():
        example = f'{command} -- "-5 degrees"'
        message = f'{message.rstrip(".")}; a sentence that begins with "-" follows --: {example}'
    if message[:1].isalpha():
        message = f"{message[:1].lower()}{message[1:]}"
    return f"{message.rstrip('.')} (all options: {command} --help)"


def _setting(error: Any) -> str | None:
    """Return the message of a setting that is typed as an option; None: another error."""
    name = getattr(error, "option_name", None) or ""
    by_set = getattr(error.ctx and error.ctx.command, "by_set", ())
    field = name.lstrip("-").replace("-", "_")
    if not hasattr(error, "possibilities") or field not in by_set:
        return None
    return f"no such option: {name}; it is a setting: --set {name.lstrip('-')}=VALUE"


def _near(word: str, possible: Sequence[str]) -> list[str]:
    """Return the options that may be meant; short names are compared without their dashes."""
    name = word.lstrip("-")
    return [option for option in possible if did_you_mean(name, [option.lstrip("-")])]


def _wrong_value(error: Any) -> str | None:
    """Return the message of a value that is not of its option's type or range; None: another
    error.
    """
    validation = error.__cause__
    if not hasattr(validation, "errors"):
        return None
    parameter = error.param
    text = str(validation.errors()[0]["input"])
    if not _is_number(text):
        text = repr(text)
    where = ""
    if source(error.ctx, parameter.name) == "ENVIRONMENT":
        where = f", set by the environment, {parameter.envvar}"
    return f"{spelling(parameter)} is {one_line(text, 80)}{where}; give {_allowed(parameter)}"


def _allowed(parameter: Any) -> str:
    """Return in words what an option takes, e.g. ``a whole number from 1 to 65535``."""
    described = parameter.type_descriptor
    if described.choices:
        *others, last = described.choices
        return f"{', '.join(others)} or {last}"
    takes = _TAKES.get(described.annotation, "another value")
    least = described.parameter_info.min
    most = described.parameter_info.max
    if least is not None and most is not None:
        return f"{takes} from {least} to {most}"
    if least is not None:
        return f"{takes} of {least} or more"
    if most is not None:
        return f"{takes} of {most} or less"
    return takes


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _missing(error: Any) -> str | None:
    """Return the message of what was not given, with an example of the command; None: another
    error.
    """
    if not hasattr(error, "param_type") or error.param is None:
        return None
    message = f"missing {error.param.param_type_name} '{spelling(error.param)}'"
    example = getattr(error.ctx.command, "example", "")
    if example:
        message += f"; e.g. {error.ctx.command_path} {example}"
    return message
