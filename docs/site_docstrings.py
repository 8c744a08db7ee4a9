"""What the site's pages of the library show beside docstrings: the help of settings, comments on
fields, and examples.
"""

import ast
import re
from typing import Any

import griffe

#: As in ``width: int  #: numbers of a vector``, or on separate lines above the field.
COMMENT = re.compile(r"#: ?(.*)")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class OwnDocstrings(griffe.Extension):
    """Give attributes the help and comments of the source as docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Read ``Example:`` as the section that Google's style calls ``Examples:``."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        """Take the help of ``setting(default, help)``, else the comment of a field.

        Attributes that a constructor sets are not fields.
        """
        target = getattr(node, "target", None)
        if attr.docstring is None and isinstance(target, ast.Name):
            text = help_of(attr) or comment_of(attr)
            if text:
                attr.docstring = griffe.Docstring(text, parent=attr)


def help_of(attr: griffe.Attribute) -> str:
    """Return the help of a field that ``setting(default, help)`` makes, or ""."""
    value = attr.value
    if not isinstance(value, griffe.ExprCall) or value.canonical_name != "setting":
        return ""
    texts = [word for word in value.arguments[1:2] if isinstance(word, str)]
    return str(ast.literal_eval(texts[0])) if texts else ""


def comment_of(attr: griffe.Attribute) -> str:
    """Return the comment ``#:`` behind a field, or else the lines of it above the field; or ""."""
    if attr.lineno is None or attr.endlineno is None:
        return ""
    lines = attr.module.lines_collection[attr.module.filepath]
    behind = COMMENT.search(lines[attr.endlineno - 1])
    if behind:
        return behind[1]
    above: list[str] = []
    for line in reversed(lines[: attr.lineno - 1]):
        found = COMMENT.fullmatch(line.strip())
        if not found:
            break
        above.insert(0, found[1])
    return " ".join(above)
