"""The page: one file that holds all of its style and script, safe against what it shows, readable, and really used."""

import base64
import hashlib
import re
import shutil
import socket
import subprocess
import threading

import pytest

pytest.importorskip("starlette", reason="serve needs starlette: pip install 'promptcli[serve]'")
import uvicorn
from starlette.testclient import TestClient

from promptcli.encoder.encoder import Encoder
from promptcli.index.sentence_index import SentenceIndex
from promptcli.recipe import Recipe
from promptcli.serving.app import make_app
from promptcli.serving.page import PAGE
from promptcli.serving.service import Service
from tests.tiny import SENTENCES

TEXT = PAGE.read_text(encoding="utf-8")
[STYLE], [SCRIPT] = (re.findall(rf"<{tag}>(.*?)</{tag}>", TEXT, flags=re.DOTALL) for tag in ("style", "script"))
#: A sentence that would do harm if it were put into the page as HTML.
HARMFUL = '<img src="x" onerror="document.title=1"><b>bold</b>'


@pytest.fixture(scope="module")
def served(tiny_backbone):
    backbone = tiny_backbone("bert")
    encoder = Encoder(Recipe(backbone=backbone.name, pooling="first-last/ditto:1-2"), backbone, {})
    return {"tiny": encoder}, {"lines": SentenceIndex.build([*SENTENCES, HARMFUL], encoder)}


def test_the_policy_allows_this_style_and_script_and_nothing_else(served):
    with TestClient(make_app(Service(*served)), base_url="http://127.0.0.1") as client:
        response = client.get("/")
    assert response.text == TEXT
    policy = dict(part.strip().split(" ", 1) for part in response.headers["content-security-policy"].split(";"))
    for name, content in (("style-src", STYLE), ("script-src", SCRIPT)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[name] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"


def test_the_page_needs_nothing_from_elsewhere_and_puts_text_in_as_text():
    without_names = TEXT.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//cdn|@import|url\(|<link (?!rel=\"icon\" href=\"data:,\")", without_names)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", SCRIPT)
    assert not re.search(r"<[^>]+\s(on\w+|style)=", TEXT.replace(SCRIPT, ""))


def test_what_the_script_looks_for_is_in_the_page():
    markup = TEXT.replace(SCRIPT, "")
    for name in re.findall(r'\$\("#(\w+)"', SCRIPT):
        assert f'id="{name}"' in markup
    views = re.findall(r'data-ask="(\w+)"', markup)
    assert views == re.findall(r"^  async (\w+)\(", SCRIPT, flags=re.MULTILINE)
    assert views == re.findall(r'<a href="#(\w+)">', markup)
    for view, body in re.findall(r"^  async (\w+)\(fields.*?\{(.*?)^  \},", SCRIPT, flags=re.MULTILINE | re.DOTALL):
        form = re.search(rf'data-ask="{view}">(.*?)</form>', markup, flags=re.DOTALL)[1]
        assert set(re.findall(r"fields\.(\w+)", body)) == set(re.findall(r'name="(\w+)"', form))


def test_the_script_is_javascript(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    (tmp_path / "page.js").write_text(SCRIPT, encoding="utf-8")
    ran = subprocess.run([node, "--check", tmp_path / "page.js"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_can_be_read(scheme):
    """WCAG 2.2, 1.4.3 and 1.4.11: 4.5 for text, 3 for the edges of fields."""
    roots = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    colours = dict(re.findall(r"--(\S+): (#\w{6})", roots[scheme]))
    pairs = [("text", "paper"), ("text", "panel"), ("text", "heat"), ("muted", "paper"), ("muted", "panel")]
    pairs += [("accent", "paper"), ("on-accent", "accent"), ("error", "paper"), ("text", "bar")]
    pairs += [(f"c{cluster}", "panel") for cluster in range(8)]
    for front, back in pairs:
        assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
    for front, back in (("edge", "paper"), ("mark", "panel"), ("accent", "panel")):
        assert contrast(colours[front], colours[back]) >= 3, (front, back)


def contrast(one, other):
    """Return WCAG's contrast ratio of two colours, 1 to 21."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, bright = sorted(map(luminance, (one, other)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module")
def browser():
    """A real Chromium without a window, or a skip by name."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium is installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(served):
    """A server in a thread of this process; its address."""
    server = uvicorn.Server(uvicorn.Config(make_app(Service(*served, key="k")), log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_every_view_in_a_browser_by_keyboard(browser, address):
    page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme="dark")
    faults = []
    page.on("pageerror", lambda fault: faults.append(str(fault)))
    page.goto(address)
    page.fill("#key input", "k")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key", state="hidden")

    def done(view):
        page.wait_for_selector(f"#{view}[aria-busy=false]")
        assert "failed" not in page.get_attribute(f"#{view} .status", "class"), page.inner_text(f"#{view} .status")
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), view
        page.evaluate("view => document.getElementById(view).removeAttribute('aria-busy')", view)

    page.fill("#search [name=query]", HARMFUL)
    page.keyboard.press("Enter")
    done("search")
    assert HARMFUL in page.inner_text("#search li:first-child .text")
    assert page.locator("#search li").count() == 10
    for view in ("compare", "tokens", "templates", "map"):
        page.focus(f"nav a[href='#{view}']")
        page.keyboard.press("Enter")
        page.focus(f"#{view} form button")
        page.keyboard.press("Enter")
        done(view)
    page.focus("#map svg")
    page.keyboard.press("ArrowRight")
    first = page.inner_text("#map .caption")
    for key in ("ArrowLeft", "ArrowUp", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    assert first != "No dot is chosen." and page.locator("circle.chosen").count() == 1

    # a link to a view with its fields asks again, and a token can be pressed
    page.goto(f"{address}/#tokens?sentence=The+cat+sat&by=impact")
    page.reload()
    page.fill("#key input", "k")
    page.keyboard.press("Enter")
    done("tokens")
    page.focus("#tokens .token:nth-child(2)")
    page.keyboard.press("Enter")
    assert page.get_attribute("#tokens .token:nth-child(2)", "aria-pressed") == "true"
    assert page.inner_text("#tokens .token:nth-child(2) small") == "0.00"
    page.fill("#tokens [name=sentence]", "a b c d e f g h " * 9)
    page.keyboard.press("Enter")
    page.wait_for_selector("#tokens .status.failed")
    assert faults == [] and page.title() == "promptcli"
