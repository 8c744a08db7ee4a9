"""Cosines of templates kept on disk, so that a search that was killed goes on where it stood. Knows no model.

One file per context (backbone, precision, data, protocol), one line per template and subset, appended; a line that a
kill cut short is skipped. Deleting the folder loses nothing but time.
"""

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ScoreCache:
    """A folder of cached cosines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def table(self, context: Mapping[str, Any]) -> "CachedCosines":
        """Return what is cached for a context: all that decides a cosine but the template and the pair."""
        line = json.dumps(context, sort_keys=True)
        return CachedCosines(self._folder / f"{hashlib.sha256(line.encode()).hexdigest()[:32]}.jsonl", line)


class CachedCosines:
    """The cosines of one context by template and subset of the pairs."""

    def __init__(self, path: Path, context: str) -> None:
        self._path = path
        self._context = context
        self._rows: dict[tuple[str, str], str] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._take(line)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, template: str, pairs: NDArray[np.intp]) -> NDArray[np.float64] | None:
        """Return the cosines (p,) of a template on the pairs of these numbers (p,), or None."""
        encoded = self._rows.get((template, _key(pairs)))
        if encoded is None:
            return None
        try:
            cosines = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<f8")
        except (binascii.Error, ValueError):
            return None
        return cosines if len(cosines) == len(pairs) else None

    def put(self, template: str, pairs: NDArray[np.intp], cosines: NDArray[np.float64]) -> None:
        """Keep the cosines of a template on these pairs; they are in the file when this returns."""
        encoded = base64.b64encode(cosines.astype("<f8").tobytes()).decode()
        key = _key(pairs)
        self._rows[template, key] = encoded
        self._path.parent.mkdir(parents=True, exist_ok=True)
        record = {"template": template, "pairs": key, "cosines": encoded}
        # a blank line first closes one that a kill cut short; one write, so that processes do not mix their lines
        start = "" if self._path.exists() else self._context
        line = f"{start}\n{json.dumps(record, ensure_ascii=False)}\n".encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        with open(descriptor, "ab", buffering=0) as file:
            file.write(line)

    def _take(self, line: str) -> None:
        try:
            record = json.loads(line)
            self._rows[record["template"], record["pairs"]] = record["cosines"]
        except (ValueError, KeyError, TypeError):  # the context, a blank line, or one cut short
            return


def _key(pairs: NDArray[np.intp]) -> str:
    return f"{len(pairs)}-{hashlib.sha256(np.asarray(pairs, dtype='<i8').tobytes()).hexdigest()[:16]}"
