"""Measured figures kept on disk, by all that decides them, so that a killed run goes on. Knows no model."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import promptcli
from promptcli.reproducing.published import Value
from promptcli.storage.files import atomic_path, write_text


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        value: In the unit of its column.
        ci95: 95% interval, where there is one.
        on: Names of the data it was measured on.
    """

    value: Value
    ci95: tuple[float, float] | None = None
    on: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as JSON-ready values."""
        return {"value": self.value, "ci95": None if self.ci95 is None else list(self.ci95), "on": list(self.on)}


def rounded(value: float, ci95: tuple[float, float] | None, on: tuple[str, ...]) -> Figure:
    """Return a measured figure with the four decimals that results keep."""
    return Figure(round(value, 4), None if ci95 is None else (round(ci95[0], 4), round(ci95[1], 4)), on)


class FigureCache:
    """A folder with one file per system, measure and data, and one per trained system; deleting it loses but time.

    A ``fresh`` one gives back only what it was given itself: everything is measured again, once.
    """

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self._folder, self._fresh = folder, fresh
        self._own: set[Path] = set()

    def get(self, key: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what was kept under a key, or None."""
        path = self._path(key)
        if self._fresh and path not in self._own:
            return None
        try:
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["kept"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return kept

    def put(self, key: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
        """Keep JSON-ready values; they are in the file when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._own.add(self._path(key))
        write_text(self._path(key), json.dumps({"key": key, "kept": kept}, ensure_ascii=False) + "\n")

    def get_tensors(self, key: Mapping[str, Any]) -> dict[str, Tensor] | None:
        """Return the tensors that were kept under a key, or None."""
        path = self._path(key, ".safetensors")
        if (self._fresh and path not in self._own) or not path.is_file():
            return None
        try:
            return load_file(path)
        except (OSError, SafetensorError):
            return None

    def put_tensors(self, key: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors; they are in the file when this returns."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key, ".safetensors")
        self._own.add(path)
        with atomic_path(path) as temporary:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)

    def _path(self, key: Mapping[str, Any], suffix: str = ".json") -> Path:
        line = json.dumps({"promptcli": promptcli.__version__, **key}, sort_keys=True, ensure_ascii=False)
        return self._folder / f"{hashlib.sha256(line.encode()).hexdigest()[:32]}{suffix}"
