"""An encoder run by another library, as a graph.

A graph is made once and stored in a folder named by the encoder's fingerprint; each time it is
opened, its vectors of some probes are compared with torch's in float32.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import promptcli
from promptcli import errors
from promptcli.backbones import devices
from promptcli.backbones.transformers_loading import opening
from promptcli.encoder.encoder import Graph, TorchEncoder, build_encoder
from promptcli.errors import UsageError
from promptcli.models import parity
from promptcli.models.loading import build_torch
from promptcli.notes import note
from promptcli.plugins.graphs.graph_files import DEMO_SENTENCES, RunGraph, batch_of
from promptcli.recipe import Recipe
from promptcli.storage.files import write_folder

#: Number of rows that repays making a graph: measured on a model of 6 layers, 384 wide.
WORTHWHILE = 50_000
#: Largest difference of a float32 graph from torch's vectors, as a share of the largest number.
LARGEST_DIFFERENCE = 1e-5
#: Lowest cosine of a bfloat16 graph to torch's float32 vectors.
LOWEST_COSINE = 0.9999
#: Lowest mean cosine of an 8-bit graph to torch's float32 vectors, unless dtype int8 is requested.
LOWEST_MEAN = 0.97


def choose_backend(
    installed: Collection[str], *, device: str, bfloat16: bool, rows: int | None
) -> tuple[str, str]:
    """Return the backend that ``auto`` chooses on a device for a number of rows (None: unknown),
    and the reason.
    """
    known = "the number of rows is unknown" if rows is None else f"{rows:,} rows"
    if device != "cpu":
        return "torch", "graphs run on CPUs, not on a GPU"
    if rows is None or rows < WORTHWHILE:
        return "torch", f"{known}; a graph pays from {WORTHWHILE:,} rows on"
    if not bfloat16:
        return "torch", "without bfloat16 arithmetic no graph is faster in float32"
    if "openvino" not in installed:
        return "torch", f"OpenVINO is not installed: {errors.install_command('openvino')}"
    return "openvino", f"{known}, a CPU with bfloat16 arithmetic"


@dataclass(frozen=True)
class GraphBackend:
    """A library that runs an encoder as a graph, on a CPU."""

    name: str
    libraries: tuple[str, ...]  #: the modules it imports
    dtypes: tuple[str, ...]  #: its precisions; the first is used for ``stored``
    #: writes the graph to a folder, given sentences like the user's
    write: Callable[[TorchEncoder, Path, Sequence[str]], object]
    load: Callable[[Path, str], RunGraph]

    def __call__(
        self,
        recipe: Recipe,
        *,
        folder: Path,
        rows: int | None,
        calibration: Iterable[str],
        device: str = "auto",
        dtype: str = "auto",
        **options: Any,
    ) -> TorchEncoder:
        """Make the encoder of a recipe, run by graphs stored in a folder.

        Graphs run on the CPU. dtype ``auto`` uses bfloat16 if the CPU supports it and its vectors
        are close enough to float32's; ``int8`` uses 8 bits whatever the loss. ``openvino-int8``
        measures its ranges on the sentences of ``calibration``.
        """
        errors.require(*self.libraries, extra=self.name.partition("-")[0])
        if device not in ("auto", "cpu"):
            raise UsageError(
                f"backend {self.name} runs on the CPU, not on {device!r}", parameter="device"
            )
        encoder = build_encoder(recipe, device="cpu", dtype="float32", **options)
        precisions = _dtypes(self, dtype)
        sentences: list[str] = []
        if "int8" in precisions:  # lazy: a file may be long
            sentences = list(islice(calibration, DEMO_SENTENCES))
        lowest_mean = -1.0 if dtype == "int8" else LOWEST_MEAN
        graphs = [
            _graph_of(member, self, folder, precisions, sentences, lowest_mean)
            for member in encoder.prompt_encoders
        ]
        return TorchEncoder(
            encoder.recipe,
            encoder.backbone,
            encoder.tensors(),
            leading=encoder.leading,
            name=encoder.name,
            graphs=graphs,
        )


@dataclass(frozen=True)
class AutoBackend:
    """``auto``: a graph library if a graph pays, else torch."""

    library: GraphBackend

    def __call__(self, recipe: Recipe, *, rows: int | None, **options: Any) -> TorchEncoder:
        """Return the encoder of a recipe; a note names the chosen backend and the reason."""
        installed = [] if errors.missing_libraries(*self.library.libraries) else [self.library.name]
        backend, why = choose_backend(
            installed,
            device=devices.choose_device(options.get("device", "auto")),
            bfloat16=devices.computes(torch.bfloat16, "cpu"),
            rows=rows,
        )
        note(f"backend {backend}: {why}")
        build = build_torch if backend == "torch" else self.library
        return build(recipe, rows=rows, **options)


def _dtypes(backend: GraphBackend, wanted: str) -> tuple[str, ...]:
    """Return the precisions to try, first to last."""
    usual = backend.dtypes[0]
    if wanted == "stored":
        return (usual,)
    if wanted == "auto":
        preferred = str(devices.choose_dtype("auto", "cpu")).removeprefix("torch.")
        return tuple(dict.fromkeys([preferred if preferred in backend.dtypes else usual, usual]))
    if wanted not in backend.dtypes:
        raise UsageError(
            f"backend {backend.name} computes in {' or '.join(backend.dtypes)}, not {wanted}",
            parameter="dtype",
        )
    return (wanted,)


def _graph_of(
    encoder: TorchEncoder,
    backend: GraphBackend,
    folder: Path,
    dtypes: tuple[str, ...],
    calibration: Sequence[str],
    lowest_mean: float,
) -> Graph:
    """Return an encoder's graph in the first precision that is close enough; a missing graph is
    made.
    """
    if encoder.averaged_matrix() is not None:
        raise UsageError(
            f"recipe {encoder.recipe.prompt} {encoder.recipe.pooling} averages rows of a table,"
            " which no backend does faster; leave it out",
            parameter="backend",
        )
    graph = folder / f"{encoder.fingerprint[:32]}-{backend.name}-{promptcli.__version__}"
    if not graph.is_dir():
        note(f"making a graph for {backend.name}, stored in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        with write_folder(graph) as temporary, opening(f"the graph for {backend.name}"):
            backend.write(encoder, temporary, calibration)
    wanted = encoder.encode(parity.PROBES)
    batch = batch_of(encoder.inputs(parity.PROBES).ids, encoder)
    for dtype in dtypes:
        with opening(f"{graph}, a graph that may be deleted,"):
            run = backend.load(graph, dtype)
            fault = _fault(dtype, wanted, run(batch), lowest_mean)
        if not fault:
            return Graph(run, {"dtype": dtype, "backend": backend.name})
        if dtype != dtypes[-1]:
            note(f"backend {backend.name}: {fault}; taking {dtypes[-1]}")
    remedy = "int8 to use them all the same" if dtype == "int8" else "float32"
    raise errors.CheckFailedError(
        f"{backend.name}: {fault}; leave it out, or give dtype {remedy}", parameter="backend"
    )


def _fault(dtype: str, wanted: np.ndarray, vectors: np.ndarray, lowest_mean: float) -> str:
    """Return how far a graph's vectors are from torch's; empty if they are close."""
    difference = np.abs(wanted - vectors).max() / np.abs(wanted).max()
    cosines = parity.row_cosines(wanted, vectors)
    if dtype == "float32" and not difference <= LARGEST_DIFFERENCE:
        return f"float32 vectors differ from torch's by {difference:.1e}"
    if dtype == "bfloat16" and not cosines.min() >= LOWEST_COSINE:
        return f"bfloat16 vectors have cosines of only {cosines.min():.5f}"
    if dtype == "int8" and not cosines.mean() >= lowest_mean:
        return f"8-bit vectors have a mean cosine of only {cosines.mean():.4f}"
    return ""
