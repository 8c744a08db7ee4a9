"""What a project for others has: licence, notice, citation, change log.

Wheel and sdist hold it, and a wheel works.
"""

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import promptcli

ROOT = Path(__file__).parents[1]


def test_the_citation_names_this_version_and_the_three_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == promptcli.__version__ and cited["license"] == "Apache-2.0"
    assert [paper["title"].split()[0] for paper in cited["references"]] == [
        "PromptBERT:",
        "Ditto:",
        "Deep",
    ]
    assert all(paper["authors"] and paper["url"] for paper in cited["references"])
    page = (ROOT / "docs" / "cite.md").read_text(encoding="utf-8").replace("{", "").replace("}", "")
    for paper in cited["references"]:
        assert f"title = {paper['title']}," in re.sub(r" +", " ", page)
        for author in paper["authors"]:
            assert f"{author['family-names']}, {author['given-names']}" in page
        assert paper.get("doi", paper["url"].rsplit("/", 1)[-1]) in page


def test_the_notice_names_the_data_of_every_model_that_ships():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8").splitlines()
    models = {path.parent.name for path in (ROOT / "promptcli" / "shipped").glob("*/*.safetensors")}
    assert models == {line.split(" (")[0] for line in notice if line.startswith("mini")}


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    )
    assert ".ci/run" in [
        step.get("run") for job in workflow["jobs"].values() for step in job["steps"]
    ]


#: Builds with no compression, which takes most of the time.
BUILD = """
import zlib
whole = zlib.compressobj
zlib.compressobj = lambda level=-1, *more, **named: whole(0, *more, **named)
from hatchling.cli import hatchling
raise SystemExit(hatchling())
"""


@pytest.mark.wheel
def test_wheel_and_sdist_hold_licence_and_notice_and_the_wheel_works(tmp_path):
    subprocess.run(
        [sys.executable, "-c", BUILD, "build", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(packed.read(f"{info}/METADATA"))
    assert (metadata["Name"], metadata["License-Expression"]) == (
        "promptcli-encoders",
        "Apache-2.0",
    )
    assert {f"{info}/licenses/{name}" for name in metadata.get_all("License-File")} <= set(names)
    assert {name.split("/")[0] for name in names} == {"promptcli", info}
    pages = [*(ROOT / "promptcli" / "plugins").rglob("*.html")]
    assert {
        "promptcli/templates/named.toml",
        "promptcli/py.typed",
        "promptcli/shipped/mini-bert/model.safetensors",
        *(path.relative_to(ROOT).as_posix() for path in pages),
    } <= set(names)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    kept = [
        "LICENSE",
        "NOTICE",
        "CITATION.cff",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "README.md",
        "Makefile",
        "SECURITY.md",
        "mkdocs.yml",
        ".ci/run",
        ".pre-commit-config.yaml",
    ]
    kept += [
        "docs/python.md",
        "tests/conftest.py",
        "examples/demo.sh",
        "constraints.txt",
        "templates/named.toml",
    ]
    assert [name for name in kept if name not in held] == []
    assert not [name for name in held if name.startswith(".venv")]

    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    elsewhere.mkdir()
    (elsewhere / "lines.txt").write_text("one line\nanother line\n")
    words = "-m promptcli embed lines.txt -m mini-static --offline".split()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run(
        [sys.executable, *words], cwd=elsewhere, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert (elsewhere / "lines.txt.npy").exists()
