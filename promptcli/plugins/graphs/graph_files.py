"""An encoder as one graph, from token ids and mask to vectors, and the libraries that run the graph
on a CPU.

The tokenizer in ``tokenizer.json`` adds the template and the period, so that its ids are the input
of the graph.
"""

import contextlib
import importlib
import io
import logging
import queue
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from promptcli.backbones import states
from promptcli.backbones.transformers_loading import opening
from promptcli.data import training_data
from promptcli.encoder import batching
from promptcli.encoder.encoder import TorchEncoder
from promptcli.models import parity
from promptcli.models.sentence_transformers_format import InexactError, write_tokenizer
from promptcli.notes import note

ONNX_FILE = "model.onnx"
INT8_FILE = "model_int8.onnx"
OPENVINO_FILE = "openvino_model.xml"
_OPSET = 20
_INPUTS = ("input_ids", "attention_mask")
_OUTPUT = "sentence_embedding"
_BATCH_SENTENCES = 32
#: Number of sentences that measure the ranges of 8-bit activations and the loss of a graph.
DEMO_SENTENCES = 300
#: Computes the vectors of a batch, (n, d) float32.
RunGraph = Callable[[states.Batch], np.ndarray]


@dataclass(frozen=True)
class _TracedBatch(states.Batch):
    """A batch of unknown size, on whose values the exporter must not depend."""

    mask: Tensor = field(default_factory=lambda: torch.ones(1, 1))

    padded = True

    def real(self) -> Tensor:
        return self.mask.bool()


