"""Search and similarity as tools of the Model Context Protocol, which an agent's program calls.

The tools only read.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, InputRequiredResult, ToolAnnotations
from pydantic import Field, ValidationError

import promptcli
from promptcli import errors, notes
from promptcli.data.given import check_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import PromptcliError
from promptcli.evaluation.demo_rarity import rarity
from promptcli.index.sentence_index import SentenceIndex
from promptcli.threads import Worker

Result = TypeVar("Result")

_MOST_HITS = 100
_MOST_CHARACTERS = 100_000
_READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

IndexName = Annotated[
    str | None, Field(description="A name of the tool indexes. Default: the first.")
]
Query = Annotated[
    str,
    Field(
        min_length=1,
        max_length=_MOST_CHARACTERS,
        description="What to look for, as a sentence or a question.",
    ),
]
HitCount = Annotated[int, Field(ge=1, le=_MOST_HITS, description="How many rows to return.")]
Condition = Annotated[
    str | None,
    Field(
        description="Condition on the index's columns, on id and on text, e.g. year > 2020 and lang"
        ' = "en". SQL: =, !=, <, <=, >, >=, in (...), like "%part%", is null; and, or, not.'
    ),
]
By = Annotated[
    Literal["both", "meaning", "words"] | None,
    Field(
        description="Rank by meaning (cosine), by words (BM25) or by both. Default: both, if the"
        " index has its words (hybrid in the answer of indexes)."
    ),
]
Hybrid = Annotated[
    bool | None, Field(description="true: the same as by both; false: as by meaning.")
]
Text = Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS, description="A sentence.")]


@dataclass(frozen=True)
class FoundRow:
    """A row that was found: rank from 1, score (cosine; by words alone BM25), and rarity: how many
    of 100 random pairs of rows are less similar.
    """

    rank: int
    score: float
    id: int | str
    text: str | None
    #: of a passage also the file and the lines that it is in
    columns: dict[str, Any] | None
    #: by both: meaning, words or both, and the score and ranks of the two rankings
    found_by: str | None
    bm25: float | None
    cosine_rank: int | None
    bm25_rank: int | None
    rarity: float | None  #: how many of 100 random pairs of rows the cosine exceeds


@dataclass(frozen=True)
class PairSimilarity:
    """How similar two sentences are: their cosine, and rarity: how many of 100 unrelated pairs of
    sentences are less similar, null if that is not known.
    """

    cosine: float
    rarity: float | None


@dataclass(frozen=True)
class ServedIndex:
    """An index that can be searched."""

    index: str
    rows: int
    columns: list[str]
    hybrid: bool


class _Cancelled(Exception):
    """Nobody waits for the answer of a call."""


class Tools:
    """What an agent can ask: the indexes by their names, and an encoder for pairs of sentences.

    One thread answers the calls, one after the other.
    """

    def __init__(self, indexes: Mapping[str, SentenceIndex], encoder: Encoder) -> None:
        self._indexes = dict(indexes)
        self._encoder = encoder
        #: Stamps of indexes that could not be read again.
        self._refused = dict[str, object]()
        self._thread = Worker()

    async def search(
        self,
        query: Query,
        index: IndexName = None,
        k: HitCount = 10,
        where: Condition = None,
        by: By = None,
        hybrid: Hybrid = None,
    ) -> list[FoundRow]:
        """Find the rows of an index that answer a query by meaning and by words, best first."""

        def search(go_on: Callable[[], None]) -> list[FoundRow]:
            texts = _check_texts(query)
            searched = self._newest(index)
            allowed = searched.vectors.allowed_rows(where, go_on)
            by_meaning = by is None and hybrid is False
            way = searched.vectors.way("meaning" if by_meaning else by, hybrid=bool(hybrid))
            vectors = words = None
            if way != "words":
                vectors = searched.queries.encode(texts)
            if way != "meaning":
                words = texts
            go_on()
            [hits] = searched.vectors.search(vectors, k, words=words, among=allowed)
            return [FoundRow(**hit._asdict()) for hit in hits]

        return await self._answer(search)

    async def similar(self, a: Text, b: Text) -> PairSimilarity:
        """Return how similar two sentences are in meaning: their cosine, -1 to 1, and how many of
        100 unrelated pairs of sentences are less similar.
        """

        def compare(go_on: Callable[[], None]) -> PairSimilarity:
            left, right = unit(self._encoder.encode(_check_texts(a, b)))
            cosine = float(np.clip(left @ right, -1, 1))
            go_on()
            [percent] = rarity([cosine], self._encoder)
            return PairSimilarity(cosine, percent)

        return await self._answer(compare)

    async def indexes(self) -> list[ServedIndex]:
        """List the indexes, with their columns for conditions."""

        def listed(go_on: Callable[[], None]) -> list[ServedIndex]:
            served = []
            for name in self._indexes:
                go_on()
                rows = self._newest(name).vectors
                served.append(ServedIndex(name, rows.rows, rows.columns(), rows.lexical))
            return served

        return await self._answer(listed)

    async def _answer(self, work: Callable[[Callable[[], None]], Result]) -> Result:
        """Return what a function computes on the thread of calls, or its refusal as one that the
        agent can mend.

        The function gets another, which raises once the call is cancelled or the client has gone. A
        call that is cancelled while it waits is never begun.
        """
        left = threading.Event()

        def go_on() -> None:
            if left.is_set():
                raise _Cancelled

        context = contextvars.copy_context()
        try:
            return await asyncio.wrap_future(self._thread.submit(context.run, work, go_on))
        except (PromptcliError, OSError) as error:
            raise ToolError(errors.one_line(error)) from None
        finally:
            left.set()

    def _newest(self, name: str | None) -> SentenceIndex:
        """Return an index as its folder holds it now; None: the first.

        If another has taken its place and cannot be read, the old one goes on answering.
        """
        if name is None:
            name = next(iter(self._indexes))
        if name not in self._indexes:
            raise ToolError(f"no index {name!r}; valid: {', '.join(self._indexes)}")
        stamp = self._indexes[name].replaced_by()
        if stamp is not None and stamp != self._refused.get(name):
            try:
                self._indexes[name] = self._indexes[name].read_again()
            except (PromptcliError, OSError) as error:
                self._refused[name] = stamp
                notes.warn(
                    f"index {name} has changed and cannot be read; the old one is searched:"
                    f" {errors.one_line(error)}"
                )
        return self._indexes[name]


def _check_texts(*texts: str) -> list[str]:
    """Return an agent's texts; refuse one that says nothing."""
    for text in texts:
        if not text.strip():
            raise ToolError("the text is blank; give a sentence")
    return check_texts(list(texts))


