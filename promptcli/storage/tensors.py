"""Tensors as a safetensors file. What the library raises where a disk is full or fails becomes an OSError."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from promptcli.errors import CheckFailedError, PromptcliError


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors of whatever device and layout.

    Raises:
        OSError: The file could not be written; with the reason's number.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with disk_errors(path):
        save_file(whole, path, metadata=None if metadata is None else dict(metadata))


def load_tensors(path: Path, *, hint: str, error: type[PromptcliError] = CheckFailedError) -> dict[str, Tensor]:
    """Return the tensors of a file by name; ``hint`` and ``error`` are those of ``documents.read_document``.

    Raises:
        PromptcliError: of class ``error``: the file is not there, or damaged.
    """
    try:
        return load_file(path)
    except (SafetensorError, RuntimeError, OSError) as problem:  # torch's own for a file that is gone
        raise error(f"{path} is damaged: {str(problem).partition(chr(10))[0][:200]}; {hint}") from None


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn safetensors' own exception into the OSError that it hides, with its number and ``path``."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"(?:code:|os error) (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None
