"""A backtracking matcher that does what Python's does and counts its steps, and attacks on a
pattern.
"""

import functools
import re
import sys
from collections.abc import Iterator

#: Functions of ``re`` that try a match at one place; the others try one at every place.
ANCHORED = {"match", "fullmatch"}
#: Steps after which a text counts as one that never ends.
MANY = 20_000
C = re._constants
SINGLE = (C.LITERAL, C.NOT_LITERAL, C.ANY, C.IN)  #: nodes of one character
REPEATS = (C.MAX_REPEAT, C.MIN_REPEAT)
#: Characters of attacks, next to those that the pattern itself names; the last fits few patterns.
CHARACTERS = "9aZ_ .-/é\n\0"


class Endless(Exception):
    pass


class Steps:
    """Counts the steps of one pattern."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self.tree = re._parser.parse(pattern, flags)
        self.accepts = functools.cache(self._accepts)
        named = "".join(
            chr(int(number)) for number in re.findall(r"LITERAL, (\d+)", str(self.tree.data))
        )
        self.alphabet = "".join(dict.fromkeys(CHARACTERS + named))[:24]

    def of(self, text: str, called: set[str]) -> float:
        """Return the steps on a text, for the functions of ``re`` that are called."""
        self.start(text)
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(20_000)
        try:
            for function in called:
                end = self.end(0, whole=function == "fullmatch")
                start = 0
                while (
                    function not in ANCHORED
                    and start < len(text)
                    and not (function == "search" and end is not None)
                ):
                    start = start + 1 if end is None else max(end, start + 1)
                    end = self.end(start)
        except Endless:
            return float("inf")
        finally:
            sys.setrecursionlimit(before)
        return self._count

    def start(self, text: str) -> None:
        self._text, self._count = text, 0
        self._groups = dict[int, str]()

    def end(self, at: int, *, whole: bool = False) -> int | None:
        """Return where the match that begins at a place ends, with ``whole`` that of the whole
        text; None: no match.
        """
        ends = list[int]()

        def take(end: int) -> bool:
            ends.append(end)
            return not whole or end == len(self._text)

        return ends[-1] if self._match(self.tree, 0, at, take) else None

    def _accepts(self, node: str, kind, value, character: str) -> bool:
        single = re._parser.SubPattern(self.tree.state, [(kind, value)])
        return re._compiler.compile(single).fullmatch(character) is not None

    def fits(self, node, character: str) -> bool:
        """Return whether a character is of a node of one character."""
        kind, value = node
        return self.accepts(
            str(node), kind, tuple(value) if isinstance(value, list) else value, character
        )

    def _step(self) -> None:
        self._count += 1
        if self._count > MANY:
            raise Endless

    def _match(self, nodes, place: int, at: int, then) -> bool:
        """Return whether the nodes from a place on match the text from ``at`` on, and ``then`` what
        follows.
        """
        self._step()
        if place == len(nodes):
            return then(at)
        kind, value = nodes[place]

        def rest(end: int) -> bool:
            return self._match(nodes, place + 1, end, then)

        if kind in SINGLE:
            return at < len(self._text) and self.fits(nodes[place], self._text[at]) and rest(at + 1)
        if kind is C.SUBPATTERN:
            return self._match(
                value[-1], 0, at, lambda end: self._keep(value[0], at, end) and rest(end)
            )
        if kind is C.GROUPREF:
            kept = self._groups.get(value, "")
            return self._text.startswith(kept, at) and rest(at + len(kept))
        if kind is C.BRANCH:
            return any(self._match(branch, 0, at, rest) for branch in value[1])
        if kind in REPEATS:
            return self._repeat(*value, kind is C.MIN_REPEAT, at, rest)
        if kind in (C.ASSERT, C.ASSERT_NOT):
            direction, body = value
            start = at if direction > 0 else at - body.getwidth()[1]
            held = start >= 0 and self._match(body, 0, start, lambda end: True)
            return held == (kind is C.ASSERT) and rest(at)
        assert kind is C.AT, kind
        ends = {
            C.AT_END: (len(self._text), len(self._text) - self._text.endswith("\n")),
            C.AT_END_STRING: (len(self._text),),
        }
        return (at in ends[value] if value in ends else at == 0) and rest(at)

    def _keep(self, group: int | None, at: int, end: int) -> bool:
        if group is not None:
            self._groups[group] = self._text[at:end]
        return True

    def _repeat(self, least: int, most: int, body, lazy: bool, at: int, then) -> bool:
        if len(body) == 1 and body[0][0] in SINGLE:
            longest = at
            while (
                longest < len(self._text)
                and longest - at < most
                and self.fits(body[0], self._text[longest])
            ):
                self._step()
                longest += 1
            ends = range(at + least, longest + 1)
            return any(then(end) for end in (ends if lazy else reversed(ends)))

        def again(end: int) -> bool:
            empty = end == at and least == 0
            return not empty and self._repeat(
                max(least - 1, 0), most if most is C.MAXREPEAT else most - 1, body, lazy, end, then
            )

        if lazy and least == 0 and then(at):
            return True
        if most and self._match(body, 0, at, again):
            return True
        return not lazy and least == 0 and then(at)

    def example(self, nodes) -> str:
        """Return a short text that nodes match."""
        text = ""
        for node in nodes:
            kind, value = node
            if kind in SINGLE:
                text += next((sign for sign in self.alphabet if self.fits(node, sign)), "x")
            elif kind is C.SUBPATTERN:
                text += self.example(value[-1])
            elif kind is C.BRANCH:
                text += self.example(value[1][0])
            elif kind in REPEATS:
                text += self.example(value[2]) * value[0]
        return text

    def attacks(self, nodes=None, before: str = "") -> Iterator[tuple[str, str]]:
        """Yield the text before each part that may repeat without end, and what may repeat
        there.
        """
        nodes = list(self.tree if nodes is None else nodes)
        for place, (kind, value) in enumerate(nodes):
            start = before + self.example(nodes[:place])
            if kind is C.SUBPATTERN:
                yield from self.attacks(value[-1], start)
            elif kind is C.BRANCH:
                for branch in value[1]:
                    yield from self.attacks(branch, start)
            elif kind in REPEATS:
                if value[1] is C.MAXREPEAT:
                    yield start, self.example(value[2])
                    yield from (
                        (start, sign) for sign in self.alphabet if self._repeats(value[2], sign)
                    )
                yield from self.attacks(value[2], start)

    def _repeats(self, body, sign: str) -> bool:
        return len(body) == 1 and body[0][0] in SINGLE and self.fits(body[0], sign)
