"""Tensors as a safetensors file; a full or failing disk is an OSError."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from promptcli.errors import CheckFailedError, PromptcliError


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors of any device and layout."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode
    with disk_errors(path):
        save_file(plain, path, metadata=None if metadata is None else dict(metadata))
    # safetensors lets only the owner read its files, whatever the umask
    path.chmod(stat.S_IMODE(mode))


def load_tensors(
    path: Path, *, hint: str, error: type[PromptcliError] = CheckFailedError
) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    See ``documents.read_document`` for ``hint`` and ``error``.
    """
    try:
        return load_file(path)
    except (
        SafetensorError,
        RuntimeError,
        OSError,
    ) as problem:  # torch's own if the file is missing
        raise error(
            f"{path} is damaged: {str(problem).partition(chr(10))[0][:200]}; {hint}"
        ) from None


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn safetensors' own exception into the OSError that it hides, with its number and
    ``path``.
    """
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"(?:code:|os error) (\d+)", str(error))
        if match:
            number = int(match[1])
        else:
            number = errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None