class EncoderGraph(nn.Module):
    """The components of an encoder in order.

    Ditto's diagonal is read from the attention matrix, because exporters do not know our kernel.
    The biases of denoising are a table with a row for each length.
    """

    def __init__(self, encoder: TorchEncoder) -> None:
        super().__init__()
        weights = encoder.pooling.weights
        if encoder.backbone.is_word_table:
            raise InexactError(
                "word vectors have their own tokenizer, which tokenizer.json cannot express"
            )
        reason = weights.graph_obstacle
        if weights.rewriting is not None:
            reason = "rewrite sentences"
        if encoder.pooling.needs.attention_rows:
            reason = "read a row of the attention"
        if reason is not None:
            raise InexactError(f"weights {weights.spec!r} {reason}, which a graph cannot express")
        if encoder.prompt.graph_obstacle is not None:
            name = encoder.prompt.spec.partition(":")[0]
            raise InexactError(
                f"prompt {name!r} {encoder.prompt.graph_obstacle}, which a graph cannot express"
            )
        self.model = encoder.backbone.model  # an attribute, so that the graph includes its weights
        self.encoder = encoder.one_prompt()
        needs = encoder.pooling.needs
        matrices = needs.matrices | needs.diagonals
        layers = needs.layers
        if not layers and (matrices or needs.attention_outputs or needs.values):
            # a pass that stops inside a layer cannot be exported
            layers = frozenset({encoder.backbone.n_layers})
        self.needs = replace(
            needs, layers=layers, diagonals=frozenset(), matrices=matrices, slot=None
        )
        places = range(encoder.max_length - encoder.template.length + 1)
        with torch.no_grad():
            self.biases = None
            if encoder.denoising.name != "none":
                self.biases = self.encoder.biases(np.array(places))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the vectors, (n, d) float32, of ids and mask, both (n, t) int64."""
        encoder = self.encoder
        lengths = attention_mask.sum(1)
        slots = [
            lengths + place if place < 0 else torch.full_like(lengths, place)
            for place in encoder.template.masks
        ]
        batch = _TracedBatch(
            ids=input_ids,
            lengths=lengths,
            mask_positions=torch.stack(slots, 1) if slots else None,
            mask=attention_mask,
        )
        hidden = encoder.backbone.run(encoder.prompt.attach(batch), self.needs)
        prefix = encoder.prompt.length
        diagonals = {
            layer: matrix.diagonal(prefix, -2, -1) for layer, matrix in hidden.matrices.items()
        }
        read = replace(hidden, diagonals=diagonals)
        vectors = encoder.pooling.pool(batch, read)
        for name, step in encoder.stages:
            vectors = step(vectors)
            if self.biases is not None and name == encoder.denoising.name:
                length = (lengths - encoder.template.length).clamp(0, len(self.biases) - 1)
                vectors = vectors - self.biases[length]
        return vectors


def write_graph(encoder: TorchEncoder, folder: Path, calibration: Sequence[str] = ()) -> list[str]:
    """Write the graph and the tokenizer; return the differences from the encoder, in words."""
    graph = EncoderGraph(encoder)
    differences = write_tokenizer(encoder, folder)
    ids = torch.tensor(
        [[*encoder.template.left, encoder.backbone.tokenizer.pad, *encoder.template.right]] * 2
    )
    axes = {name: {0: "batch", 1: "length"} for name in _INPUTS}
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            graph.eval(),
            (ids, torch.ones_like(ids)),
            str(folder / ONNX_FILE),
            dynamo=True,
            opset_version=_OPSET,
            input_names=list(_INPUTS),
            output_names=[_OUTPUT],
            dynamic_shapes=axes,
            external_data=False,
            verbose=False,
        )
    return differences


def import_openvino() -> Any:
    """Import OpenVINO. It and NNCF would send reports of their use over the network, which they
    cannot do without ``openvino_telemetry``.
    """
    # Python raises ImportError for a module that is None
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")


def write_openvino(
    encoder: TorchEncoder, folder: Path, calibration: Sequence[str] = ()
) -> list[str]:
    """Write OpenVINO's model of the graph, and the tokenizer; return the differences from the
    encoder, in words.

    The model is in float32; with calibration sentences it is quantised to 8 bits.
    """
    openvino = import_openvino()
    differences = write_graph(encoder, folder)
    with opening("the exported graph"):
        model = openvino.convert_model(folder / ONNX_FILE)
        if encoder.backbone.runs_in_threads:  # in a BERT every token attends to at least one token
            _leave_out_nan_checks(model)
        if calibration:
            rows = sorted(encoder.inputs(calibration).ids, key=len)
            batches = [rows[start : start + 8] for start in range(0, len(rows), 8)]
            inputs = [_inputs(batch_of(batch, encoder)) for batch in batches]
            with _quiet():
                nncf = importlib.import_module("nncf")
                model = nncf.quantize(
                    model,
                    nncf.Dataset(inputs),
                    subset_size=len(inputs),
                    model_type=nncf.ModelType.TRANSFORMER,
                )
        openvino.save_model(model, folder / OPENVINO_FILE, compress_to_fp16=False)
    (folder / ONNX_FILE).unlink()
    return differences


def _leave_out_nan_checks(model: Any) -> None:
    """Let the model have plain softmaxes: torch's export replaces NaN by zero after each softmax,
    which keeps OpenVINO from fusing it.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "IsNaN":
            for checked in node.output(0).get_target_inputs():
                for use in checked.get_node().output(0).get_target_inputs():
                    use.replace_source_output(node.input_value(0))


def load_openvino(folder: Path, dtype: str = "float32") -> RunGraph:
    """Return the function that runs OpenVINO's model; each of its streams computes a batch."""
    openvino = import_openvino()
    threads = torch.get_num_threads()
    streams = batching.batches_at_a_time(threads)
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
        "NUM_STREAMS": streams,
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(folder / OPENVINO_FILE, "CPU", settings)
    free_requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for _ in range(streams):
        free_requests.put(compiled.create_infer_request())

    def run(batch: states.Batch) -> np.ndarray:
        request = free_requests.get()
        try:
            vectors: np.ndarray = request.infer(_inputs(batch))[0]
        finally:
            free_requests.put(request)
        return vectors

    return run


