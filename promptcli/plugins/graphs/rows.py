"""What this plug-in adds to the table of backends; the work is imported on use."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli import errors
from promptcli.notes import note
from promptcli.plugins.graphs.graph_library import GraphLibrary

if TYPE_CHECKING:
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.plugins.graphs.graph_files import RunGraph
    from promptcli.recipe import Recipe


class GraphBackend(GraphLibrary):
    """A backend that computes an encoder as a graph, on a CPU."""

    def build(
        self,
        recipe: "Recipe",
        *,
        folder: Path,
        rows: int | None,
        calibration: Iterable[str],
        **options: Any,
    ) -> "TorchEncoder":
        """Return the encoder of a recipe, computed by graphs that are kept in a folder."""
        errors.require(*self.libraries, extra=self.name.partition("-")[0])
        from promptcli.plugins.graphs.backends import build_as_graph

        return build_as_graph(self, recipe, folder=folder, calibration=calibration, **options)


_EXPORT = ("onnx", "onnxscript")


def _write_onnx(encoder: "TorchEncoder", folder: Path, calibration: Sequence[str]) -> None:
    from promptcli.plugins.graphs.graph_files import write_graph

    write_graph(encoder, folder)


def _load_onnx(folder: Path, dtype: str) -> "RunGraph":
    from promptcli.plugins.graphs.graph_files import load_onnx

    return load_onnx(folder)


def _write_onnx_int8(encoder: "TorchEncoder", folder: Path, calibration: Sequence[str]) -> None:
    from promptcli.plugins.graphs.graph_files import write_onnx_int8

    write_onnx_int8(encoder, folder)


def _load_onnx_int8(folder: Path, dtype: str) -> "RunGraph":
    from promptcli.plugins.graphs.graph_files import SMALL, load_onnx

    return load_onnx(folder, SMALL)


def _write_openvino(encoder: "TorchEncoder", folder: Path, calibration: Sequence[str]) -> None:
    from promptcli.plugins.graphs.graph_files import write_openvino

    write_openvino(encoder, folder)


def _write_openvino_int8(encoder: "TorchEncoder", folder: Path, calibration: Sequence[str]) -> None:
    from promptcli.plugins.graphs.graph_files import write_openvino_int8

    write_openvino_int8(encoder, folder, calibration)


def _load_openvino(folder: Path, dtype: str) -> "RunGraph":
    from promptcli.plugins.graphs.graph_files import load_openvino

    return load_openvino(folder, dtype)


ONNX = GraphBackend("onnx", (*_EXPORT, "onnxruntime"), ("float32",), _write_onnx, _load_onnx)
ONNX_INT8 = GraphBackend(
    "onnx-int8", (*_EXPORT, "onnxruntime"), ("int8",), _write_onnx_int8, _load_onnx_int8
)
OPENVINO = GraphBackend(
    "openvino", (*_EXPORT, "openvino"), ("float32", "bfloat16"), _write_openvino, _load_openvino
)
OPENVINO_INT8 = GraphBackend(
    "openvino-int8",
    (*_EXPORT, "openvino", "nncf"),
    ("int8",),
    _write_openvino_int8,
    _load_openvino,
)


class AutoBackend:
    """``auto``: OpenVINO where a graph pays, else torch."""

    def build(
        self,
        recipe: "Recipe",
        *,
        folder: Path,
        rows: int | None,
        calibration: Iterable[str],
        **options: Any,
    ) -> "TorchEncoder":
        """Return the encoder of a recipe; a note says what was chosen, and why."""
        from promptcli.encoder.encoder import build_encoder
        from promptcli.plugins.graphs.backends import why_auto

        graphs = (OPENVINO, OPENVINO_INT8, ONNX, ONNX_INT8)
        installed = [row.name for row in graphs if not errors.missing_libraries(*row.libraries)]
        backend, why = why_auto(options.get("device", "auto"), installed, rows)
        note(f"backend {backend}: {why}")
        if backend == "torch":
            return build_encoder(recipe, **options)
        return OPENVINO.build(recipe, folder=folder, rows=rows, calibration=calibration, **options)


AUTO = AutoBackend()
