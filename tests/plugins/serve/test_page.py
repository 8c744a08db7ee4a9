"""The page of the server in a real browser: an answer, none, and an error."""

import html
import re
import shutil
import subprocess
import threading
import time
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="serve needs uvicorn: pip install '.[serve]'")
import uvicorn

from promptcli.plugins.serve.app import make_app
from promptcli.plugins.serve.service import Service
from promptcli.retrieval.sentence_index import SentenceIndex

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
OPTIONS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --virtual-time-budget=10000
    --dump-dom""".split()


@pytest.fixture(scope="module")
def address(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    rows = "text,topic,year\nA cat sleeps.,animals,2021\nRain falls.,weather,\n"
    (folder / "notes.csv").write_text(rows)
    SentenceIndex.build(folder / "notes.csv", encoder, output=folder / "notes")
    service = Service({"tiny": encoder}, {"notes": SentenceIndex.open(folder / "notes", encoder)})
    server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def shown(address, tmp_path, **fields):
    """Return the text that the browser shows after a search."""
    command = [BROWSER, *OPTIONS, f"--user-data-dir={tmp_path}"]
    page = subprocess.run(
        [*command, f"{address}#search?{urlencode(fields)}"], capture_output=True, text=True
    ).stdout
    result = page.split("</form>")[2].split("</section>")[0]
    return html.unescape(re.sub(r"<[^>]+>", " ", result))


def test_a_row_is_shown_with_its_columns_by_name(address, tmp_path):
    text = " ".join(shown(address, tmp_path, query="A cat sleeps.", k=1).split())
    assert text.startswith("1 result. Scores are cosines")
    assert re.search(r"A cat sleeps\. id \S+ topic animals year 2021$", text), text


def test_what_finds_nothing_says_what_to_try(address, tmp_path):
    text = shown(address, tmp_path, query="x", where="year > 2030")
    assert "Nothing was found. Try other words, or another condition." in text


def test_an_error_names_the_field_as_the_page_does(address, tmp_path):
    text = shown(address, tmp_path, query="x", where="colour = 1")
    assert "Only rows where" in text and "colour" in text and "`" not in text
