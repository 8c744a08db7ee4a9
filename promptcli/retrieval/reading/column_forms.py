"""Numbers and dates in the columns of a table, read by the file's own form: 1.250,50 and 31.12.2024
beside 1,250.50 and 12/31/2024.

A column has one form, that of all its cells. What its cells leave open, the other columns and the
separator of the file decide; the remaining doubts are reported.
"""

import calendar
import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product

#: Signs between thousands, and decimal ones: the styles of numbers.
_POINT_OR_COMMA = ".,"
_SPACES = " \u00a0\u202f"
_APOSTROPHES = "'’"  # noqa: RUF001
_CURRENCY = r"[$€£¥₹₺₽]|EUR|USD|GBP|CHF|JPY|CNY|INR|SEK|NOK|DKK|PLN|CZK|HUF|Fr\.|kr|zł|Kč"
_MINUS = ("-", "−")  # noqa: RUF001
#: A number with its sign and its unit, on either side.
_AMOUNT = re.compile(
    rf"(?P<sign>[-−+]?)\s?(?P<before>{_CURRENCY})?\s?(?P<inner>[-−]?)"  # noqa: RUF001
    rf"(?P<digits>\d[\d.,{_APOSTROPHES}{_SPACES}]*?)(?P<exponent>[eE][+-]?\d{{1,2}})?"
    rf"\s?(?P<after>{_CURRENCY}|%)?"
)
#: What Python and our own conditions read without help. A number that begins with 0, or has more
#: digits than a float64, is a code.
PLAIN_NUMBER = r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?([eE][+-]?\d{1,2})?"
_PLAIN_NUMBER = re.compile(PLAIN_NUMBER)
#: A date that conditions read without help.
ISO_DATE = r"\d{4}-\d\d-\d\d([T ]\d\d(:[\d:.,]+)?(Z|[+-]\d\d:?\d\d)?)?"
_ISO_DATE = re.compile(ISO_DATE)

_TIME = (
    r"(?P<hour>\d{1,2}):(?P<rest>\d\d(?::\d\d(?:[.,]\d+)?)?)\s?(?P<half>[AaPp]\.?[Mm]\.?)?"
    r"\s?(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_DATE = re.compile(
    rf"(?P<one>\d{{1,4}})(?P<mark>[-./])(?P<two>\d{{1,2}})(?P=mark)(?P<three>\d{{1,4}})"
    rf"(?:(?:T|,? +){_TIME})?"
)
_NAMED_DATE = re.compile(
    rf"(?:(?P<day>\d{{1,2}})(?:\.|-| |\. )(?P<month>[^\W\d_]+)\.?(?:-|,? )(?P<year>\d{{4}})"
    rf"|(?P<month2>[^\W\d_]+)\.? (?P<day2>\d{{1,2}}),? (?P<year2>\d{{4}}))(?:(?:T|,? +){_TIME})?"
)
_MONTHS = (
    "january januar jan",
    "february februar feb",
    "march märz mar mrz",
    "april apr",
    "may mai",
    "june juni jun",
    "july juli jul",
    "august aug",
    "september sep sept",
    "october oktober oct okt",
    "november nov",
    "december dezember dec dez",
)
_MONTH_OF = {name: month for month, names in enumerate(_MONTHS, 1) for name in names.split()}
#: Years of two digits below it are of this century.
_PIVOT = 70

#: Converts a cell to the plain form, ``-1250.5`` or ``2024-12-31 14:30``.
Convert = Callable[[str], str]


@dataclass(frozen=True)
class _Style:
    """How numbers are written."""

    group: str  #: signs between thousands; empty: none
    decimal: str

    @property
    def form(self) -> re.Pattern[str]:
        """What a number without its unit looks like."""
        whole = r"(0|[1-9]\d{0,14})"
        if self.group:
            whole = rf"({whole}|[1-9]\d{{0,2}}(?P<g>[{self.group}])\d{{3}}((?P=g)\d{{3}}){{0,3}})"
        return re.compile(rf"{whole}([{self.decimal}]\d{{1,15}})?")

    def plain(self, digits: str) -> str:
        """Return the digits of a number with a decimal point alone."""
        whole = re.sub(rf"[{self.group}]", "", digits) if self.group else digits
        return re.sub(rf"[{self.decimal}]", ".", whole)


