"""The site is built from the pages as they are: no broken link, every public name, nothing from
elsewhere.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.public import PUBLIC

pytest.importorskip("material", reason="mkdocs-material is not installed (extra `docs`)")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed (extra `docs`)")
ROOT = Path(__file__).parents[1]
#: What a browser fetches by itself: all but links that a reader follows.
FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site. ``--strict``: a broken link or anchor, or a page that the navigation
    lacks, ends the build.
    """
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_the_library_pages_hold_every_public_name_with_its_docstring(site):
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    wanted = [f"{module}.{name}" for name, module in PUBLIC.items()]
    assert wanted
    assert [name for name in wanted if f'id="{name}"' not in pages] == []
    assert "Append &#39;.&#39; to a sentence" in pages or "Append '.' to a sentence" in pages
    assert "Example:" not in pages  # but "Examples:", as blocks of code


def test_a_page_is_shown_without_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(.?https?:|@import", style.read_text(encoding="utf-8")), style


def test_texts_and_programs_that_pages_link_to_are_pages(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    for name in ("LICENSE.html", "NOTICE.html", "examples/index.html"):
        assert f'href="{name}"' in home
        assert (site / name).exists()
    assert 'href="../CITATION.cff.html"' in (site / "docs" / "cite.html").read_text("utf-8")
    assert (site / "CITATION.cff.html").exists()


def test_the_search_finds_the_guides_and_no_record(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    records = ("/cli.html", "/log.html", "/results.html", "LICENSE.html")
    pages = [page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md")]
    locations = {str(page.with_suffix(".html")) for page in pages}
    assert {location for location in locations if not location.endswith(records)} <= found
    assert not {location for location in found if location.endswith(records)}
