"""The folder of a run that resumes after a kill: what it is, how far it is, and its log.

The state is one safetensors file: weights, the optimiser's moments, and how far the run is. Batches, masks and dropout
follow from the run's identity and the step's number, so no generator's state needs keeping. The log has a line for each
report; lines of steps that the state does not know of are cut off when the run resumes.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from promptcli.errors import UsageError
from promptcli.storage.documents import read_document, shown, to_json
from promptcli.storage.files import atomic_path, remove_folder, remove_leftovers, write_text
from promptcli.storage.tensors import save_tensors

Report = TypeVar("Report")

_ADAMW = ("exp_avg", "exp_avg_sq")
_MUON = ("momentum_buffer",)


class RunFolder:
    """The folder of a run; its file ``identity`` holds all that must be the same when the run is resumed."""

    def __init__(self, folder: Path, identity: str = "run.json") -> None:
        self.folder = folder
        self._identity = folder / identity

    @property
    def begun(self) -> bool:
        """Whether there is a run."""
        return self._identity.is_file()

    def open(
        self, identity: Mapping[str, Any], *, resume: bool, name: Path, elsewhere: str, ignored: Collection[str] = ()
    ) -> dict[str, Any]:
        """Begin a run, or check that the one in the folder is the one to resume; return the identity in force.

        Args:
            identity: JSON-ready.
            resume: Resume the run in the folder.
            name: What messages call the folder.
            elsewhere: What to do to run elsewhere, e.g. ``give another --output``.
            ignored: Fields that may differ; the stored ones hold.

        Raises:
            UsageError: A run is there and ``resume`` is not asked for, none is there and it is, or a field differs.
        """
        wanted: dict[str, Any] = json.loads(to_json(identity))
        if not self.begun:
            if resume:
                raise UsageError(f"no unfinished run in {name}; leave out `resume` to start one")
            remove_leftovers(self.folder.parent, self.folder.name)
            if self.folder.exists():  # of a run that was killed while it began
                self.remove()
            self.folder.mkdir(parents=True)
            self.keep(wanted)
            return wanted
        if not resume:
            raise UsageError(
                f"{name} holds an unfinished run; resume it by `resume`, or {elsewhere}; or delete it to start over"
            )
        hint = f"delete {self.folder}, or {elsewhere}"
        stored = read_document(self._identity, dict[str, Any], hint=hint, error=UsageError)
        for field in [*wanted, *(field for field in stored if field not in wanted)]:
            if field not in ignored and stored.get(field) != wanted.get(field):
                raise UsageError(
                    f"the run in {name} was started with {field.replace('_', '-')} {shown(stored.get(field))}, not"
                    f" {shown(wanted.get(field))}; resume with its own settings, or {elsewhere}"
                )
        return stored

    def keep(self, identity: Mapping[str, Any]) -> None:
        """Replace the identity."""
        write_text(self._identity, to_json(identity, indent=1))

    def remove(self) -> None:
        """Delete the folder so that the run is gone at once, not file by file."""
        remove_folder(self.folder)


@dataclass(frozen=True)
class Position:
    """How far a run is."""

    step: int = 0  #: Steps done.
    seen: int = 0  #: Tokens seen in pre-training, examples in contrastive training.
    seconds: float = 0.0  #: Time spent in steps, over all sittings.


def save_state(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, position: Position
) -> None:
    """Write the state, whole or not at all."""
    tensors: dict[str, Tensor] = {f"weight.{name}": parameter.detach() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        kept = optimizer.state[parameter]
        tensors |= {f"{moment}.{name}": kept[moment] for moment in (*_ADAMW, *_MUON) if moment in kept}
    about = {"step": str(position.step), "seen": str(position.seen), "seconds": repr(position.seconds)}
    with atomic_path(path) as temporary:
        save_tensors(tensors, temporary, about)


def load_state(path: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Position:
    """Read the state into parameters and optimiser; return how far the run is.

    Raises:
        UsageError: The file is broken, or of a model of another shape.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about, there = file.metadata(), set(file.keys())
            fused = {one for group in optimizer.param_groups if group.get("fused") for one in group["params"]}
            for name, parameter in parameters.items():
                kinds = _MUON if f"{_MUON[0]}.{name}" in there else _ADAMW
                stored = {kind: file.get_tensor(f"{kind}.{name}") for kind in ("weight", *kinds)}
                if stored["weight"].shape != parameter.shape:
                    raise UsageError(
                        f"{path} holds {name} of shape {tuple(stored['weight'].shape)}, this model has"
                        f" {tuple(parameter.shape)}; resume with the settings that it was started with"
                    )
                with torch.no_grad():
                    parameter.copy_(stored["weight"])
                moments: dict[str, Any] = {moment: stored[moment].to(parameter.device) for moment in kinds}
                # a fused optimiser counts its steps on the parameter's own device, another one on the processor
                where = parameter.device if parameter in fused else "cpu"
                steps = torch.tensor(float(about["step"]), device=where)
                optimizer.state[parameter] = {"step": steps, **moments}
            return Position(int(about["step"]), int(about["seen"]), float(about["seconds"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise UsageError(f"{path} is no state of this run ({reason}); delete {path.parent} and start again") from None


def log_until(path: Path, steps: int, kind: type[Report]) -> list[tuple[str, Report]]:
    """Return a log's lines, as they are and read, up to the state's step; a line that a kill cut short is left out.

    Raises:
        UsageError: a line is not what the run wrote.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.is_file() else []
    whole = [line for line in lines if line.endswith("\n") and _parse_line(path, line, _Step).step <= steps]
    return [(line, _parse_line(path, line, kind)) for line in whole]


def truncate_log(path: Path, kept: Sequence[tuple[str, Any]]) -> None:
    """Leave no more in a log than ``log_until`` returned of it."""
    if path.is_file():
        write_text(path, "".join(line for line, _ in kept))


def read_log(path: Path, kind: type[Report]) -> list[Report]:
    """Return the lines of a log or of another JSONL file of a run, each checked against its dataclass.

    Raises:
        UsageError: a line is not what the run wrote.
    """
    if not path.is_file():
        return []
    return [_parse_line(path, line, kind) for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]


@dataclass(frozen=True)
class _Step:
    step: int


def _parse_line(path: Path, line: str, kind: type[Report]) -> Report:
    return read_document(path, kind, hint=f"delete {path.parent} and start again", error=UsageError, content=line)
