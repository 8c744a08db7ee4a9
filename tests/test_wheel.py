"""The wheel holds all that the program needs: installed elsewhere, it finds its templates and its backbone."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

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
