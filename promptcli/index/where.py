"""Conditions on the columns of rows, such as ``year > 2020 and lang = "en"``, as masks of the
rows.

A condition is what SQL has behind ``where``. DuckDB parses and computes it. Only the parts of SQL
in the tables below reach it, on a database in memory that is closed to files, settings and
extensions.
"""

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from promptcli.data.column_forms import PLAIN_NUMBER
from promptcli.data.layouts import CELLS
from promptcli.errors import UsageError, did_you_mean, one_line
from promptcli.index.array_rows import RowMask
from promptcli.index.column_types import TYPES, cell_columns, column_of, matches, moment, type_of
from promptcli.notes import keyword

#: Most characters of a condition; most comparisons in it, since each reads a column of every row.
LONGEST = 10_000
MOST_COMPARISONS = 500
#: Most nested brackets, and most signs in a row: each takes space on the parser's stack.
_DEEPEST = 50
#: Most characters of a pattern: the time per character of a cell grows with it.
LONGEST_PATTERN = 200
#: Rows that are compared before ``before_each`` is called again, bytes of their cells, and the
#: seconds that they may take.
_BLOCK = 1 << 16
_BYTES = 1 << 24
_SECONDS = 60.0

Value = str | float | bool
Node = dict[str, Any]

#: The settings of a database that serves conditions alone.
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "memory_limit": "1GB",
    "threads": "1",
    "preserve_insertion_order": "true",
    "max_expression_depth": "250",
    "lock_configuration": "true",
}

