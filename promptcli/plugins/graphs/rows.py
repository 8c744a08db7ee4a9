"""What this plug-in adds to the table of backends; the work is imported on use."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli import errors
from promptcli.notes import note
from promptcli.plugins.graphs.graph_library import GraphLibrary

if TYPE_CHECKING:
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.recipe import Recipe


class GraphBackend(GraphLibrary):
    """A backend: a library that computes an encoder as a graph, on a CPU."""

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


def _lazily(name: str) -> Any:
    """Return a function of ``graph_files``, which is imported when the function is called."""

    def call(*given: Any) -> Any:
        from promptcli.plugins.graphs import graph_files

        return getattr(graph_files, name)(*given)

    return call


def _backend(
    name: str, library: Sequence[str], dtypes: tuple[str, ...], write: str
) -> GraphBackend:
    return GraphBackend(
        name,
        (*_EXPORT, *library),
        dtypes,
        _lazily(write),
        _lazily(f"load_{name.partition('-')[0]}"),
    )


ONNX = _backend("onnx", ["onnxruntime"], ("float32",), "write_graph")
ONNX_INT8 = _backend("onnx-int8", ["onnxruntime"], ("int8",), "write_onnx_int8")
OPENVINO = _backend("openvino", ["openvino"], ("float32", "bfloat16"), "write_openvino")
OPENVINO_INT8 = _backend("openvino-int8", ["openvino", "nncf"], ("int8",), "write_openvino_int8")


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
        import torch

        from promptcli.backbones import devices
        from promptcli.encoder.encoder import build_encoder
        from promptcli.plugins.graphs.backends import choose_backend

        installed = [] if errors.missing_libraries(*OPENVINO.libraries) else ["openvino"]
        backend, why = choose_backend(
            installed,
            device=devices.choose_device(options.get("device", "auto")),
            bfloat16=devices.computes(torch.bfloat16, "cpu"),
            rows=rows,
        )
        note(f"backend {backend}: {why}")
        if backend == "torch":
            return build_encoder(recipe, **options)
        return OPENVINO.build(recipe, folder=folder, rows=rows, calibration=calibration, **options)


AUTO = AutoBackend()
