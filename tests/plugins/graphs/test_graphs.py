"""An encoder as a graph: in torch for every recipe, as ONNX where it is installed, and as what
computes a model.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import promptcli as pc
from promptcli.errors import CheckFailedError, look_up
from promptcli.models.exporting import TARGETS
from promptcli.models.loading import BACKENDS
from promptcli.models.parity import PROBES, lowest_cosine
from promptcli.plugins.graphs import backends, graph_files
from promptcli.plugins.graphs.backends import MIN_ROWS, choose_backend
from promptcli.plugins.graphs.graph_files import EncoderGraph
from promptcli.plugins.graphs.rows import GraphBackend
from promptcli.plugins.graphs.targets import export_onnx
from promptcli.recipe import RECIPES, LeadingTexts, Recipe
from tests.comparing import gap, refusal
from tests.plugins.absent import delete_plugin
from tests.random_encoders import random_encoder

PROMPT = RECIPES["prompt"]
PREFIX = Recipe(prompt="deep-prefix:3", pooling="last/cls")
RECIPE = {
    "bert": [
        Recipe(pooling="first-last/avg", transforms=("whitening", "flow")),
        Recipe(pooling="first-last/ditto:1-3"),
        Recipe(pooling="layer-1/tfidf"),
        PREFIX,
        PREFIX.replace(pooling="first-last/ditto:2-1", transforms=("projection:tanh",)),
        PROMPT.replace(denoise="hidden"),
        PROMPT.replace(denoise="logits", transforms=("topk-tokens:5",)),
        Recipe(prompt="[MASK] [X] [MASK]", pooling="last/mask:2", transforms=("projection:mlm",)),
        Recipe(prompt=f"soft-template:{PROMPT.prompt}", pooling="last/mask"),
        Recipe(prompt=f"soft-template-lookup:{PROMPT.prompt}", pooling="last/mask"),
        Recipe(pooling="mlm-head/avg", transforms=("projection:tanh",)),
        Recipe(pooling="static/avg", transforms=("whitening:8",)),
        PROMPT.replace(pooling="last/content-avg"),
        Recipe(pooling="values:1-1/avg"),
        Recipe(pooling="values/ditto:1-3", transforms=("whitening",)),
    ],
    "roberta": [
        PROMPT.replace(denoise="hidden"),
        PREFIX,
        PROMPT.replace(pooling="last/content-max+content-avg"),
    ],
    "modernbert": [Recipe(pooling="first-last/ditto:2-1"), PREFIX],
    "mpnet": [PROMPT.replace(denoise="hidden"), Recipe(pooling="first-last/ditto:2-1"), PREFIX],
    "albert": [PROMPT.replace(pooling="first-last/mask")],
    "qwen2": [
        RECIPES["prompteol"],
        Recipe(prompt="deep-prefix:3", pooling="first-last/avg"),
        Recipe(pooling="values:1-2/avg"),
    ],
}
CASES = [(family, recipe) for family, recipes in RECIPE.items() for recipe in recipes]


def padded(encoder, texts):
    rows = encoder.inputs(texts).ids
    width = min(max(map(len, rows)) + 2, encoder.max_length)
    ids = torch.tensor(
        [row + [encoder.backbone.tokenizer.pad] * (width - len(row)) for row in rows]
    )
    return ids, torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])


@pytest.mark.parametrize(
    ("family", "recipe"), CASES, ids=lambda case: getattr(case, "pooling", case)
)
def test_the_graph_is_the_encoder(family, recipe, tiny_backbone):
    encoder = random_encoder(recipe, tiny_backbone(family))
    with torch.inference_mode():
        there = EncoderGraph(encoder)(*padded(encoder, PROBES))
    assert lowest_cosine(encoder.encode(PROBES), there.numpy()) > 0.999999


@pytest.mark.parametrize("pooling", ["values:1-1/avg", "attention/avg", "static/ditto:1-3"])
def test_a_pass_that_would_end_early_is_traced(pooling, tiny_backbone):
    encoder = random_encoder(Recipe(pooling=pooling), tiny_backbone("bert"))
    graph = EncoderGraph(encoder).eval()
    ids, mask = padded(encoder, PROBES[:2])
    sizes = {0: torch.export.Dim("inputs"), 1: torch.export.Dim("tokens")}
    with torch.no_grad():
        traced = torch.export.export(
            graph, (ids, mask), dynamic_shapes=(sizes, sizes), strict=False
        )
        ids, mask = padded(encoder, PROBES)
        assert torch.allclose(traced.module()(ids, mask), graph(ids, mask), atol=1e-6)


def test_onnxruntime_computes_the_same(tiny_backbone, tmp_path):
    for library in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    encoder = random_encoder(PROMPT.replace(denoise="hidden"), tiny_backbone("bert"))
    written = export_onnx(None, encoder, tmp_path, int8=True)
    assert (
        written.cosine is not None and written.cosine > 0.999999 and written.tool == "onnxruntime"
    )
    assert "cosines to float32" in written.notes[-1] and (tmp_path / "model_int8.onnx").is_file()
    limit = encoder.max_length
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(tokenizer.encode("word " * 600).ids) == limit


SENTENCES = [
    " ".join(["two", "cats"] * (number % 30)) + f" sleep {number}" for number in range(200)
]


@pytest.mark.parametrize(
    ("installed", "bfloat16", "rows", "taken", "why"),
    [
        (["openvino", "onnx"], True, MIN_ROWS, "openvino", "50,000 rows"),
        (["openvino", "onnx"], True, MIN_ROWS - 1, "torch", "a graph pays off from 50,000"),
        (["openvino", "onnx"], True, None, "torch", "number of rows is unknown"),
        (["openvino", "onnx"], False, 10**9, "torch", "without bfloat16"),
        (["onnx"], True, 10**9, "torch", r"pip install '\.\[openvino\]'"),
    ],
)
def test_auto_goes_by_libraries_processor_and_rows(installed, bfloat16, rows, taken, why):
    found, said = choose_backend(installed, device="cpu", bfloat16=bfloat16, rows=rows)
    assert found == taken and re.search(why, said)


@pytest.fixture
def stand_in(monkeypatch):
    """A backend that runs the graph in torch, off by a share of each number.

    Counts what it is asked.
    """

    def install(off=0.0, dtypes=("float32", "bfloat16")):
        graphs, calls = [], []

        def write(encoder, folder, calibration):
            graphs.append(EncoderGraph(encoder))

        def load(folder, dtype):
            calls.append(dtype)
            wave = torch.cos(torch.arange(graphs[0].encoder.backbone.width))

            def run(batch):
                with torch.inference_mode():
                    vectors = graphs[0](batch.ids, batch.real().long())
                return (vectors + off * (dtype == dtypes[-1]) * vectors.abs().max() * wave).numpy()

            return run

        row = GraphBackend("stand-in", (), dtypes, write, load)
        monkeypatch.setitem(BACKENDS, "stand-in", row)
        return graphs, calls

    return install


def build(recipe, tiny_folder, tmp_path, backend="stand-in", **options):
    recipe = recipe.replace(backbone=str(tiny_folder("bert")))
    options = {"rows": None, "calibration": (), **options}
    return look_up("backend", backend, BACKENDS)(recipe, folder=tmp_path / "graphs", **options)


def test_a_graph_is_made_once_and_computes_the_vectors(stand_in, tiny_folder, tmp_path):
    graphs, calls = stand_in()
    first, again = (build(RECIPES["prompt"], tiny_folder, tmp_path, dtype="float32") for _ in "ab")
    assert len(graphs) == 1 and calls == ["float32", "float32"]
    assert again.provenance["backend"] == "stand-in" and again.fingerprint == first.fingerprint
    torchs = build(RECIPES["prompt"], tiny_folder, tmp_path, "torch", dtype="float32")
    assert "backend" not in torchs.provenance
    assert gap(torchs.encode(SENTENCES), again.encode(SENTENCES)) < 1e-5


def test_a_prompt_in_front_is_computed_by_the_graph_or_refused(stand_in, tiny_folder, tmp_path):
    prompts = LeadingTexts({"query": "two cats "})
    for recipe in (RECIPES["prompt"], Recipe(pooling="last/avg")):
        stand_in()
        options = {"dtype": "float32", "leading": prompts}
        encoder, torchs = (
            build(recipe, tiny_folder, tmp_path, name, **options) for name in ("stand-in", "torch")
        )
        assert encoder.with_leading_text("two cats ").graph is encoder.graph
        found, wanted = (one.encode(SENTENCES, prompt_name="query") for one in (encoder, torchs))
        assert gap(found, wanted) < 1e-5 and not np.allclose(
            found, torchs.encode(SENTENCES), atol=1e-3
        )
    without_text = replace(prompts, counted=False)
    for recipe, texts in (
        (RECIPES["prompt-denoised"], prompts),
        (Recipe(pooling="first-last/avg"), without_text),
    ):
        stand_in()
        with refusal("graph of backend stand-in"):
            build(recipe, tiny_folder, tmp_path, leading=texts).encode(
                SENTENCES, prompt_name="query"
            )


def test_vectors_that_are_not_torchs_are_not_used(stand_in, tiny_folder, tmp_path):
    stand_in(off=1e-4, dtypes=("float32",))
    with refusal(r"float32 vectors differ from torch's by 1\.0e-04", CheckFailedError):
        build(RECIPES["prompt"], tiny_folder, tmp_path)


def test_auto_takes_float32_where_bfloat16_is_too_far(
    stand_in, tiny_folder, tmp_path, monkeypatch, notes
):
    stand_in(off=0.5)
    monkeypatch.setattr(backends.devices, "choose_dtype", lambda name, device: torch.bfloat16)
    encoder = build(RECIPES["prompt"], tiny_folder, tmp_path)
    assert encoder.provenance["dtype"] == "float32" and "taking float32" in notes[-1]
    with refusal("bfloat16 vectors have cosines of only", CheckFailedError):
        build(RECIPES["prompt"], tiny_folder, tmp_path, dtype="bfloat16")


@pytest.mark.parametrize(
    ("recipe", "options", "line"),
    [
        (
            RECIPES["prompt"],
            {"backend": "onyx"},
            "torch, auto, onnx, onnx-int8, openvino, openvino-int8",
        ),
        (
            RECIPES["prompt"],
            {"backend": "openvino"},
            r"openvino, not installed .* '\.\[openvino\]'",
        ),
        (
            RECIPES["prompt"],
            {"backend": "openvino-int8"},
            r"nncf, not installed .* '\.\[openvino\]'",
        ),
        (RECIPES["prompt"], {"dtype": "float16"}, "computes in float32 or bfloat16, not float16"),
        (RECIPES["prompt"], {"device": "mps"}, "runs on the CPU, not on 'mps'"),
        (Recipe(pooling="first-last/unbiased"), {}, "which a graph cannot express"),
        (RECIPES["static-avg"], {}, "averages rows of a table"),
    ],
)
def test_what_cannot_be_is_one_line(
    recipe, options, line, stand_in, tiny_folder, tmp_path, monkeypatch
):
    stand_in()
    if "openvino" in options.get("backend", ""):
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refusal(line):
        build(recipe, tiny_folder, tmp_path, **options)
    assert not list(tmp_path.glob("graphs/*"))


def test_8_bits_that_lose_too_much_are_refused_unless_asked_for(stand_in, tiny_folder, tmp_path):
    stand_in(off=0.5, dtypes=("int8",))
    with refusal(
        r"mean cosine of only .* give dtype int8 to use them nevertheless", CheckFailedError
    ):
        build(RECIPES["prompt"], tiny_folder, tmp_path)
    assert (
        build(RECIPES["prompt"], tiny_folder, tmp_path, dtype="int8").provenance["dtype"] == "int8"
    )


@pytest.mark.parametrize(
    ("count", "said"),
    [(10, "demo sentences (your 10 are too few, give 300)"), (400, "300 of your sentences")],
)
def test_8_bit_ranges_are_measured_on_the_users_sentences(
    count, said, tiny_folder, tmp_path, monkeypatch, notes
):
    taken = []
    write = BACKENDS["openvino-int8"].write
    monkeypatch.setattr(
        graph_files, "write_openvino", lambda encoder, folder, texts: taken.extend(texts)
    )
    monkeypatch.setattr(graph_files, "loss_of", lambda *_: "no loss")
    monkeypatch.setattr(
        graph_files, "load_openvino", lambda *_: lambda batch: np.ones((batch.ids.size(0), 16))
    )
    monkeypatch.setitem(
        BACKENDS,
        "stand-in",
        GraphBackend("stand-in", (), ("int8",), write, lambda *_: graph_files.load_openvino()),
    )
    own = (f"sentence {number}" for number in range(count))
    build(RECIPES["prompt"], tiny_folder, tmp_path, dtype="int8", calibration=own)
    assert f"calibrated on {said}; no loss" in notes[-1]
    assert ("sentence 299" in taken, len(taken) >= 300) == (
        count == 400,
        True,
    ) and "sentence 300" not in taken


@pytest.mark.parametrize("backend", ["openvino", "openvino-int8", "onnx", "onnx-int8"])
def test_other_libraries_compute_it(backend, tiny_folder, tmp_path, notes):
    for library in BACKENDS[backend].libraries:
        pytest.importorskip(library, reason=f"{library} is not installed")
    eight_bits = backend.endswith("int8")
    encoder = build(
        RECIPES["prompt"],
        tiny_folder,
        tmp_path,
        backend,
        dtype="int8" if eight_bits else "stored",
    )
    told = notes
    torchs = build(RECIPES["prompt"], tiny_folder, tmp_path, "torch", dtype="float32").encode(
        SENTENCES
    )
    assert lowest_cosine(torchs, encoder.encode(SENTENCES)) > (0.9 if eight_bits else 0.99999)
    assert any("cosines to float32" in line for line in told) == eight_bits


def test_without_the_folder_backends_and_targets_are_missing_in_one_line(monkeypatch, tmp_path):
    delete_plugin("graphs", monkeypatch, BACKENDS, TARGETS)
    assert [*BACKENDS] == ["torch"]
    for name in ("onnx", "openvino-int8", "auto"):
        with refusal(f"unknown backend '{name}'"):
            pc.load("mini", backend=name)
    for options in ({"to": "onnx", "int8": True}, {"to": "openvino"}):
        with refusal(f"unknown target '{options['to']}'"):
            pc.export("mini", tmp_path / "made", **options)
    assert not list(tmp_path.iterdir())
