"""Search and similarity as tools of the Model Context Protocol, for an agent's program.

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
from promptcli.data.arguments import as_texts
from promptcli.data.vectors.precision import unit
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import PromptcliError
from promptcli.retrieval.sentence_index import SentenceIndex
from promptcli.threads import Worker

Result = TypeVar("Result")

_MAX_HITS = 100
_MAX_CHARACTERS = 100_000
_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

IndexName = Annotated[
    str | None, Field(description="A name of the tool indexes. Default: the first.")
]
Query = Annotated[
    str,
    Field(
        min_length=1,
        max_length=_MAX_CHARACTERS,
        description="What to look for, as a sentence or a question.",
    ),
]
HitCount = Annotated[int, Field(ge=1, le=_MAX_HITS, description="How many rows to return.")]
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
Text = Annotated[str, Field(min_length=1, max_length=_MAX_CHARACTERS, description="A sentence.")]


@dataclass(frozen=True)
class FoundRow:
    """A found row: fields of ``promptcli.retrieval.ranking.Hit``."""

    rank: int
    score: float
    id: int | str
    text: str | None
    columns: dict[str, Any] | None  #: a passage's columns hold its file and lines
    found_by: str | None
    bm25: float | None
    cosine_rank: int | None
    bm25_rank: int | None
    file: str | None
    stale: str | None


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
    """The tools of an agent, for indexes by name and an encoder for pairs of sentences.

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

        def find_rows(check_cancelled: Callable[[], None]) -> list[FoundRow]:
            texts = _check_texts(query)
            name = next(iter(self._indexes)) if index is None else index
            if name not in self._indexes:
                raise ToolError(f"no index {name!r}; valid: {', '.join(self._indexes)}")
            [hits] = self._indexes[name].answer(
                texts, k, where=where, by=by, check_cancelled=check_cancelled
            )
            fields = FoundRow.__annotations__
            return [FoundRow(**{name: getattr(hit, name) for name in fields}) for hit in hits]

        return await self._answer(find_rows)

    async def similar(self, a: Text, b: Text) -> PairSimilarity:
        """Return how similar two sentences are in meaning: their cosine, -1 to 1."""

        def compare(check_cancelled: Callable[[], None]) -> PairSimilarity:
            left, right = unit(self._encoder.encode(_check_texts(a, b)))
            return PairSimilarity(float(np.clip(left @ right, -1, 1)))

        return await self._answer(compare)

    async def indexes(self) -> list[ServedIndex]:
        """List the indexes, with their columns for conditions."""

        def describe(check_cancelled: Callable[[], None]) -> list[ServedIndex]:
            descriptions = []
            for name, index in self._indexes.items():
                info = index.info()
                descriptions.append(ServedIndex(name, info.rows, [*info.columns], info.lexical))
            return descriptions

        return await self._answer(describe)

    async def _answer(self, work: Callable[[Callable[[], None]], Result]) -> Result:
        """Return what a function computes on the thread of calls; an error becomes a message to the
        agent.

        The function gets a callback that raises once the call is cancelled or the client has gone.
        A call that is cancelled while it waits does not begin.
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
            raise ToolError(errors.join_lines(error)) from None
        finally:
            abandoned.set()


def _check_texts(*texts: str) -> list[str]:
    """Return an agent's texts; refuse a text without anything but spaces."""
    for text in texts:
        if not text.strip():
            raise ToolError("a text must not be empty")
    return as_texts(list(texts))


class _Server(MCPServer):
    """The library's server, with our own messages for wrong arguments of a tool."""

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
                raise ToolError(
                    str(errors.unknown_name_error("argument", argument[:80], parameters))
                )
        try:
            return await super().call_tool(name, values, context)
        except ToolError as error:
            invalid = error.__cause__
            if not isinstance(invalid, ValidationError):
                raise
            [first, *_] = invalid.errors()
            raise ToolError(f"{first['loc'][0]}: {first['msg']}") from invalid


def make_server(indexes: Mapping[str, SentenceIndex], encoder: Encoder) -> MCPServer:
    """Return the protocol's server with the tools; search is offered only with an index."""
    tools = Tools(indexes, encoder)
    functions: list[Callable[..., Awaitable[Any]]] = [tools.similar]
    if indexes:
        functions = [tools.search, tools.similar, tools.indexes]
    offered_tools = []
    for function in functions:
        tool = Tool.from_function(function, annotations=_READ_ONLY)
        tool.parameters["additionalProperties"] = False
        offered_tools.append(tool)
    return _Server(offered_tools)