class _Server(MCPServer):
    """The library's server; what a tool does not take is refused, as our other messages are."""

    def __init__(self, tools: list[Tool]) -> None:
        super().__init__(
            "promptcli", version=promptcli.__version__, tools=tools, log_level="CRITICAL"
        )
        self._taken = {tool.name: list(tool.parameters["properties"]) for tool in tools}

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Any = None
    ) -> CallToolResult | InputRequiredResult:
        taken = self._taken.get(name, arguments)
        for argument in arguments:
            if argument not in taken:
                raise ToolError(str(errors.unknown("argument", argument[:80], taken)))
        # clients with strict schemas send null for what is not chosen
        given = {argument: value for argument, value in arguments.items() if value is not None}
        try:
            return await super().call_tool(name, given, context)
        except ToolError as error:
            wrong = error.__cause__
            if not isinstance(wrong, ValidationError):
                raise
            [first, *_] = wrong.errors()
            raise ToolError(f"{first['loc'][0]}: {first['msg']}") from wrong


def make_server(indexes: Mapping[str, SentenceIndex], encoder: Encoder) -> MCPServer:
    """Return the protocol's server with the tools; without an index there is nothing to search."""
    tools = Tools(indexes, encoder)
    offered: list[Callable[..., Awaitable[Any]]] = [tools.similar]
    if indexes:
        offered = [tools.search, tools.similar, tools.indexes]
    return _Server([_tool(function) for function in offered])


def _tool(function: Callable[..., Awaitable[Any]]) -> Tool:
    """Return a tool whose schema says, too, that it takes no other arguments."""
    tool = Tool.from_function(function, annotations=_READS)
    tool.parameters["additionalProperties"] = False
    return tool
