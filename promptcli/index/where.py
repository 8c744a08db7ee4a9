"""Conditions on the columns of rows, such as ``year > 2020 and lang = "en"``, as masks of the
rows.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from promptcli.data.dialect import CELLS
from promptcli.errors import UsageError, did_you_mean
from promptcli.index.column_types import (
    NUMBER,
    TYPES,
    column_of,
    columns_of,
    matches,
    moment,
    typed,
)
from promptcli.index.rows import Mask

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"]|"")*"|'(?:[^']|'')*')
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.-]))
    |(?P<name>`[^`]+`)
    |(?P<flag>(?i:true|false)(?![\w.-]))
    |(?P<word>[^\W\d][\w.-]*)
    |(?P<comparison><=|>=|<>|!=|==|[=<>])
    |(?P<sign>[(),]))\s*""",
    re.VERBOSE,
)
_COMPARISONS = {
    **{"=": pc.equal, "==": pc.equal, "!=": pc.not_equal, "<>": pc.not_equal},
    **{"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal},
}
#: Most characters of a condition; most comparisons in it, since each reads a column of every row.
LONGEST = 10_000
MOST_COMPARISONS = 500
#: Most characters of a pattern of ``like``: the time per character of a cell grows with it.
LONGEST_PATTERN = 200
#: Bytes of cells that are compared with a pattern before ``before_each`` is called again.
_BLOCK = 1 << 18

Value = str | float | bool
#: Type of a value in a condition -> type of the columns that are compared with it; dates are texts
#: there.
_TYPE_OF_VALUE = {str: "texts", float: "numbers", bool: "true and false"}


class Condition:
    """A condition on columns; a row with an empty cell fulfils no comparison of it, as in SQL.

    Comparisons are ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in ("a", "b")``, ``like
    "%part%"`` and ``is null``, joined by ``and``, ``or``, ``not`` and parentheses. Names of several
    words are in backticks. Dates are in quotes, e.g. ``day >= "2024-05"``: a month is the beginning
    of its first day, a day that of the day.

    ``before_each`` is called before every comparison; what it raises ends one whose answer nobody
    waits for.
    """

    @staticmethod
    def go_on() -> None:
        """Do nothing before a comparison."""

    def __init__(self, text: str, before_each: Callable[[], None] = go_on) -> None:
        self._text = text
        self._before_each = before_each
        if len(text) > LONGEST:
            raise self._refusal(f"has {len(text):,} characters; give at most {LONGEST:,}")
        # names of columns
        self._asked = dict[str, None]()
        self._known = dict[str, None]()

    def rows(self, labels: pa.Table) -> Mask:
        """Return which rows fulfil the condition.

        A column that they lack is empty, see ``check``.
        """
        self._labels = labels
        self._known |= dict.fromkeys(
            [*(name for name in labels.column_names if name != CELLS), *columns_of(labels)]
        )
        self._tokens = list[re.Match[str]]()
        self._next = 0
        end = 0
        self._comparisons = 0
        while token := _TOKEN.match(self._text, end):
            self._tokens.append(token)
            end = token.end()
        try:
            rows = self._either()
        except RecursionError:
            raise self._refusal("has too many parentheses") from None
        if self._next < len(self._tokens) or end < len(self._text):
            raise self._unreadable()
        mask: Mask = pc.fill_null(rows, False).to_numpy(zero_copy_only=False)
        return mask

    def check(self) -> None:
        """Refuse a condition on a column that no rows had."""
        for name in self._asked.keys() - self._known.keys():
            known = ", ".join(self._known)
            raise self._refusal(
                f"no column {name!r}{did_you_mean(name, self._known)}; columns: {known}"
            )

    # Each of these methods reads a part of the text; it returns for each row whether it fulfils it,
    # null if that depends on an empty cell

    def _either(self) -> Any:
        return self._joined(
            "or", pc.or_kleene, lambda: self._joined("and", pc.and_kleene, self._single)
        )

    def _joined(self, word: str, join: Callable[[Any, Any], Any], read: Callable[[], Any]) -> Any:
        rows = read()
        while self._take(word):
            rows = join(rows, read())
        return rows

    def _single(self) -> Any:
        if self._take("not"):
            return pc.invert(self._single())
        if self._take("("):
            rows = self._either()
            self._expect(")")
            return rows
        name = self._read("name", "word").strip("`")
        self._asked[name] = None
        self._count()
        cells = column_of(self._labels, name)
        if self._take("is"):
            negative = self._take("not")
            self._expect("null")
            if negative:
                return pc.is_valid(cells)
            return pc.is_null(cells)
        negative = self._take("not")
        if self._take("like"):
            rows = self._like(cells, _unquoted(self._read("text")))
        elif self._take("in"):
            self._expect("(")
            rows = self._joined(",", pc.or_kleene, lambda: self._is_one(name, cells))
            self._expect(")")
        elif negative:
            raise self._unreadable()
        else:
            return self._compared(name, cells, _COMPARISONS[self._read("comparison")])
        if negative:
            return pc.invert(rows)
        return rows

    def _count(self) -> None:
        self._comparisons += 1
        if self._comparisons > MOST_COMPARISONS:
            raise self._refusal(
                f"has more than {MOST_COMPARISONS} comparisons; give at most {MOST_COMPARISONS}"
            )
        self._before_each()

    def _is_one(self, name: str, cells: Any) -> Any:
        self._count()
        return self._compared(name, cells, pc.equal)

    def _like(self, cells: Any, pattern: str) -> Any:
        if len(pattern) > LONGEST_PATTERN:
            raise self._refusal(
                f"a pattern has {len(pattern):,} characters; give at most {LONGEST_PATTERN}"
            )
        blocks = [pa.array([], pa.bool_())]
        block = max(_BLOCK * len(cells) // max(cells.nbytes, 1), 1)
        for start in range(0, len(cells), block):
            self._before_each()
            rows = pc.match_like(cells.slice(start, block), pattern)
            blocks += rows.chunks if isinstance(rows, pa.ChunkedArray) else [rows]
        return pa.chunked_array(blocks)

    def _compared(self, name: str, cells: Any, compare: Callable[[Any, Any], Any]) -> Any:
        token = self._read("text", "number", "flag")
        value: Any = token.lower() == "true"
        if not token[0].isalpha():
            if token[0] in "\"'":
                value = _unquoted(token)
            else:
                value = float(token)
        if cells.null_count == len(cells):  # of no type
            return pa.nulls(len(cells), pa.bool_())
        kind, values = typed(cells)
        if kind == "dates":
            if isinstance(value, str):
                value = moment(value)
            else:
                value = None
        elif kind != _TYPE_OF_VALUE[type(value)]:
            value = None
        if value is not None:
            return compare(values, value)
        other = cells.filter(pc.invert(matches(cells, NUMBER)))  # why it does not hold numbers
        example = (other if len(other) else cells.drop_null())[0].as_py()
        raise self._refusal(
            f"column {name!r} holds {kind}, e.g. {example!r:.40}; compare it with"
            f" {TYPES[kind].wanted}"
        )

    def _take(self, word: str) -> bool:
        token = None
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
        taken = (
            token is not None
            and token.lastgroup in ("word", "sign")
            and token[0].strip().lower() == word
        )
        self._next += taken
        return taken

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._unreadable()

    def _read(self, *kinds: str) -> str:
        if self._next == len(self._tokens) or self._tokens[self._next].lastgroup not in kinds:
            raise self._unreadable()
        self._next += 1
        return self._tokens[self._next - 1][0].strip()

    def _unreadable(self) -> UsageError:
        rest = self._text[self._tokens[self._next - 1].end() if self._next else 0 :]
        bare = re.match(r"[^\s,()]+", rest)
        compared = self._next > 0 and self._tokens[self._next - 1].lastgroup == "comparison"
        if bare is not None and compared:
            begin = self._text[: len(self._text) - len(rest)].strip()
            return self._refusal(
                f'put dates and texts in quotes, e.g. {begin[-40:]} "{bare[0]:.40}"'
            )
        if rest:
            place = f"at {rest!r:.40}"
        else:
            place = "at its end"
        return self._refusal(f'cannot be read {place}; e.g. year > 2020 and lang = "en"')

    def _refusal(self, why: str) -> UsageError:
        return UsageError(f"`where` {self._text!r:.80}: {why:.300}")


def _unquoted(token: str) -> str:
    return token[1:-1].replace(token[0] * 2, token[0])


def shown_cells(cells: Iterable[tuple[str, str]]) -> dict[str, Value]:
    """Return the cells of a row; numbers, and true and false, have their own types."""
    shown: dict[str, Value] = {}
    for name, cell in cells:
        if re.fullmatch(NUMBER, cell):
            shown[name] = int(cell) if cell.lstrip("-").isdecimal() else float(cell)
        else:
            shown[name] = cell == "true" if cell in ("true", "false") else cell
    return shown
