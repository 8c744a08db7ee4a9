"""The tools for agents, by the protocol's own client: in this process, and over stdio."""

import asyncio
import importlib.util
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

pytest.importorskip("mcp", reason="agents need mcp: pip install '.[mcp]'")
from mcp import Client, StdioServerParameters

from promptcli.plugins.serve import serving
from promptcli.plugins.serve.agents import make_server
from promptcli.retrieval.sentence_index import SentenceIndex
from tests.comparing import refused
from tests.processes import PIPE, Program
from tests.tiny import SENTENCES


@pytest.fixture(scope="module")
def index(encoder):
    return SentenceIndex.build(SENTENCES, encoder, lexical=False)


def call(server, *calls):
    """Return what a client gets for calls of tools, (name, arguments)."""

    async def ask():
        async with Client(server) as client:
            return [await client.call_tool(*each) for each in calls]

    return asyncio.run(ask())


def found(result):
    assert not result.is_error, result.content
    return result.structured_content["result"]


def test_search_finds_what_the_index_finds(index, encoder):
    query = SENTENCES[2]
    server = make_server({"notes": index}, encoder)
    hits, first = call(
        server,
        ("search", {"query": query, "k": 3}),
        ("search", {"query": query, "index": "notes", "k": 1, "where": "id > 4"}),
    )
    wanted = index.search(query, 3)
    assert [hit["text"] for hit in found(hits)] == [hit.text for hit in wanted]
    assert [hit["rank"] for hit in found(hits)] == [1, 2, 3]
    assert np.allclose([hit["score"] for hit in found(hits)], [hit.score for hit in wanted])
    assert found(first)[0]["id"] == index.search(query, 1, where="id > 4")[0].id > 4


def test_similar_is_the_cosine(index, encoder):
    [result] = call(make_server({}, encoder), ("similar", {"a": SENTENCES[0], "b": SENTENCES[1]}))
    assert not result.is_error, result.content
    left, right = encoder.encode(SENTENCES[:2], normalize_embeddings=True)
    cosine = result.structured_content["cosine"]
    assert abs(cosine - left @ right) < 1e-6


def test_all_tools_only_read_and_describe_what_they_take(index, encoder):
    async def listed(indexes):
        async with Client(make_server(indexes, encoder)) as client:
            return (await client.list_tools()).tools

    tools = asyncio.run(listed({"notes": index}))
    assert [tool.name for tool in tools] == ["search", "similar", "indexes"]
    taken = {name for tool in tools for name in tool.input_schema["properties"]}
    assert taken == {"query", "index", "k", "where", "by", "a", "b"}
    for tool in tools:
        assert tool.description and tool.annotations.read_only_hint
        assert all(about["description"] for about in tool.input_schema["properties"].values())
    assert [tool.name for tool in asyncio.run(listed({}))] == ["similar"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"query": "x", "index": "none"}, "no index 'none'; valid: notes"),
        ({"query": "x", "where": "yaer > 3"}, "no such column: yaer"),
        ({"query": "x", "by": "words"}, "no words"),
        ({"query": "x", "k": 0}, "k: "),
        ({"query": "x", "k": "many"}, "k: "),
        ({"query": "x", "by": "word"}, "by: "),
        ({"query": "x", "index": 3}, "index: "),
        ({"query": "x", "where": ["a"]}, "where: "),
        ({}, "query: "),
        ({"query": ""}, "query: "),
        ({"query": " \n"}, "a text must not be empty"),
        ({"query": "x" * 100_001}, "query: "),
    ],
)
def test_what_cannot_be_asked_is_said_to_the_agent(index, encoder, given, says):
    [result] = call(make_server({"notes": index}, encoder), ("search", given))
    said = result.content[0].text
    assert result.is_error and says in said and len(said.splitlines()) == 1


def test_an_index_is_read_again_once_it_is_replaced(encoder, tmp_path):
    folder = tmp_path / "notes"
    SentenceIndex.build(SENTENCES[:3], encoder, output=folder, lexical=False)
    server = make_server({"notes": SentenceIndex.open(folder, encoder)}, encoder)
    listing = ("indexes", {})
    [before] = call(server, listing)
    SentenceIndex.build(SENTENCES, encoder, output=folder, lexical=False, force=True)
    [after] = call(server, listing)
    about = {"index": "notes", "columns": [], "hybrid": False}
    assert found(before) == [{**about, "rows": 3}]
    assert found(after) == [{**about, "rows": len(SENTENCES)}]


def test_the_command_serves_a_client_over_stdin_and_stdout(run, tmp_path):
    (tmp_path / "rows.tsv").write_text(
        "sentence\tyear\n" + "".join(f"{text}\t{2000 + n}\n" for n, text in enumerate(SENTENCES))
    )
    folder = tmp_path / "notes"
    built = run("index", "build", tmp_path / "rows.tsv", "-o", folder, "-m", "mini-static")
    assert built.code == 0, built.err
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "promptcli", "mcp", "--index", str(folder), "--offline"],
        env=dict(os.environ),
    )
    query = {"query": SENTENCES[5], "where": "year >= 2003", "k": 2}
    about, hits = call(program, ("indexes", {}), ("search", query))
    [notes] = found(about)
    assert notes == {
        "index": "notes",
        "rows": len(SENTENCES),
        "columns": ["year"],
        "hybrid": True,
    }
    assert found(hits)[0]["text"] == SENTENCES[5]
    assert found(hits)[0]["columns"] == {"year": 2005}
    assert (found(hits)[0]["found_by"], found(hits)[0]["bm25_rank"]) == ("both", 1)
    assert all(hit["columns"]["year"] >= 2003 for hit in found(hits))


