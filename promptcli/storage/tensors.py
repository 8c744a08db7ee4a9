"""Tensors in a safetensors file.

Files are read by numpy and converted to torch on demand: code that needs only numbers does not load
torch. A full or failing disk is an OSError.
"""

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open

from promptcli.errors import CheckFailedError, PromptcliError, UsageError, join_lines

if TYPE_CHECKING:
    from torch import Tensor

#: Number types of safetensors that numpy has.
_NUMPY_TYPES = frozenset("F64 F32 F16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL".split())


class StoredTensors(Mapping[str, "Tensor"]):
    """The tensors of a file by name; each is made from its array on first access."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = arrays
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> "Tensor":
        import torch

        if name not in self._tensors:
            self._tensors[name] = torch.from_numpy(self.arrays[name])
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def arrays_of(tensors: "Mapping[str, Tensor]") -> Mapping[str, np.ndarray]:
    """Return tensors as arrays, by name; torch is not loaded for tensors of a file."""
    if isinstance(tensors, StoredTensors):
        return tensors.arrays
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


#: Metadata key of a sealed file, with the checksum of its tensors.
_SEAL = "sha256"


def save_tensors(
    tensors: "Mapping[str, Tensor]",
    path: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    sealed: bool = False,
) -> None:
    """Write tensors of any device and layout; ``sealed`` adds a checksum, see ``check_seal``."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if sealed:
        metadata = {**(metadata or {}), _SEAL: checksum(sorted(plain), plain.__getitem__)}
    path.touch()
    mode = path.stat().st_mode
    with disk_errors(path):
        save_file(plain, path, metadata=None if metadata is None else dict(metadata))
    # safetensors ignores the umask and makes its files readable only by their owner
    path.chmod(stat.S_IMODE(mode))


def checksum(names: Iterable[str], tensor: "Callable[[str], Tensor]") -> str:
    """Return the SHA-256 of the named tensors: types, shapes and values."""
    import torch

    digest = hashlib.sha256()
    for name in names:
        values = tensor(name)
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_seal(path: Path, *, hint: str) -> None:
    """Refuse a ``sealed`` file that has changed since it was written.

    Raises:
        UsageError: The message ends with ``hint``, the remedy.
    """
    with reading(path, hint=hint, error=UsageError), safe_open(path, framework="pt") as file:
        seal = (file.metadata() or {}).get(_SEAL)
        if seal is not None and seal != checksum(sorted(file.keys()), file.get_tensor):
            raise ValueError("its checksum differs")


def load_tensors(path: Path, *, hint: str) -> "dict[str, Tensor]":
    """Return the tensors of a file by name.

    Raises:
        UsageError: The file is damaged; the message ends with ``hint``, the remedy.
    """
    from safetensors.torch import load_file

    with reading(path, hint=hint, error=UsageError):
        return load_file(path)


def open_tensors(path: Path, *, hint: str) -> StoredTensors:
    """Return the tensors of a file without loading torch; refuse infinite numbers and NaN."""
    with reading(path, hint=hint):
        arrays = load_arrays(path)
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"its {name} holds numbers that are not finite")
    return StoredTensors(arrays)


def load_arrays(path: Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, all or some of them.

    Number types that numpy lacks (bfloat16) become float32.
    """
    with safe_open(path, framework="numpy") as file:
        names = names or list(file.keys())
        types = {file.get_slice(name).get_dtype() for name in names}
        if types <= _NUMPY_TYPES:
            return {name: file.get_tensor(name) for name in names}
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in names}
    return {
        name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        for name, tensor in tensors.items()
    }


@contextlib.contextmanager
def reading(
    path: Path, *, hint: str, error: type[PromptcliError] = CheckFailedError
) -> Iterator[None]:
    """Refuse a damaged file, whatever error its reader raises in the block.

    See ``typed_documents.read_document`` for ``hint`` and ``error``.
    """
    try:
        yield
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as problem:
        raise error(f"{path} is damaged ({join_lines(problem, 200)}); {hint}") from None


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn safetensors' exception into the OSError behind it, with its number and ``path``."""
    try:
        yield
    except SafetensorError as error:
        match = re.search(r"(?:code:|os error) (\d+)", str(error))
        number = int(match[1]) if match else errno.EIO
        raise OSError(number, os.strerror(number), str(path)) from None
