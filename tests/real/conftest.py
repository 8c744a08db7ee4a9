"""Real public models, in the folder named by PROMPTCLI_REAL_MODELS; skipped by name without it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """Return a model's folder or file by name."""

    def path(name: str) -> Path:
        named = Path(os.environ.get("PROMPTCLI_REAL_MODELS", ""), name)
        if not os.environ.get("PROMPTCLI_REAL_MODELS") or not named.exists():
            pytest.skip(f"real models: PROMPTCLI_REAL_MODELS names no folder with {name}")
        return named

    return path
