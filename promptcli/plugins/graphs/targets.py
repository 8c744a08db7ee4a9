"""Rows of this plug-in in the table of export targets."""

from pathlib import Path

from promptcli import errors
from promptcli.backbones.transformers_loading import opening
from promptcli.encoder.encoder import TorchEncoder
from promptcli.models.entries import Entry
from promptcli.models.exporting import ExportTarget
from promptcli.models.sentence_transformers_format import Exported
from promptcli.plugins.graphs import graph_files


def export_onnx(
    entry: Entry | None, encoder: TorchEncoder, folder: Path, *, int8: bool = False
) -> Exported:
    """Write ``model.onnx`` and the tokenizer to a folder; with ``int8`` also a quantised model,
    whose loss is among the notes.
    """
    errors.require_libraries("onnx", "onnxscript", "onnxruntime", extra="onnx")
    notes = graph_files.write_graph(encoder, folder)
    run = graph_files.load_onnx(folder)
    cosine = graph_files.compare(encoder, folder, run, "onnxruntime")
    if int8:
        notes.append(graph_files.quantise(encoder, folder))
    typed = f'onnxruntime.InferenceSession("FOLDER/{graph_files.ONNX_FILE}")'
    return Exported(typed, tool="onnxruntime", cosine=cosine, notes=tuple(notes))


def export_openvino(entry: Entry | None, encoder: TorchEncoder, folder: Path) -> Exported:
    """Write OpenVINO's float32 model of the ONNX graph, and the tokenizer, to a folder."""
    errors.require_libraries("onnx", "onnxscript", "openvino", extra="openvino")
    notes = graph_files.write_openvino(encoder, folder)
    with opening("the exported graph"):
        run = graph_files.load_openvino(folder)
        cosine = graph_files.compare(encoder, folder, run, "openvino")
    typed = f'openvino.Core().compile_model("FOLDER/{graph_files.OPENVINO_FILE}", "CPU")'
    return Exported(typed, tool="openvino", cosine=cosine, notes=tuple(notes))


ONNX = ExportTarget(export_onnx, takes=("int8",))
OPENVINO = ExportTarget(export_openvino)