def load_onnx(folder: Path, dtype: str = "float32") -> RunGraph:
    """Return the function that runs the ONNX file of a precision."""
    import onnxruntime

    threads = torch.get_num_threads()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads // batching.batches_at_a_time(threads)
    session = onnxruntime.InferenceSession(
        str(folder / {"float32": ONNX_FILE, "int8": INT8_FILE}[dtype]),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = [node.name for node in session.get_inputs()]

    def run(batch: states.Batch) -> np.ndarray:
        vectors: np.ndarray = session.run(None, dict(zip(names, _inputs(batch), strict=True)))[0]
        return vectors

    return run


def _inputs(batch: states.Batch) -> list[np.ndarray]:
    return [batch.ids.numpy(), batch.real().numpy().astype(np.int64)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress what the exporters print, warn of and log."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def encode_with(
    run: RunGraph, folder: Path, sentences: list[str], encoder: TorchEncoder
) -> np.ndarray:
    """Return the graph's vectors of n sentences, (n, d), with the tokenizer in its folder."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [encoding.ids for encoding in tokenizer.encode_batch(sentences)]
    batches = (
        rows[start : start + _BATCH_SENTENCES] for start in range(0, len(rows), _BATCH_SENTENCES)
    )
    return np.concatenate([run(batch_of(batch, encoder)) for batch in batches])


def batch_of(rows: Iterable[Sequence[int]], encoder: TorchEncoder) -> states.Batch:
    """Return rows of ids as a batch on the CPU."""
    return batching.make_batch(
        rows, None, encoder.backbone.tokenizer.pad, torch.device("cpu"), encoder.max_length
    )


def compare(encoder: TorchEncoder, folder: Path, run: RunGraph, tool: str) -> float:
    """Return the lowest cosine between the vectors of the graph and of the encoder. The graph gets
    all probes in one batch, and the first probe again in another batch.
    """
    probes = parity.uncut_probes(encoder)
    if encoder.template.length == len(encoder.template.prefix) + len(encoder.template.suffix):
        probes.append(parity.TOO_LONG)
    vectors = np.concatenate(
        [encode_with(run, folder, texts, encoder) for texts in (probes, probes[:1])]
    )
    return parity.check_parity(encoder.encode([*probes, probes[0]]), vectors, tool)


def demo_sentences() -> list[str]:
    """Return about ``DEMO_SENTENCES`` of the demo sentences."""
    sentences = training_data.fitting_sentences("demo")
    return sentences[:: len(sentences) // DEMO_SENTENCES]


def quantise(encoder: TorchEncoder, folder: Path) -> str:
    """Write the graph with weights of 8 bits; return its size and its loss, in words."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(folder / ONNX_FILE, folder / INT8_FILE, weight_type=QuantType.QInt8)
    size = (folder / INT8_FILE).stat().st_size / 1e6
    return f"{INT8_FILE}: {size:,.1f} MB; {loss_of(load_onnx(folder, 'int8'), folder, encoder)}"


def loss_of(run: RunGraph, folder: Path, encoder: TorchEncoder) -> str:
    """Return the loss of a graph on the demo sentences, in words."""
    sentences = demo_sentences()
    vectors = encode_with(run, folder, sentences, encoder)
    cosines = parity.row_cosines(encoder.encode(sentences), vectors)
    return f"cosines to float32 at least {cosines.min():.4f}, {cosines.mean():.4f} on average"


def write_onnx_int8(encoder: TorchEncoder, folder: Path, calibration: Sequence[str] = ()) -> None:
    """Write the ONNX graph with weights of 8 bits alone, and note its loss."""
    write_graph(encoder, folder)
    note(f"onnx-int8: {quantise(encoder, folder)}")
    (folder / ONNX_FILE).unlink()


def write_openvino_int8(encoder: TorchEncoder, folder: Path, calibration: Sequence[str]) -> None:
    """Write OpenVINO's model with 8 bits, and note its loss. It is calibrated on the sentences, or,
    if they are too few, on the demo sentences.
    """
    source = f"{DEMO_SENTENCES} of your sentences"
    if len(calibration) < DEMO_SENTENCES:
        source = f"demo sentences (your {len(calibration)} are too few, give {DEMO_SENTENCES})"
        calibration = demo_sentences()
    write_openvino(encoder, folder, calibration)
    loss = loss_of(load_openvino(folder), folder, encoder)
    note(f"openvino-int8: calibrated on {source}; {loss}")