_STYLES = [
    _Style(group, decimal)
    for decimal, group in product(".,", ("", ".", ",", _SPACES, _APOSTROPHES))
    if group != decimal
]
_FORMS = [style.form for style in _STYLES]
#: Styles with a decimal point, and a number that can have no other.
_POINTS = frozenset(number for number, style in enumerate(_STYLES) if style.decimal == ".")
_CLEAR_DECIMAL = re.compile(r"-?(0|[1-9]\d{0,14})\.(\d\d?|\d{4,15})")
#: A number that has a decimal sign, of either kind.
_EITHER = _Style("", _POINT_OR_COMMA)


_YEAR_FIRST = frozenset(("Ymd",))


@dataclass
class _CellCounts:
    """What the cells of a column have shown so far."""

    filled: int = 0
    typed: bool = False  #: whether the file itself has numbers or the like in it
    #: of numbers: the styles that all cells have; None: one is not a number
    styles: frozenset[int] | None = frozenset(range(len(_STYLES)))
    units: set[str] = field(default_factory=set)
    either: bool = True  #: whether all cells have a decimal sign of either kind or none
    plain: bool = True  #: whether no cell has to be converted
    doubtful: str = ""  #: a cell with a point or a comma
    short: bool = False  #: whether a whole number of up to three digits has no sign
    long: bool = False  #: the same of more digits
    #: of dates: the orders that all cells have; None: one is not a date
    orders: frozenset[str] | None = frozenset(("Ymd", "dmY", "mdY"))
    marks: set[str] = field(default_factory=set)
    iso: bool = True  #: whether no date has to be converted
    halves: bool = False  #: whether a time is of the morning or the afternoon
    loose: bool = False  #: whether a cell may be a version as well, such as 1.2.24
    shown: bool = False  #: whether another cell shows that these are dates
    date: str = ""  #: a cell

    @property
    def is_text(self) -> bool:
        return self.styles is None and self.orders is None

    def see(self, cell: str) -> None:
        """Take a cell that is not empty."""
        self.filled += 1
        if self.styles is not None:
            self._see_number(cell)
        if self.orders is not None:
            self._see_date(cell)

    def _see_number(self, cell: str) -> None:
        if cell.isdecimal() and cell[0] != "0" and len(cell) <= 15:  # as most cells are
            self.units.add("")
            self.long = self.long or len(cell) > 3
            self.short = self.short or len(cell) <= 3
            return
        if _CLEAR_DECIMAL.fullmatch(cell) and self.styles and self.styles <= _POINTS:
            self.units.add("")
            return
        amount = _AMOUNT.fullmatch(cell)
        if amount is None or (amount["sign"] and amount["inner"]):
            self.styles = None
            return
        digits = amount["digits"]
        self.units.add((amount["before"] or "") + (amount["after"] or ""))
        self.plain = self.plain and _PLAIN_NUMBER.fullmatch(cell) is not None
        assert self.styles is not None
        if digits.isdecimal():
            if (digits[0] == "0" and digits != "0") or len(digits) > 15:
                self.styles = None
            elif len(digits) > 3:
                self.long = True
            else:
                self.short = True
            return
        self.styles = frozenset(
            number for number in self.styles if _FORMS[number].fullmatch(digits)
        )
        self.either = self.either and _EITHER.form.fullmatch(digits) is not None
        if amount["sign"] == "+" and re.search(rf"[{_SPACES}]", digits):  # of a telephone
            self.styles = None
        elif not self.styles and not self.either:
            self.styles = None
        elif "." in digits or "," in digits:
            self.doubtful = self.doubtful or cell

    def _see_date(self, cell: str) -> None:
        if self.orders == _YEAR_FIRST and self.marks == {"-True"} and _is_iso_day(cell):
            return
        orders = dict[str, str]()
        date = _DATE.fullmatch(cell)
        if date is not None:
            self.marks.add(date["mark"] + str(len(date["one"]) == 4))
            orders = {order: "" for order in _ORDERS if _iso_day(date, order)}
        elif (date := _NAMED_DATE.fullmatch(cell)) is not None:
            self.marks.add("name")
            orders = {order: "" for order in _ORDERS if _iso_day(date, order)}
        assert self.orders is not None
        self.orders = self.orders & orders.keys()
        if date is None or not self.orders or len(self.marks) > 1 or _iso_time(date) is None:
            self.orders = None
            return
        if _may_be_version(date):
            self.loose = True
        else:
            self.shown = True
        self.iso = self.iso and _ISO_DATE.fullmatch(cell) is not None
        self.halves = self.halves or date["half"] is not None
        self.date = self.date or cell

    @property
    def decimals(self) -> set[str]:
        """The decimal signs that the cells allow."""
        return {_STYLES[number].decimal for number in self.styles or ()}

    @property
    def is_number(self) -> bool:
        return bool(
            self.filled and self.styles is not None and len(self.units) == 1 and not self.is_mixed
        )

    @property
    def is_mixed(self) -> bool:
        """Whether some cells have a decimal point, and others a decimal comma."""
        return self.styles is not None and not self.styles

    @property
    def is_date(self) -> bool:
        return bool(self.filled and self.orders and (self.shown or not self.loose))

    @property
    def shown_decimal(self) -> str:
        """The decimal sign that the cells themselves show; empty if they show none."""
        [*decimals] = self.decimals
        if self.is_number and self.doubtful and len(decimals) == 1:
            return decimals[0]
        return ""


