"""The folder of a resumable run: its settings, state and log.

The state is one safetensors file: weights, the optimiser's moments and the progress. The settings
and the step number determine batches, masks and dropout, so no state of a generator is stored.
"""

import contextlib
import json
import math
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn

from promptcli.errors import UsageError, if_stopped, short_repr
from promptcli.storage.files import atomic_path, delete_folder, write_text
from promptcli.storage.locks import claim
from promptcli.storage.tensors import check_seal, reading, save_tensors
from promptcli.storage.typed_documents import convert, read_document, to_json

Report = TypeVar("Report")

_STATE = ("step", "exp_avg", "exp_avg_sq")  #: AdamW's state of a parameter
_HASH = re.compile("[0-9a-f]{64}")


def check_same(
    stored: Mapping[str, Any], identity: Mapping[str, Any], what: str, elsewhere: str
) -> None:
    """Refuse an identity that differs from the stored one; the message shows no hashes.

    Args:
        stored: JSON-ready.
        identity: JSON-ready.
        what: Beginning of the message, which names the owner of the stored identity.
        elsewhere: End of the message, with the other remedies.
    """
    new: dict[str, Any] = json.loads(to_json(identity))
    for field in {**new, **stored}:
        old_value = stored.get(field)
        new_value = new.get(field)
        if old_value == new_value:
            continue
        name = field.replace("_", "-")
        difference = f"{name} {short_repr(old_value)}, not {short_repr(new_value)}"
        if _HASH.search(f"{old_value} {new_value}"):
            difference = f"other content ({name})"
        raise UsageError(f"{what} {difference}; use the same value, {elsewhere}")


@dataclass(frozen=True)
class _RunDocument:
    """The content of ``run.json``."""

    identity: dict[str, Any]  #: must be the same when the run is resumed
    settings: dict[str, Any]  #: a resumed run reads them here


class RunFolder:
    """The folder of a run, with its identity and its settings in ``run.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._document = folder / "run.json"
        #: exists while a process works on the run
        self.lock = folder.with_name(f".{folder.name}.lock")

    @property
    def has_begun(self) -> bool:
        return self._document.is_file()

    def read_settings(self) -> dict[str, Any]:
        """Return the settings with which the run began; {} if it has not begun."""
        return self._read().settings if self.has_begun else {}

    def _read(self) -> _RunDocument:
        hint = f"delete {self.folder}"
        return read_document(self._document, _RunDocument, hint=hint, error=UsageError)

    def claim(self, what: str, remedy: str) -> contextlib.AbstractContextManager[None]:
        """Keep other processes from the run while the block runs; see ``locks.claim``."""
        return claim(self.lock, what, remedy)

    def open(
        self,
        identity: Mapping[str, Any],
        *,
        resume: bool,
        name: Path,
        elsewhere: str,
        force: bool = False,
        settings: Mapping[str, Any] = {},
    ) -> None:
        """Begin a run, or check that it can be resumed with this JSON-ready identity.

        ``force`` begins it again. In messages, ``name`` is the folder's name, and ``elsewhere`` the
        other remedies, e.g. ``or another `output` ``.
        """
        if force and not resume:
            self.discard()
        if not self.has_begun:
            self.discard()  # a run that was killed while it began may have left files
            self.folder.mkdir(parents=True)
            try:
                document = {"identity": identity, "settings": settings}
                with if_stopped("nothing was begun"):
                    write_text(self._document, to_json(document, indent=1))
            except BaseException:  # e.g. a full disk: the run has not begun
                self.discard()
                raise
            return
        if not resume:
            raise UsageError(f"{name} holds an unfinished run; give resume=True, {elsewhere}")
        began_with = self._read().identity
        check_same(began_with, identity, f"the run in {name} was started with", elsewhere)

    def discard(self) -> None:
        if self.folder.exists():
            delete_folder(self.folder)


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run."""

    step: int = 0  #: number of completed steps
    seen: int = 0  #: number of tokens in pre-training, of examples in contrastive training
    seconds: float = 0.0  #: spent in steps, before and after resuming
    scored_at: int = 0  #: ``seen`` at the last development score
    losses: tuple[float, ...] = ()  #: of the steps since that score


def save_state(
    path: Path,
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    progress: RunProgress,
) -> None:
    """Write the state of a run atomically."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"weight.{name}"] = parameter
        for kind, value in optimizer.state[parameter].items():
            tensors[f"{kind}.{name}"] = value
    with atomic_path(path) as temporary:
        metadata = {"position": to_json(progress, indent=None)}
        save_tensors(tensors, temporary, metadata, sealed=True)


def load_state(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> RunProgress:
    """Load the state of a run into parameters and optimiser; return the progress."""
    start_again = f"delete {path.parent} and start again"
    check_seal(path, hint=start_again)
    is_fused = optimizer.param_groups[0].get("fused")
    with (
        reading(path, hint=start_again, error=UsageError),
        safe_open(path, framework="pt") as file,
        torch.no_grad(),
    ):
        progress = convert(json.loads(file.metadata()["position"]), RunProgress)
        stored = set(file.keys())
        for name, parameter in parameters.items():
            parameter.copy_(file.get_tensor(f"weight.{name}"))
            # a parameter without gradients has no state, e.g. an unused pooler
            if f"exp_avg.{name}" not in stored:
                continue
            for kind in _STATE:
                # only a fused optimiser counts its steps on the parameter's device
                device = "cpu" if kind == "step" and not is_fused else parameter.device
                value = file.get_tensor(f"{kind}.{name}")
                optimizer.state[parameter][kind] = value.to(device)
    return progress


def read_log(path: Path, kind: type[Report], until: float = math.inf) -> list[Report]:
    """Return the reports of a log up to a step; a line that a kill has cut is left out."""
    with reading(path, hint=f"delete {path.parent} and start again", error=UsageError):
        return [convert(json.loads(line), kind) for line in _lines(path, until)]


def truncate_log(path: Path, until: int) -> None:
    """Remove the reports after a step."""
    if path.is_file():
        with reading(path, hint=f"delete {path.parent} and start again", error=UsageError):
            lines = _lines(path, until)
        write_text(path, "".join(lines))


def _lines(path: Path, until: float) -> list[str]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= until]


@contextlib.contextmanager
def delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block, if Python handles them.

    In another thread it does nothing: signals interrupt only the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    for delayed in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(delayed)
        if callable(handler):
            handlers[delayed] = handler
            signal.signal(delayed, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in received[:1]:
            handlers[number](number, frame)