def test_a_signal_ends_it_while_stdin_is_open(bert_folder):
    program = Program("mcp", "--model", bert_folder, "--offline", stdin=PIPE)
    said = b""
    for line in program.stderr:  # which ends with the process
        said += line
        if line.startswith(b"ready for an agent"):
            break
    assert said.endswith(b"ready for an agent; indexes: none\n"), said
    program.send_signal(signal.SIGTERM)
    assert program.wait() == 143, said
    assert program.stdout.read() == b""
    program.stdin.close()


def test_what_cannot_be_served_is_one_line(run, tmp_path, encoder, monkeypatch):
    folder = tmp_path / "notes"
    assert refused(run("mcp", "--index", folder), 3, "no index in", "index build")
    SentenceIndex.build(SENTENCES[:3], encoder, output=folder, lexical=False)
    assert refused(run("mcp", "--index", folder, "--index", f"{folder}/"), 2, "'notes'", "rename")
    (folder / "index.sqlite").write_text("{" * 5000)
    assert refused(run("mcp", "--index", folder), 4, "damaged")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(run("mcp", "--index", folder), 2, "mcp", ".[mcp]")


@pytest.mark.parametrize(
    ("tool", "given", "says"),
    [
        ("search", {"query": "x", "limit": 1}, "'limit'; valid: query, index, k, where, by"),
        ("search", {"query": "x", "K": 1}, "did you mean k?"),
        ("indexes", {"name": "notes"}, "unknown argument 'name'"),
        ("similar", {"a": "x", "b": "y", "c" * 999: "z"}, "valid: a, b"),
    ],
)
def test_an_argument_that_a_tool_does_not_take_is_refused(index, encoder, tool, given, says):
    [result] = call(make_server({"notes": index}, encoder), (tool, given))
    said = result.content[0].text
    assert result.is_error and says in said and len(said) < 400


def test_null_is_the_default(index, encoder):
    server = make_server({"notes": index}, encoder)
    chosen = dict.fromkeys(("index", "k", "where", "by"))
    plain, null = call(
        server, ("search", {"query": "A cat."}), ("search", {"query": "A cat.", **chosen})
    )
    assert not null.is_error and found(null) == found(plain)
    [missing] = call(server, ("search", {"query": None}))
    assert missing.is_error and "query: " in missing.content[0].text


@pytest.mark.filterwarnings("error:.*[Pp]ydantic")
def test_cells_of_any_type_are_answers_without_a_warning(run, encoder, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("text,year,share\nA cat.,2021,0.5\nA dog.,2019,1.5\n")
    folder = tmp_path / "index"
    assert run("index", "build", table, "-o", folder, "-m", "mini-static").code == 0
    server = make_server({"rows": SentenceIndex.open(folder)}, encoder)
    [result] = call(server, ("search", {"query": "A cat."}))
    assert found(result)[0]["columns"]["year"] == 2021


@pytest.fixture
def held(encoder, monkeypatch):
    """Return an index whose conditions are read until the call is given up."""
    held = SentenceIndex.build(SENTENCES[:3], encoder, lexical=False)
    held.began, held.ended = threading.Event(), threading.Event()
    plain = held.answer

    def answer(texts, k, *, where, check_cancelled, **options):
        if where is not None:
            held.began.set()
            try:
                while True:
                    check_cancelled()
                    time.sleep(0.001)
            finally:
                held.ended.set()
        return plain(texts, k, check_cancelled=check_cancelled, **options)

    monkeypatch.setattr(held, "answer", answer)
    return held


def test_a_cancelled_call_does_not_hold_up_the_others(held, encoder):
    async def ask():
        async with Client(make_server({"notes": held}, encoder)) as client:
            calls = [
                asyncio.create_task(
                    client.call_tool("search", {"query": "x", "where": f"id > {number}"})
                )
                for number in range(3)
            ]
            await asyncio.to_thread(held.began.wait)
            for task in calls:
                task.cancel()
            return await client.call_tool("search", {"query": SENTENCES[0], "k": 1})

    assert found(asyncio.run(ask()))[0]["text"] == SENTENCES[0]
    assert held.ended.is_set()


def test_what_is_computed_ends_with_the_client(held, encoder):
    async def leave():
        async with Client(make_server({"notes": held}, encoder)) as client:
            asking = client.call_tool("search", {"query": "x", "where": "id > 1"})
            asyncio.create_task(asking).add_done_callback(lambda task: task.exception())
            await asyncio.to_thread(held.began.wait)

    asyncio.run(leave())
    assert held.ended.wait(300)


def test_it_ends_though_its_client_reads_nothing(monkeypatch):
    monkeypatch.setattr(serving, "_END_TIMEOUT_S", 0.01)
    reading, writing = os.pipe()
    os.write(writing, b"unread")
    waiting = Future()  # of a server that waits to write
    leaving = threading.Timer(0.01, os.close, [writing])
    leaving.start()
    serving._until_client_leaves(waiting, reading)
    leaving.join()
    assert not waiting.done()
    os.close(reading)


def test_a_client_that_broke_off_is_no_error():
    reading, writing = os.pipe()
    server = Future()
    server.set_exception(ExceptionGroup("of tasks", [BrokenPipeError()]))
    serving._until_client_leaves(server, reading)
    failed = Future()
    failed.set_exception(ExceptionGroup("of tasks", [BrokenPipeError(), ValueError()]))
    with pytest.raises(ExceptionGroup, match="of tasks"):
        serving._until_client_leaves(failed, reading)
    os.close(writing)
    os.close(reading)