#: Order of a date -> the groups of its year, month and day.
_ORDERS = {
    "Ymd": ("one", "two", "three"),
    "dmY": ("three", "two", "one"),
    "mdY": ("three", "one", "two"),
}


def _may_be_version(date: re.Match[str]) -> bool:
    """Return whether a date has points, a short year and a day or month of one digit, and begins
    as most versions do.
    """
    if date.re is _NAMED_DATE or date["mark"] != ".":
        return False
    one, two, three = date["one"], date["two"], date["three"]
    return len(three) == 2 and len(one + two) < 4 and int(one) <= 12


def _is_iso_day(cell: str) -> bool:
    """Return whether a cell is a day such as 2024-12-31."""
    if len(cell) != 10 or cell[4] != "-" or cell[7] != "-":
        return False
    try:
        datetime.date.fromisoformat(cell)
    except ValueError:
        return False
    return True


def _iso_day(date: re.Match[str], order: str) -> str | None:
    """Return a day as 2024-12-31; None if it is not a date in that order."""
    if date.re is _NAMED_DATE:
        year = date["year"] or date["year2"]
        named = _MONTH_OF.get((date["month"] or date["month2"]).lower())
        day = date["day"] or date["day2"]
        month = str(named or "")
        if order != "dmY":
            return None
    else:
        year, month, day = (date[group] for group in _ORDERS[order])
        if order == "mdY" and date["mark"] == ".":
            return None
        if len(year) not in (2, 4) or max(len(month), len(day)) > 2:
            return None
        if len(year) == 2:
            if order == "Ymd":
                return None
            year = f"{20 if int(year) < _PIVOT else 19}{year}"
    try:
        return datetime.date(int(year), int(month), int(day)).isoformat()
    except ValueError:  # such as the 31st of February
        return None


def _iso_time(date: re.Match[str]) -> str | None:
    """Return the time behind a day with a space before it; empty without one, None if it is
    wrong.
    """
    if date["hour"] is None:
        return ""
    hour = int(date["hour"])
    if date["half"] is not None:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (date["half"][0] in "Pp")
    minutes = date["rest"].replace(",", ".")
    if hour > 23 or any(float(part) >= 60 for part in minutes.split(":")):
        return None
    return f" {hour:02}:{minutes}{date['zone'] or ''}"


