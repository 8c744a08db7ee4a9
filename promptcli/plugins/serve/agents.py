"""Search and similarity as tools of the Model Context Protocol, called by an agent's program.

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
from promptcli import errors
from promptcli.data.arguments import check_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import PromptcliError
from promptcli.retrieval.sentence_index import SentenceIndex
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
Text = Annotated[str, Field(min_length=1, max_length=_MOST_CHARACTERS, description="A sentence.")]


@dataclass(frozen=True)
class FoundRow:
    """A found row: rank from 1, and score (cosine, or BM25 by words alone)."""

    rank: int
    score: float
    id: int | str
    text: str | None
    #: for a passage also its file and lines
    columns: dict[str, Any] | None
    #: in a search by both: meaning, words or both, and the scores and ranks of the two rankings
    found_by: str | None
    bm25: float | None
    cosine_rank: int | None
    bm25_rank: int | None
    file: str | None  #: source of the row, in an index of files
    stale: str | None  #: current state of that file: changed or gone


@dataclass(frozen=True)
class PairSimilarity:
    """How similar two sentences are: their cosine."""

    cosine: float


@dataclass(frozen=True)
class ServedIndex:
    """An index that can be searched."""

    index: str
    rows: int
    columns: list[str]
    hybrid: bool


class _Cancelled(Exception):
    """The caller no longer waits for the answer."""


class Tools:
    """The tools of an agent: the indexes by name, and an encoder for pairs of sentences.

    One thread answers the calls in turn.
    """

    def __init__(self, indexes: Mapping[str, SentenceIndex], encoder: Encoder) -> None:
        self._indexes = dict(indexes)
        self._encoder = encoder
        self._thread = Worker()

    async def search(
        self,
        query: Query,
        index: IndexName = None,
        k: HitCount = 10,
        where: Condition = None,
        by: By = None,
    ) -> list[FoundRow]:
        """Find the rows of an index that answer a query by meaning and by words, best first."""

        def search(check_cancelled: Callable[[], None]) -> list[FoundRow]:
            texts = _check_texts(query)
            [hits] = self._index(index).answer(
                texts, k, where=where, by=by, check_cancelled=check_cancelled
            )
            fields = FoundRow.__annotations__
            return [FoundRow(**{name: getattr(hit, name) for name in fields}) for hit in hits]

        return await self._answer(search)

    async def similar(self, a: Text, b: Text) -> PairSimilarity:
        """Return how similar two sentences are in meaning: their cosine, -1 to 1."""

        def compare(check_cancelled: Callable[[], None]) -> PairSimilarity:
            left, right = unit(self._encoder.encode(_check_texts(a, b)))
            return PairSimilarity(float(np.clip(left @ right, -1, 1)))

        return await self._answer(compare)

    async def indexes(self) -> list[ServedIndex]:
        """List the indexes, with their columns for conditions."""

        def describe(check_cancelled: Callable[[], None]) -> list[ServedIndex]:
            served = []
            for name, index in self._indexes.items():
                info = index.info()
                served.append(ServedIndex(name, info.rows, list(info.columns), info.lexical))
            return served

        return await self._answer(describe)

    async def _answer(self, work: Callable[[Callable[[], None]], Result]) -> Result:
        """Return what a function computes on the thread of calls; its refusal becomes an error that
        the agent can mend.

        The function gets a callback that raises once the call is cancelled or the client has gone.
        A call that is cancelled while it waits is never begun.
        """
        abandoned = threading.Event()

        def check_cancelled() -> None:
            if abandoned.is_set():
                raise _Cancelled

        context = contextvars.copy_context()
        try:
            return await asyncio.wrap_future(
                self._thread.submit(context.run, work, check_cancelled)
            )
        except (PromptcliError, OSError) as error:
            raise ToolError(errors.one_line(error)) from None
        finally:
            abandoned.set()

    def _index(self, name: str | None) -> SentenceIndex:
        """Return an index by its name; None: the first."""
        index = self._indexes.get(next(iter(self._indexes)) if name is None else name)
        if index is None:
            raise ToolError(f"no index {name!r}; valid: {', '.join(self._indexes)}")
        return index


def _check_texts(*texts: str) -> list[str]:
    """Return an agent's texts; refuse one of spaces alone."""
    for text in texts:
        if not text.strip():
            raise ToolError("the text is empty; give a sentence")
    return check_texts(list(texts))


class _Server(MCPServer):
    """The library's server; unknown arguments of a tool are refused in our own words."""

    def __init__(self, tools: list[Tool]) -> None:
        super().__init__(
            "promptcli", version=promptcli.__version__, tools=tools, log_level="CRITICAL"
        )
        self._parameters = {tool.name: list(tool.parameters["properties"]) for tool in tools}

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Any = None
    ) -> CallToolResult | InputRequiredResult:
        # clients with strict schemas send null for unset options
        values = {argument: value for argument, value in arguments.items() if value is not None}
        parameters = self._parameters.get(name, values)
        for argument in values:
            if argument not in parameters:
                raise ToolError(str(errors.unknown("argument", argument[:80], parameters)))
        try:
            return await super().call_tool(name, values, context)
        except ToolError as error:
            wrong = error.__cause__
            if not isinstance(wrong, ValidationError):
                raise
            [first, *_] = wrong.errors()
            raise ToolError(f"{first['loc'][0]}: {first['msg']}") from wrong


def make_server(indexes: Mapping[str, SentenceIndex], encoder: Encoder) -> MCPServer:
    """Return the protocol's server with the tools; search is offered only with an index."""
    tools = Tools(indexes, encoder)
    offered: list[Callable[..., Awaitable[Any]]] = [tools.similar]
    if indexes:
        offered = [tools.search, tools.similar, tools.indexes]
    return _Server([_tool(function) for function in offered])


def _tool(function: Callable[..., Awaitable[Any]]) -> Tool:
    """Return a tool whose schema forbids other arguments."""
    tool = Tool.from_function(function, annotations=_READS)
    tool.parameters["additionalProperties"] = False
    return tool
