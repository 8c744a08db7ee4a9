"""What a project for others has: licence, notice, citation, change log; wheel and sdist hold it, and a wheel works."""

import email
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import promptcli

ROOT = Path(__file__).parents[1]


def test_the_citation_names_this_version_and_the_three_papers():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == promptcli.__version__ and cited["license"] == "Apache-2.0"
    assert [paper["title"].split()[0] for paper in cited["references"]] == ["PromptBERT:", "Ditto:", "Deep"]
    assert all(paper["authors"] and paper["url"] for paper in cited["references"])


def test_the_change_log_has_this_version():
    assert f"\n## {promptcli.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_notice_names_the_data_of_every_model_that_ships():
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8").splitlines()
    models = {path.parent.name for path in (ROOT / "promptcli" / "shipped").glob("*/*.safetensors")}
    assert models == {line.split(" (")[0] for line in notice if line.startswith("mini")}


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    assert ".ci/run" in [step.get("run") for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.wheel
def test_wheel_and_sdist_hold_licence_and_notice(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", tmp_path], cwd=ROOT, check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(packed.read(f"{info}/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {f"{info}/licenses/{name}" for name in metadata.get_all("License-File")} <= set(names)
    assert {name.split("/")[0] for name in names} == {"promptcli", info}
    assert {"promptcli/templates/named.toml", "promptcli/py.typed", "promptcli/serving/page.html"} <= set(names)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        held = {name.partition("/")[2] for name in packed.getnames()}
    kept = ["LICENSE", "NOTICE", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "Makefile", ".ci/run"]
    kept += ["docs/python.md", "tests/conftest.py", "examples/demo.sh", "constraints.txt", "templates/named.toml"]
    assert [name for name in kept if name not in held] == []
    assert not [name for name in held if name.startswith(".venv")]


ROOT = Path(__file__).parents[1]


@pytest.mark.wheel
def test_an_installed_wheel_uses_a_template_from_another_folder(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", tmp_path, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("promptcli-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    target = ["--target", site, "--no-deps", "--no-index", "--quiet", wheel]
    subprocess.run([sys.executable, "-m", "pip", "install", *target], check=True, capture_output=True)
    # the libraries are those of this environment; promptcli itself is the wheel's
    (site / "libraries.pth").write_text(os.path.dirname(os.path.dirname(pytest.__file__)) + "\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = {"cwd": elsewhere, "capture_output": True, "text": True, "env": {**os.environ, "PYTHONPATH": ""}}
    where = subprocess.run([python, "-c", "import promptcli; print(promptcli.__file__)"], check=True, **options)
    assert str(site) in where.stdout
    (elsewhere / "lines.txt").write_text("one line\nanother line\n")
    words = "embed lines.txt --prompt manual --pooling last/mask --offline".split()
    ran = subprocess.run([python, "-m", "promptcli", *words], **options)
    assert ran.returncode == 0, ran.stderr
    assert (elsewhere / "lines.txt.npy").exists()
