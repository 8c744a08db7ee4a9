"""An encoder as a graph, which another library runs.

A graph is made once and stored in a folder, which is named after the encoder's fingerprint. Each
time the graph is opened, its vectors of some probes are compared with those of torch in float32.
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

#: A graph pays off from this number of rows on: measured on a model of 6 layers, 384 wide.
MIN_ROWS = 50_000
#: Between the vectors of a float32 graph and of torch, as a share of the largest number.
MAX_DIFFERENCE = 1e-5
MIN_COSINE = 0.9999  #: between a bfloat16 graph's vector and torch's float32 vector
#: Between an 8-bit graph's vectors and torch's float32 vectors, unless dtype int8 is requested.
MIN_MEAN_COSINE = 0.97


def choose_backend(
    installed: Collection[str], *, device: str, bfloat16: bool, rows: int | None
) -> tuple[str, str]:
    """Return the backend that ``auto`` chooses on a device for a number of rows (None: unknown),
    and the reason.
    """
    row_count = "the number of rows is unknown" if rows is None else f"{rows:,} rows"
    if device != "cpu":
        return "torch", "graphs run on CPUs, not on a GPU"
    if rows is None or rows < MIN_ROWS:
        return "torch", f"{row_count}; a graph pays off from {MIN_ROWS:,} rows on"
    if not bfloat16:
        return "torch", "without bfloat16 arithmetic no graph is faster in float32"
    if "openvino" not in installed:
        return "torch", f"OpenVINO is not installed: {errors.install_command('openvino')}"
    return "openvino", f"{row_count}, a CPU with bfloat16 arithmetic"


@dataclass(frozen=True)
class GraphBackend:
    """A library that runs an encoder as a graph, on a CPU."""

    name: str
    libraries: tuple[str, ...]  #: the modules that it imports
    dtypes: tuple[str, ...]  #: its precisions; dtype ``stored`` takes the first
    #: Writes the graph of an encoder to a folder, calibrated on sentences.
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
        """Return the encoder of a recipe, computed by graphs that a folder stores.

        Graphs run on the CPU. dtype ``auto`` takes bfloat16 if the CPU computes in it and if the
        vectors are close enough to those in float32; ``int8`` takes 8 bits, however much is lost.
        ``openvino-int8`` measures its ranges on the sentences of ``calibration``.
        """
        errors.require_libraries(*self.libraries, extra=self.name.partition("-")[0])
        if device not in ("auto", "cpu"):
            raise UsageError(
                f"backend {self.name} runs on the CPU, not on {device!r}", parameter="device"
            )
        encoder = build_encoder(recipe, device="cpu", dtype="float32", **options)
        precisions = _dtypes(self, dtype)
        sentences: list[str] = []
        if "int8" in precisions:  # only then is the file, which may be long, read
            sentences = list(islice(calibration, DEMO_SENTENCES))
        min_mean_cosine = -1.0 if dtype == "int8" else MIN_MEAN_COSINE
        graphs = [
            _graph_of(member, self, folder, precisions, sentences, min_mean_cosine)
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
    """``auto``: a graph library if a graph pays off, else torch."""

    library: GraphBackend

    def __call__(self, recipe: Recipe, *, rows: int | None, **options: Any) -> TorchEncoder:
        """Return the encoder of a recipe; note the backend and the reason."""
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


def _dtypes(backend: GraphBackend, dtype: str) -> tuple[str, ...]:
    """Return the precisions to try, in this order."""
    default = backend.dtypes[0]
    if dtype == "stored":
        return (default,)
    if dtype == "auto":
        fastest = str(devices.choose_dtype("auto", "cpu")).removeprefix("torch.")
        if fastest in backend.dtypes and fastest != default:
            return (fastest, default)
        return (default,)
    if dtype not in backend.dtypes:
        raise UsageError(
            f"backend {backend.name} computes in {' or '.join(backend.dtypes)}, not {dtype}",
            parameter="dtype",
        )
    return (dtype,)


def _graph_of(
    encoder: TorchEncoder,
    backend: GraphBackend,
    folder: Path,
    dtypes: tuple[str, ...],
    calibration: Sequence[str],
    min_mean_cosine: float,
) -> Graph:
    """Return an encoder's graph in the first precision that is close enough to torch; make the
    graph if it does not exist.
    """
    if encoder.averaged_matrix() is not None:
        raise UsageError(
            f"recipe {encoder.recipe.prompt} {encoder.recipe.pooling} averages rows of a table, and"
            " no backend does this faster; leave it out",
            parameter="backend",
        )
    graph = folder / f"{encoder.fingerprint[:32]}-{backend.name}-{promptcli.__version__}"
    if not graph.is_dir():
        note(f"making a graph for {backend.name}, stored in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        with write_folder(graph) as temporary, opening(f"the graph for {backend.name}"):
            backend.write(encoder, temporary, calibration)
    expected = encoder.encode(parity.PROBES)
    batch = batch_of(encoder.inputs(parity.PROBES).ids, encoder)
    for dtype in dtypes:
        with opening(f"{graph}, a graph that may be deleted,"):
            run = backend.load(graph, dtype)
            fault = _fault(dtype, expected, run(batch), min_mean_cosine)
        if not fault:
            return Graph(run, {"dtype": dtype, "backend": backend.name})
        if dtype != dtypes[-1]:
            note(f"backend {backend.name}: {fault}; taking {dtypes[-1]}")
    remedy = "int8 to use them nevertheless" if dtype == "int8" else "float32"
    raise errors.CheckFailedError(
        f"{backend.name}: {fault}; leave it out, or give dtype {remedy}", parameter="backend"
    )


def _fault(dtype: str, expected: np.ndarray, vectors: np.ndarray, min_mean_cosine: float) -> str:
    """Say how far a graph's vectors are from torch's; "" if they are close."""
    cosines = parity.row_cosines(expected, vectors)
    if dtype == "float32":
        difference = np.abs(expected - vectors).max() / np.abs(expected).max()
        if not difference <= MAX_DIFFERENCE:
            return f"float32 vectors differ from torch's by {difference:.1e}"
    if dtype == "bfloat16" and not cosines.min() >= MIN_COSINE:
        return f"bfloat16 vectors have cosines of only {cosines.min():.5f}"
    if dtype == "int8" and not cosines.mean() >= min_mean_cosine:
        return f"8-bit vectors have a mean cosine of only {cosines.mean():.4f}"
    return ""
