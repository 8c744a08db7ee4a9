"""Libraries that run a graph file on the processor: onnxruntime and OpenVINO."""

import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli.backbones.states import Batch
from promptcli.encoder.streams import stream_count

MODEL, SMALL, OPENVINO = "model.onnx", "model_int8.onnx", "openvino_model.xml"

#: Token ids and mask in, (n, d) float32 out.
Run = Callable[[Batch], np.ndarray]


def load_openvino(folder: Path, dtype: str = "float32") -> Run:
    """Return a function with a request per stream; a caller waits for a free one."""
    import openvino

    threads = torch.get_num_threads()
    settings = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[dtype],
        "NUM_STREAMS": stream_count(threads),
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(folder / OPENVINO, "CPU", settings)
    free: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(stream_count(threads)):
        free.put(compiled.create_infer_request())

    def run(batch: Batch) -> np.ndarray:
        request = free.get()
        try:
            vectors: np.ndarray = request.infer(_inputs(batch))[0]
        finally:
            free.put(request)
        return vectors

    return run


def load_onnx(folder: Path, dtype: str = "float32", file: str = MODEL) -> Run:
    """Return a function that runs a file of onnxruntime; its precision is the file's."""
    import onnxruntime

    threads = torch.get_num_threads()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads // stream_count(threads)
    session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(batch: Batch) -> np.ndarray:
        vectors: np.ndarray = session.run(None, dict(zip(names, _inputs(batch), strict=True)))[0]
        return vectors

    return run


def _inputs(batch: Batch) -> list[np.ndarray]:
    return [batch.ids.numpy(), batch.real().numpy().astype(np.int64)]
