"""Rows of this plug-in in the table of backends."""

from promptcli.plugins.graphs import graph_files
from promptcli.plugins.graphs.backends import AutoBackend, GraphBackend

_EXPORT = ("onnx", "onnxscript")

ONNX = GraphBackend(
    "onnx",
    (*_EXPORT, "onnxruntime"),
    ("float32",),
    graph_files.write_graph,
    graph_files.load_onnx,
)
ONNX_INT8 = GraphBackend(
    "onnx-int8",
    (*_EXPORT, "onnxruntime"),
    ("int8",),
    graph_files.write_onnx_int8,
    graph_files.load_onnx,
)
OPENVINO = GraphBackend(
    "openvino",
    (*_EXPORT, "openvino"),
    ("float32", "bfloat16"),
    graph_files.write_openvino,
    graph_files.load_openvino,
)
OPENVINO_INT8 = GraphBackend(
    "openvino-int8",
    (*_EXPORT, "openvino", "nncf"),
    ("int8",),
    graph_files.write_openvino_int8,
    graph_files.load_openvino,
)
AUTO = AutoBackend(OPENVINO)
