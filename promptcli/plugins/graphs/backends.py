"""Backends that compute an encoder: torch, or another library that runs the encoder as a graph.

A graph is made once and kept in a folder named by the encoder's fingerprint; whenever it is opened,
its vectors of some probes are compared with torch's in float32.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import promptcli
from promptcli.backbones.checking import opening
from promptcli.backbones.devices import choose_device, choose_dtype, computes
from promptcli.encoder.encoder import PromptEncoder, TorchEncoder, build_encoder, make_encoder
from promptcli.encoder.streams import Graph
from promptcli.errors import (
    CheckFailedError,
    UsageError,
    install_command,
    missing_libraries,
    require,
    unknown,
)
from promptcli.models.sentence_transformers_format import PARITY_PROBES, row_cosines
from promptcli.notes import keyword, note
from promptcli.plugins.graphs import graph_files as onnx
from promptcli.plugins.graphs.graph_files import DEMO_SENTENCES, RunGraph
from promptcli.recipe import Recipe
from promptcli.storage.folders import write_folder

#: Rows from which making a graph pays: measured on a model of 6 layers, 384 wide.
WORTHWHILE = 50_000
#: Largest difference of a float32 graph from torch's vectors, as a share of the largest number.
LARGEST_DIFFERENCE = 1e-5
#: Lowest cosine of a bfloat16 graph to torch's float32 vectors.
LOWEST_COSINE = 0.9999
#: Lowest mean cosine of an 8-bit graph to torch's float32 vectors, unless dtype int8 is asked for.
LOWEST_MEAN = 0.97


@dataclass(frozen=True)
class Backend:
    """One way to compute an encoder."""

    libraries: tuple[str, ...]  #: the modules it imports
    dtypes: tuple[str, ...]  #: its precisions, the one for ``stored`` first
    #: fills a folder, given sentences like the user's
    write: Callable[[TorchEncoder, Path, Sequence[str]], object]
    load: Callable[[Path, str], RunGraph]


def choose_backend(
    installed: Collection[str], *, bfloat16: bool, rows: int | None
) -> tuple[str, str]:
    """Return the backend that ``auto`` means for a number of rows (None: unknown), and the
    reason.
    """
    if rows is None:
        known = "the number of rows is unknown"
    else:
        known = f"{rows:,} rows"
    if rows is None or rows < WORTHWHILE:
        return "torch", f"{known}; a graph pays from {WORTHWHILE:,} on"
    if not bfloat16:
        return "torch", "without bfloat16 arithmetic no graph is faster in float32"
    if "openvino" not in installed:
        return "torch", f"OpenVINO is not installed: {install_command('openvino')}"
    return "openvino", f"{known}, a CPU with bfloat16 arithmetic"


def build_on(
    backend: str,
    recipe: Recipe,
    *,
    folder: Path,
    rows: int | None = None,
    calibration: Iterable[str] = (),
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> TorchEncoder:
    """Make the encoder of a recipe, computed by a backend: a name of ``BACKENDS``, ``torch`` or
    ``auto``.

    Graphs are kept in ``folder`` and run on the CPU; ``rows`` to encode decide for ``auto``;
    ``openvino-int8`` measures its ranges on the sentences of ``calibration``. The options are those
    of ``build_encoder``; dtype ``auto`` takes bfloat16 if the CPU computes in it and its
    vectors are close enough to float32's, ``int8`` takes 8 bits whatever they lose.
    """
    if backend == "auto":
        backend = "torch"
        why = "graphs run on CPUs, not on a GPU"
        if choose_device(device) == "cpu":
            installed = [
                name for name, row in BACKENDS.items() if not missing_libraries(*row.libraries)
            ]
            backend, why = choose_backend(
                installed, bfloat16=computes(torch.bfloat16, "cpu"), rows=rows
            )
        note(f"backend {backend}: {why}")
    if backend == "torch":
        return build_encoder(recipe, device=device, dtype=dtype, **options)
    if backend not in BACKENDS:
        raise unknown("backend", backend, [*BACKENDS, "torch", "auto"])
    require(*BACKENDS[backend].libraries, extra=backend.partition("-")[0])
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"backend {backend} runs on the CPU, not on {device!r}; leave out {keyword('device')},"
            f" or {keyword('backend')}"
        )
    encoder = build_encoder(recipe, device="cpu", dtype="float32", **options)
    precisions = _dtypes(backend, dtype)
    # lazy: a file may be long
    if "int8" in precisions:
        calibration = list(islice(calibration, DEMO_SENTENCES))
    else:
        calibration = ()
    lowest_mean = -1.0 if dtype == "int8" else LOWEST_MEAN
    graphs = [
        _graph_of(member, backend, folder, precisions, calibration, lowest_mean)
        for member in encoder.parts
    ]
    return make_encoder(
        encoder.recipe, encoder.backbone, encoder.tensors(), leading=encoder.leading, graphs=graphs
    )


def _dtypes(backend: str, wanted: str) -> tuple[str, ...]:
    has = BACKENDS[backend].dtypes
    if wanted == "auto":
        preferred = str(choose_dtype("auto", "cpu")).removeprefix("torch.")
        if preferred in has and preferred != has[0]:
            return (preferred, has[0])
        return has[:1]
    if wanted != "stored" and wanted not in has:
        raise UsageError(
            f"backend {backend} computes in {' or '.join(has)}, not {wanted}; leave out"
            f" {keyword('dtype')}"
        )
    if wanted == "stored":
        return has[:1]
    return (wanted,)


def _graph_of(
    encoder: PromptEncoder,
    backend: str,
    folder: Path,
    dtypes: tuple[str, ...],
    calibration: Sequence[str],
    lowest_mean: float,
) -> Graph:
    """Return an encoder's graph, made if it is missing, in the first precision that is close
    enough.
    """
    if encoder.averaged_rows() is not None:
        raise UsageError(
            f"recipe {encoder.recipe.prompt} {encoder.recipe.pooling} averages rows of a table,"
            f" which no backend does faster; leave out {keyword('backend')}"
        )
    chosen = BACKENDS[backend]
    graph = folder / f"{encoder.fingerprint[:32]}-{backend}-{promptcli.__version__}"
    if not graph.is_dir():
        note(f"making a graph for {backend}, kept in {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        with write_folder(graph) as temporary, opening(f"the graph for {backend}"):
            chosen.write(encoder, temporary, calibration)
    wanted = encoder.encode(PARITY_PROBES)
    batch = onnx.batch_of(encoder.inputs(PARITY_PROBES).rows, encoder)
    for dtype in dtypes:
        with opening(f"{graph}, a graph that may be deleted,"):
            run = chosen.load(graph, dtype)
            fault = _fault(dtype, wanted, run(batch), lowest_mean)
        if fault is None:
            return Graph(run, {"dtype": dtype, "backend": backend})
        if dtype != dtypes[-1]:
            note(f"backend {backend}: {fault}; taking {dtypes[-1]}")
    remedy = "int8 to use them all the same" if dtype == "int8" else "float32"
    raise CheckFailedError(
        f"backend {backend}: {fault}; leave out {keyword('backend')}, or give {keyword('dtype')}"
        f" {remedy}"
    )


def _fault(dtype: str, wanted: np.ndarray, vectors: np.ndarray, lowest_mean: float) -> str | None:
    difference = np.abs(wanted - vectors).max() / np.abs(wanted).max()
    cosines = row_cosines(wanted, vectors)
    close, fault = {
        "float32": (
            difference <= LARGEST_DIFFERENCE,
            f"float32 vectors differ from torch's by {difference:.1e}",
        ),
        "bfloat16": (
            cosines.min() >= LOWEST_COSINE,
            f"bfloat16 vectors have cosines of only {cosines.min():.5f}",
        ),
        "int8": (
            cosines.mean() >= lowest_mean,
            f"8-bit vectors have a mean cosine of only {cosines.mean():.4f}",
        ),
    }[dtype]
    return None if close else fault


def _write_onnx_int8(encoder: TorchEncoder, folder: Path, _: Sequence[str]) -> None:
    onnx.write_graph(encoder, folder)
    note(f"onnx-int8: {onnx.quantise(encoder, folder)}")
    (folder / onnx.ONNX_FILE).unlink()


def _write_openvino_int8(encoder: TorchEncoder, folder: Path, calibration: Sequence[str]) -> None:
    source = f"{DEMO_SENTENCES} of your sentences"
    if len(calibration) < DEMO_SENTENCES:
        source = f"demo sentences ({len(calibration)} of yours are too few, give {DEMO_SENTENCES})"
        calibration = onnx.demo_sentences()
    onnx.write_openvino(encoder, folder, calibration)
    loss = onnx.loss_of(onnx.load_openvino(folder), folder, encoder)
    note(f"openvino-int8: calibrated on {source}; {loss}")


_EXPORT = ("onnx", "onnxscript")

BACKENDS: dict[str, Backend] = {
    "openvino": Backend(
        (*_EXPORT, "openvino"), ("float32", "bfloat16"), onnx.write_openvino, onnx.load_openvino
    ),
    "openvino-int8": Backend(
        (*_EXPORT, "openvino", "nncf"), ("int8",), _write_openvino_int8, onnx.load_openvino
    ),
    "onnx": Backend(
        (*_EXPORT, "onnxruntime"),
        ("float32",),
        lambda encoder, folder, _: onnx.write_graph(encoder, folder),
        onnx.load_onnx,
    ),
    "onnx-int8": Backend(
        (*_EXPORT, "onnxruntime"),
        ("int8",),
        _write_onnx_int8,
        partial(onnx.load_onnx, file=onnx.SMALL),
    ),
}
