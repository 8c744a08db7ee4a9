"""What this plug-in adds to the table of export targets."""

from pathlib import Path

from promptcli.encoder.encoder import TorchEncoder
from promptcli.models.entries import Entry
from promptcli.models.exporting import ExportTarget
from promptcli.models.sentence_transformers_format import Exported
from promptcli.plugins.graphs.graph_files import export_onnx, export_openvino


def _write_onnx(
    entry: Entry, encoder: TorchEncoder, folder: Path, *, int8: bool = False
) -> Exported:
    return export_onnx(encoder, folder, int8=int8)


def _write_openvino(entry: Entry, encoder: TorchEncoder, folder: Path) -> Exported:
    return export_openvino(encoder, folder)


ONNX = ExportTarget(_write_onnx, takes=("int8",))
OPENVINO = ExportTarget(_write_openvino)