#: A text in either kind of quotes, a name in backticks, a comment, a word, or another sign.
_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"]|"")*"|'(?:[^']|'')*')|(?P<name>`[^`]+`)|(?P<comment>--|/\*)
    |(?P<word>[^\W\d][\w.-]*)(?P<call>\s*\()?|(?P<sign>[^"'`])""",
    re.VERBOSE,
)
_BEGIN = "SELECT 1 FROM rows WHERE\n"

#: Classes of expressions -> the parts that hold further ones.
_PARTS = {
    "CONJUNCTION": ("children",),
    "COMPARISON": ("left", "right"),
    "BETWEEN": ("input", "lower", "upper"),
    "OPERATOR": ("children",),
    "FUNCTION": ("arguments",),
    "CAST": ("child",),
    "CONSTANT": (),
    "COLUMN_REF": (),
}
_OPERATORS = (
    "OPERATOR_NOT",
    "OPERATOR_IS_NULL",
    "OPERATOR_IS_NOT_NULL",
    "OPERATOR_COALESCE",
    "COMPARE_IN",
    "COMPARE_NOT_IN",
)
#: Functions of numbers and dates; of texts; and comparisons with a pattern.
_FUNCTIONS = (
    *("+", "-", "*", "/", "%", "abs", "round", "floor", "ceil"),
    *("year", "month", "day", "hour", "minute", "date_part"),
)
_TEXT_FUNCTIONS = (
    *("lower", "upper", "length", "trim", "ltrim", "rtrim", "||"),
    *("contains", "starts_with", "ends_with", "prefix", "suffix"),
)
#: Comparison with a pattern -> whether it is negative, and regards no case.
_LIKE = {
    "~~": (False, False),
    "!~~": (True, False),
    "~~*": (False, True),
    "!~~*": (True, True),
    "like_escape": (False, False),
    "not_like_escape": (True, False),
    "ilike_escape": (False, True),
    "not_ilike_escape": (True, True),
}
_REGULAR = ("regexp_matches", "regexp_full_match")
_CASTS = ("VARCHAR", "DOUBLE", "INTEGER", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP")

#: Kind of a constant -> type of the columns that are compared with it; dates are texts there.
_TYPE_OF_LITERAL = {"STRING": "texts", "BOOLEAN": "true and false"}


@functools.cache
def _database() -> Any:
    import duckdb

    return duckdb.connect(":memory:", config=_SETTINGS)


class Condition:
    """A condition on columns; a row with an empty cell fulfils no comparison of it, as in SQL.

    It is SQL: comparisons, ``in ("a", "b")``, ``between``, ``like "%part%"``, ``is null``, joined
    by ``and``, ``or``, ``not`` and parentheses, and the functions of the tables above. Texts are in
    either kind of quotes, names of several words in backticks. Dates are in quotes, e.g. ``day >=
    "2024-05"``: a month is the beginning of its first day, a day that of the day.

    ``before_each`` is called before every block of rows; what it raises ends a condition whose
    answer nobody waits for.
    """

    @staticmethod
    def go_on() -> None:
        """Do nothing before a block."""

    def __init__(self, text: str, before_each: Callable[[], None] = go_on) -> None:
        self._text = text
        self._before_each = before_each
        if len(text) > LONGEST:
            raise self.refusal(f"has {len(text):,} characters; give at most {LONGEST:,}")
        #: Column that is asked for -> the end of the message if no rows have it.
        self.asked = dict[str, str]()
        self._known = dict[str, None]()

    def rows(self, labels: pa.Table) -> RowMask:
        """Return which rows fulfil the condition.

        A column that they lack is empty, see ``check``.
        """
        names = [name for name in labels.column_names if name != CELLS]
        self._known |= dict.fromkeys([*names, *cell_columns(labels)])
        compiled = _Compiled(self, self._parse_condition(), labels)
        masks = [pa.array([], pa.bool_())]
        cursor = _database().cursor()
        try:
            for block in _blocks(compiled.table):
                self._before_each()
                masks.extend(self._compute(cursor, compiled.sql, block))
        finally:
            cursor.close()
        mask: RowMask = pc.fill_null(pa.chunked_array(masks), False).to_numpy(zero_copy_only=False)
        return mask

    def check(self) -> None:
        """Refuse a condition on a column that no rows had."""
        for name, hint in self.asked.items():
            if name not in self._known:
                known = ", ".join(self._known)
                near = did_you_mean(name, self._known)
                raise self.refusal(f"no column {name!r}{near}; {hint}columns: {known}")

    def _compute(self, cursor: Any, sql: str, block: pa.Table) -> list[Any]:
        import duckdb

        cursor.register("rows", block)
        limit = threading.Timer(_SECONDS, cursor.interrupt)
        limit.start()
        try:
            answer = cursor.sql(sql).to_arrow_table().column(0)
        except duckdb.InterruptException:
            raise self.refusal(f"takes more than {_SECONDS:g} seconds") from None
        except duckdb.Error as error:
            raise self.refusal(_without_place(error)) from None
        finally:
            limit.cancel()
            cursor.unregister("rows")
        if answer.type != pa.bool_():
            raise self.refusal('is no comparison; e.g. year > 2020 and lang = "en"')
        return list(answer.chunks)

    def _parse_condition(self) -> Node:
        """Return the expression as DuckDB's parser writes it in JSON."""
        inside = self._as_sql()
        try:
            frame, true = _parse(f"{_BEGIN}true")
            node, expression = _parse(f"{_BEGIN}{inside}")
        except ValueError as error:
            raise self.refusal(f"{error}; e.g. year > 2020 and lang = 'en'") from None
        except RecursionError:
            raise self.refusal("has too many parentheses") from None
        if node != frame or expression is None or true is None:
            raise self.refusal(
                f"is more than one condition; give what stands behind {keyword('where')}"
            )
        return expression

    def _as_sql(self) -> str:
        """Return the text with the quotes of SQL, and names of columns in them."""
        written = list[str]()
        end = depth = run = 0
        while token := _TOKEN.match(self._text, end):
            end = token.end()
            kind = token.lastgroup
            if token["comment"]:
                break
            depth += token[0][-1] in "([{"
            depth -= token[0] in ")]}"
            is_operand = token["text"] or token["name"] or token[0].isalnum()
            run = 0 if is_operand and token[0].lower() != "not" else run + (not token[0].isspace())
            if max(depth, run) > _DEEPEST:
                raise self.refusal("has too many parentheses")
            if token["text"]:
                quote = token[0][0]
                content = token[0][1:-1].replace(quote * 2, quote)
                written.append(_quote(content, "'"))
            elif token["name"]:
                written.append(_quote(token[0][1:-1], '"'))
            elif token["word"] in self._known and kind != "call":
                written.append(_quote(token["word"], '"'))
            else:
                written.append(token[0])
        if end < len(self._text) or not self._text.strip():
            raise self.refusal(f"cannot be read {self._place(end)}; e.g. year > 2020")
        return "".join(written)

    def _place(self, end: int) -> str:
        rest = self._text[end:]
        if rest.strip():
            return f"at {rest!r:.40}"
        return "at its end"

    def refusal(self, why: str) -> UsageError:
        """Return the error for a condition."""
        return UsageError(f"{keyword('where')} {self._text!r:.80}: {why:.300}")


def _column_name(name: str) -> str:
    """Return the name of a column as a condition has it."""
    return name if re.fullmatch(r"[^\W\d]\w*", name) else f"`{name}`"


def _quote(content: str, quote: str) -> str:
    return f"{quote}{content.replace(quote, quote * 2)}{quote}"


def _parse(sql: str) -> tuple[Node, Node | None]:
    """Return a statement without its condition, and the condition."""
    cursor = _database().cursor()
    try:
        [(text,)] = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    except Exception as error:  # of the parser, such as its greatest depth
        raise ValueError(f"cannot be read: {_without_place(error)}") from None
    finally:
        cursor.close()
    document = json.loads(text)
    if document["error"]:
        raise ValueError(f"cannot be read: {_without_place(document['error_message'])}")
    [*statements] = document["statements"]
    node = statements[0]["node"]
    condition = node.pop("where_clause", None)
    return {"statements": len(statements), **node}, condition


def _without_place(error: object) -> str:
    """Return a message of DuckDB without the statement that it quotes."""
    text = str(error).partition("\n")[0]
    return one_line(text.removeprefix("Parser Error: ").removeprefix("Binder Error: "), 200)


class _Compiled:
    """A condition for the rows of one table: the statement, and the columns that it reads."""

    def __init__(self, condition: Condition, expression: Node, labels: pa.Table) -> None:
        self._condition = condition
        self._labels = labels
        self._columns = dict[str, int]()  #: asked columns and their numbers
        self._kinds = dict[str, str | None]()
        self._arrays = dict[str, Any]()
        self._comparisons = 0
        try:
            checked = self._check(expression)
            document = {"error": False, "statements": [_statement(checked)]}
            self.sql = _to_sql(json.dumps(document))
        except RecursionError:
            raise condition.refusal("has too many parentheses") from None
        self._arrays["row"] = pa.nulls(len(labels), pa.bool_())  # a condition may ask for none
        self.table = pa.table(self._arrays)

    def refusal(self, why: str) -> UsageError:
        return self._condition.refusal(why)

    def _check(self, node: Node, *, as_text: bool = False) -> Node:
        """Return an expression with the columns of the table; refuse what conditions have not."""
        kind = node["class"]
        name = node.get("function_name", node["type"])
        allowed = kind in _PARTS
        if kind == "OPERATOR":
            allowed = node["type"] in _OPERATORS
        if kind == "FUNCTION":
            allowed = name in (*_FUNCTIONS, *_TEXT_FUNCTIONS, *_LIKE, *_REGULAR)
        if kind == "CAST":
            name = str(node["type_expr"].get("type_name", "?")).upper()
            allowed = name in _CASTS
        if not allowed:
            raise self.refusal(f"{name} is not allowed; give comparisons of columns")
        if kind == "COLUMN_REF":
            return self._column(node, as_text=as_text)
        if kind in ("COMPARISON", "BETWEEN") or node["type"] in ("COMPARE_IN", "COMPARE_NOT_IN"):
            return self._comparison(node)
        if kind == "FUNCTION" and (name in _LIKE or name in _REGULAR):
            return self._pattern_match(node, name)
        if kind == "FUNCTION":
            as_text = name in _TEXT_FUNCTIONS
        if kind == "OPERATOR":
            self._count(node["type"].startswith("OPERATOR_IS"))
        return self._with_parts(node, as_text=as_text)

    def _with_parts(self, node: Node, *, as_text: bool = False) -> Node:
        changed = dict(node)
        for part in _PARTS[node["class"]]:
            inner = node[part]
            if part == "arguments":
                changed[part] = [
                    {**each, "expression": self._check(each["expression"], as_text=as_text)}
                    for each in inner
                ]
            elif isinstance(inner, list):
                changed[part] = [self._check(each, as_text=as_text) for each in inner]
            else:
                changed[part] = self._check(inner, as_text=as_text)
        return changed

    def _count(self, comparisons: int) -> None:
        self._comparisons += comparisons
        if self._comparisons > MOST_COMPARISONS:
            raise self.refusal(
                f"has more than {MOST_COMPARISONS} comparisons; give at most {MOST_COMPARISONS}"
            )

    def _name(self, node: Node) -> str:
        """Return the name of a column; it may have points."""
        return ".".join(node["column_names"])

    def _column(self, node: Node, *, as_text: bool) -> Node:
        """Return a column of the table: its cells as texts, or as values of their type."""
        name = self._name(node)
        self._condition.asked.setdefault(name, "")
        number = self._columns.setdefault(name, len(self._columns))
        if as_text:
            column = f"text_{number}"
            self._arrays.setdefault(column, column_of(self._labels, name))
        else:
            self._kind(name)
            column = f"value_{number}"
        return {**node, "column_names": [column]}

    def _kind(self, name: str) -> str | None:
        """Return the type of a column, whose values are put into the table; None: it is empty."""
        number = self._columns.setdefault(name, len(self._columns))
        if name not in self._kinds:
            cells = column_of(self._labels, name)
            kind = None
            values: Any = pa.nulls(len(cells), pa.float64())
            if cells.null_count < len(cells):
                kind, values = type_of(cells)
            if kind == "dates":
                values = values.cast(pa.timestamp("us"))
            self._kinds[name] = kind
            self._arrays[f"value_{number}"] = values
        return self._kinds[name]

    def _comparison(self, node: Node) -> Node:
        """Return a comparison whose values are of one type."""
        sides = _sides(node)
        self._count(max(len(sides) - 1, 1))
        columns = [side for side in sides if side["class"] == "COLUMN_REF"]
        kinds = {self._name(column): self._kind(self._name(column)) for column in columns}
        for column in columns[1:] if sides[0] in columns else []:
            unquoted = _as_meant(self._name(sides[0]), node, self._name(column))
            self._condition.asked.setdefault(
                self._name(column), f"put dates and texts in quotes, e.g. {unquoted}; "
            )
        checked = self._with_parts(node)
        if None in kinds.values():
            return _null()
        if len(set(kinds.values())) > 1:
            types = " and ".join(f"{name!r} holds {kind}" for name, kind in kinds.items())
            raise self.refusal(f"column {types}; compare columns of one type")
        if not columns:
            return checked
        name, kind = next(iter(kinds.items()))
        assert kind is not None
        for side, changed in zip(sides, _sides(checked), strict=True):
            if side["class"] == "CONSTANT":
                self._fit(name, kind, changed)
            elif kind == "dates" and side["class"] == "FUNCTION" and _is_constant(side):
                raise self.refusal('put dates and texts in quotes, e.g. day > "2024-01-01"')
        return checked

    def _fit(self, name: str, kind: str, constant: Node) -> None:
        """Refuse a constant that a column is not compared with; write a date in full."""
        literal = constant["literal"]
        given = _TYPE_OF_LITERAL.get(literal["kind"], "numbers")
        if kind == "dates" and given == "texts":
            value = moment(literal["text"])
            if value is not None:
                text = str(value.cast(pa.timestamp("us")))
                constant["literal"] = {**literal, "text": text}
                return
        elif kind == given and literal["kind"] != "NULL_LITERAL":
            return
        cells = column_of(self._labels, name)
        other = cells.filter(pc.invert(matches(cells, f"^{PLAIN_NUMBER}$")))
        example = (other if len(other) else cells.drop_null())[0].as_py()
        hint = ""
        if given == "numbers" and kind == "texts" and len(other) < len(cells) - cells.null_count:
            hint = f", or its numbers alone by try_cast({_column_name(name)} as double)"
        raise self.refusal(
            f"column {name!r} holds {kind}, e.g. {example!r:.40}; compare it with"
            f" {TYPES[kind].wanted}{hint}"
        )

    def _pattern_match(self, node: Node, name: str) -> Node:
        """Return a comparison with a pattern by RE2, whose time does not explode."""
        self._count(1)
        first, *others = [each["expression"] for each in node["arguments"]]
        literals = [each.get("literal", {}).get("text") for each in others]
        if any(each["class"] != "CONSTANT" for each in others):
            raise self.refusal('a pattern is a text in quotes, e.g. like "%part%"')
        if max(map(len, literals)) > LONGEST_PATTERN:
            longest = max(map(len, literals))
            raise self.refusal(
                f"a pattern has {longest:,} characters; give at most {LONGEST_PATTERN}"
            )
        checked = self._check(first, as_text=True)
        if name in _REGULAR:
            return _call(node, name, [checked, *others])
        negative, any_case = _LIKE[name]
        pattern = _regular(
            literals[0], literals[1] if len(literals) > 1 else "\\", any_case=any_case
        )
        literal = {**others[0]["literal"], "text": pattern}
        called = _call(node, "regexp_full_match", [checked, {**others[0], "literal": literal}])
        if not negative:
            return called
        return {**_true(), "class": "OPERATOR", "type": "OPERATOR_NOT", "children": [called]}


def _sides(node: Node) -> list[Node]:
    """Return the values that are compared."""
    sides = list[Node]()
    for part in _PARTS[node["class"]]:
        inner = node[part]
        sides += inner if isinstance(inner, list) else [inner]
    return sides


def _as_meant(name: str, node: Node, word: str) -> str:
    """Return a comparison with a word in quotes, as the user may have meant it."""
    signs = {"COMPARE_EQUAL": "=", "COMPARE_NOTEQUAL": "!=", "COMPARE_LESSTHAN": "<"}
    return f'{name} {signs.get(node["type"], ">")} "{word}"'


def _is_constant(node: Node) -> bool:
    """Return whether an expression has no column."""
    if node["class"] == "FUNCTION":
        return all(_is_constant(each["expression"]) for each in node["arguments"])
    return bool(node["class"] == "CONSTANT")


def _call(node: Node, name: str, arguments: Sequence[Node]) -> Node:
    """Return the call of another function in the place of one."""
    return {
        **node,
        "function_name": name,
        "qualified_name": {"path": [name]},
        "is_operator": False,
        "arguments": [{"name": "", "expression": each} for each in arguments],
    }


def _regular(pattern: str, escape: str, *, any_case: bool) -> str:
    """Return a pattern of ``like`` as a regular expression."""
    parts = ["(?si)" if any_case else "(?s)"]
    signs = iter(pattern)
    for sign in signs:
        if sign == escape:
            sign = next(signs, sign)
        elif sign in "%_":
            parts.append(".*" if sign == "%" else ".")
            continue
        parts.append(sign if sign.isalnum() else rf"\x{{{ord(sign):x}}}")
    return "".join(parts)


@functools.cache
def _frame() -> str:
    """Return the statement around a condition, as JSON."""
    cursor = _database().cursor()
    sql = "SELECT (true) FROM rows"
    [(text,)] = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    cursor.close()
    return str(text)


def _statement(expression: Node) -> Node:
    [statement] = json.loads(_frame())["statements"]
    statement["node"]["select_list"] = [expression]
    return dict(statement)


def _true() -> Node:
    [statement] = json.loads(_frame())["statements"]
    return dict(statement["node"]["select_list"][0])


def _null() -> Node:
    """Return the answer to a comparison with an empty column."""
    _, expression = _parse(f"{_BEGIN}null::BOOLEAN")
    assert expression is not None
    return expression


def _to_sql(document: str) -> str:
    """Return a statement in JSON as SQL."""
    import duckdb

    cursor = _database().cursor()
    try:
        [(sql,)] = cursor.execute("SELECT json_deserialize_sql(?::JSON)", [document]).fetchall()
    except duckdb.Error:  # its own limit of nesting
        raise RecursionError from None
    finally:
        cursor.close()
    return str(sql)


def _blocks(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table in parts that take little time each."""
    rows = max(min(_BLOCK, _BYTES * len(table) // max(table.nbytes, 1)), 1)
    for start in range(0, len(table), rows):
        yield table.slice(start, rows)


def shown_cells(cells: Iterable[tuple[str, str]], kinds: Mapping[str, str]) -> dict[str, Value]:
    """Return the cells of a row as values of the types of their columns; dates are texts."""
    shown: dict[str, Value] = {}
    for name, cell in cells:
        kind = kinds.get(name)
        if kind == "numbers":
            shown[name] = int(cell) if cell.lstrip("-").isdecimal() else float(cell)
        elif kind == "true and false":
            shown[name] = cell.lower() == "true"
        else:
            shown[name] = cell
    return shown