class ColumnForms:
    """The forms of the columns of one file; see every cell, then ``decide``.

    ``separator`` is that of its columns, None if it has none.
    """

    def __init__(self, separator: str | None = None) -> None:
        self._separator = separator
        self._columns = dict[str, _CellCounts]()
        self._done = set[str]()  #: columns whose further cells change nothing
        #: Column -> what is not certain about how it is read.
        self.doubts = dict[str, str]()

    def see(self, cells: Mapping[str, object]) -> None:
        """Take the cells of a row."""
        for name, cell in cells.items():
            if name in self._done or cell is None:
                continue
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = _CellCounts()
            if not isinstance(cell, str):
                column.typed = True
                self._done.add(name)
                continue
            text = cell.strip()
            if text and text != "nan":
                column.see(text)
                if column.is_text:
                    self._done.add(name)

    def decide(self) -> dict[str, Convert]:
        """Return the columns whose cells are converted, and how; fill ``doubts``."""
        self.doubts = {}
        converts = dict[str, Convert]()
        for name, column in self._columns.items():
            if column.typed or not column.filled:
                continue
            if column.is_date:
                order = self._order(name, column)
                if not column.iso:
                    converts[name] = _date_converter(order)
            elif column.is_number or (column.is_mixed and column.either):
                style = self._style(name, column)
                if not column.plain or (column.doubtful and style.decimal != "."):
                    converts[name] = _number_converter(style)
        return converts

    def scores(self, texts: Iterable[str]) -> Convert:
        """Return how the scores among the texts of a further column are read; fill ``doubts``."""
        self.doubts = {}
        column = _CellCounts()
        for text in texts:
            if _AMOUNT.fullmatch(text.strip()):
                column.see(text.strip())
        if column.is_number or (column.is_mixed and column.either):
            return _number_converter(self._style("score", column))
        return str.strip

    def _style(self, name: str, column: _CellCounts) -> _Style:
        """Return how the numbers of a column are written."""
        if column.is_mixed:
            self._doubt_number(name, column, _EITHER, "some cells have a point, others a comma")
            return _EITHER
        assert column.styles is not None
        styles = [_STYLES[number] for number in sorted(column.styles)]
        decimals = {style.decimal for style in styles}
        if len(decimals) == 1 or not column.doubtful:
            return styles[-1]  # with a sign between thousands, if there is one
        known = {other.shown_decimal for other in self._columns.values() if not other.typed}
        known.discard("")
        certain = len(known) == 1
        sign = "," if "," in column.doubtful else "."
        if certain:
            [decimal] = known
        elif self._separator == ";":
            decimal = ","
        elif sign == ".":
            decimal = "."
        elif column.short and not column.long:
            decimal = "."
            certain = True
        else:
            decimal = "." if self._separator == "," else ","
        style = [style for style in styles if style.decimal == decimal][-1]
        if not certain:
            word = "comma" if sign == "," else "point"
            self._doubt_number(
                name, column, style, f"nothing shows whether its {word} separates thousands"
            )
        return style

    def _doubt_number(self, name: str, column: _CellCounts, style: _Style, why: str) -> None:
        value = float(_number_converter(style)(column.doubtful))
        self.doubts[name] = f"column {name!r}: {column.doubtful} is read as {value:.15g}; {why}"

    def _order(self, name: str, column: _CellCounts) -> str:
        """Return the order of a column of dates."""
        assert column.orders is not None
        [*orders] = column.orders
        if len(orders) == 1:
            return orders[0]
        known = set[str]()
        for other in self._columns.values():
            if other.is_date and not other.typed and len(other.orders or ()) == 1:
                known |= other.orders or set()
        known &= column.orders
        if len(known) == 1:
            return known.pop()
        order = "mdY" if column.halves else "dmY"
        day = _date_converter(order)(column.date)
        self.doubts[name] = (
            f"column {name!r}: {column.date} is read as {day}; nothing shows which is the month"
        )
        return order


def _number_converter(style: _Style) -> Convert:
    def convert(cell: str) -> str:
        amount = _AMOUNT.fullmatch(cell.strip())
        if amount is None:
            return cell
        sign = "-" if (amount["sign"] or amount["inner"]) in _MINUS else ""
        return f"{sign}{style.plain(amount['digits'])}{amount['exponent'] or ''}"

    return convert


def _date_converter(order: str) -> Convert:
    def convert(cell: str) -> str:
        text = cell.strip()
        date = _DATE.fullmatch(text) or _NAMED_DATE.fullmatch(text)
        if date is None:
            return cell
        return f"{_iso_day(date, order)}{_iso_time(date)}"

    return convert


def scale_value(cell: str) -> float | None:
    """Return the place of a converted cell on a scale: a number, or a date as a year with a
    fraction; else None.

    Example:
        >>> scale_value("2024-07-02"), scale_value("1.5"), scale_value("a")
        (2024.5, 1.5, None)
    """
    number = finite_number(cell)
    if number is not None or not _ISO_DATE.fullmatch(cell):
        return number
    try:
        day = datetime.date.fromisoformat(cell[:10])
    except ValueError:
        return None
    days = 365 + calendar.isleap(day.year)
    return day.year + (day.timetuple().tm_yday - 1) / days


_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")


def finite_number(text: str) -> float | None:
    """Return the number that a text is, also with a decimal comma.

    None if it is not one, infinite or NaN.
    """
    try:
        number = float(text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
