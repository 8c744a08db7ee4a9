"""Text rules: what becomes of a sentence's characters before it goes into a template. A new one: one line here."""

from collections.abc import Callable

from promptcli.errors import unknown


def _prompteol(sentence: str) -> str:
    """Return the text with single quotes for double ones and with a full stop for a final question mark.

    PromptEOL's evaluation code (and all that follow it); the full stop that it appends is the recipe's ``period``.
    """
    quoted = sentence.replace('"', "'")
    return quoted[:-1] + "." if quoted.endswith("?") else quoted


TEXT_RULES: dict[str, Callable[[str], str]] = {"prompteol": _prompteol, "lower": str.lower}


def text_rule(name: str | None) -> Callable[[str], str]:
    """Return the rule of a recipe; without a name one that changes nothing.

    Raises:
        UsageError: No such rule.
    """
    if name is None:
        return str
    if name not in TEXT_RULES:
        raise unknown("text rule", name, TEXT_RULES)
    return TEXT_RULES[name]
