"""Exports read by the other programs, each in a process of its own that knows nothing of promptcli.

    PYTHONPATH=. python benchmarks/interop.py [TOOL ...]

Prints the rows of the table in benchmarks/agreement.md: recipe, tool and version, lowest cosine,
command. Needs the tools. Learned and fitted numbers are random here: what is compared is whether
they arrive.
"""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.model_folder import SHIPPED_BACKBONES
from promptcli.encoder.sentence_encoder import TUNED
from promptcli.models.entries import Entry
from promptcli.models.exporting import export
from promptcli.models.importing import import_model
from promptcli.models.loading import open_torch_encoder
from promptcli.models.parity import PROBES, lowest_cosine
from tests.random_encoders import random_numbers

_ST = """from sentence_transformers import SentenceTransformer
load = lambda folder: SentenceTransformer(folder, device='cpu'{}).encode"""
_ORT = """import numpy, onnxruntime, tokenizers
def load(folder):
    session = onnxruntime.InferenceSession(folder + '/model.onnx')
    tokenizer = tokenizers.Tokenizer.from_file(folder + '/tokenizer.json')
    def encode(texts):
        rows = [numpy.array([tokenizer.encode(text).ids]) for text in texts]
        fed = [{'input_ids': row, 'attention_mask': row * 0 + 1} for row in rows]
        return numpy.concatenate([session.run(None, inputs)[0] for inputs in fed])
    return encode"""
_FASTEMBED = """import numpy, uuid
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
def load(folder):
    name = 'mine/' + uuid.uuid4().hex
    TextEmbedding.add_custom_model(model=name, pooling=PoolingType.DISABLED, normalization=False,
                                   sources=ModelSource(hf=name), dim=256, model_file='model.onnx')
    model = TextEmbedding(name, specific_model_path=folder)
    return lambda texts: numpy.array(list(model.embed(texts)))"""
_OPENVINO = """import numpy, openvino, tokenizers
def load(folder):
    graph = folder + '/openvino_model.xml'
    model = openvino.Core().compile_model(graph, 'CPU', {'INFERENCE_PRECISION_HINT': 'f32'})
    tokenizer = tokenizers.Tokenizer.from_file(folder + '/tokenizer.json')
    def encode(texts):
        rows = [numpy.array([tokenizer.encode(text).ids]) for text in texts]
        fed = [{'input_ids': row, 'attention_mask': row * 0 + 1} for row in rows]
        return numpy.concatenate([model(inputs)[0] for inputs in fed])
    return encode"""
_HIDDEN = """import torch
from transformers import AutoModel, AutoTokenizer
def averages(model, folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    def encode(texts):
        with torch.inference_mode():
            model.eval()
            means = []
            for text in texts:
                inputs = tokenizer(text, return_tensors='pt', truncation=True, max_length=480)
                means.append(model(**inputs).last_hidden_state[0].mean(0))
            return torch.stack(means).numpy()
    return encode
"""
_PEFT = f"""{_HIDDEN}from peft import PeftModel
BASE = {str(SHIPPED_BACKBONES["mini-bert"])!r}
def load(folder):
    return averages(PeftModel.from_pretrained(AutoModel.from_pretrained(BASE), folder), BASE)"""
_MERGED = f"{_HIDDEN}load = lambda folder: averages(AutoModel.from_pretrained(folder), folder)"
#: Encoders of this table alone, in the words of a recipe; their numbers are random.
LEARNED = {
    "a middle layer": {"pooling": "layer-3/avg"},
    "whitening": {"pooling": "last/avg", "transforms": ("whitening:64",)},
    "soft template": {"prompt": "soft-template:it is [X] [MASK]", "pooling": "last/mask"},
    "tanh head": {"pooling": "last/cls", "transforms": ("projection:tanh",)},
    "deep prefix": {"prompt": "deep-prefix:16", "pooling": "last/avg"},
    "LoRA": {"pooling": "last/avg"},
    "tuned backbone": {"pooling": "last/avg"},
}
#: Tool -> target, package, how it loads, recipes.
ARROWS = {
    "sentence-transformers": (
        "sentence-transformers",
        "sentence-transformers",
        _ST.format(""),
        [
            "last-avg",
            "first-last-avg",
            "cls",
            "prompt",
            "static-avg",
            "a middle layer",
            "whitening",
            "soft template",
            "tanh head",
            "tuned backbone",
        ],
    ),
    "sentence-transformers, trust_remote_code": (
        "sentence-transformers",
        "sentence-transformers",
        _ST.format(", trust_remote_code=True"),
        ["first-last-ditto", "prompt-denoised", "deep prefix"],
    ),
    "onnxruntime": (
        "onnx",
        "onnxruntime",
        _ORT,
        [
            "first-last-avg",
            "first-last-ditto",
            "prompt",
            "prompt-denoised",
            "deep prefix",
            "soft template",
            "whitening",
            "tanh head",
        ],
    ),
    "OpenVINO": (
        "openvino",
        "openvino",
        _OPENVINO,
        ["first-last-ditto", "prompt-denoised", "deep prefix"],
    ),
    "fastembed": ("onnx", "fastembed", _FASTEMBED, ["first-last-ditto", "prompt"]),
    "peft": ("peft", "peft", _PEFT, ["deep prefix", "LoRA"]),
    "transformers": ("merged", "transformers", _MERGED, ["tuned backbone", "LoRA"]),
}
#: Folders of sentence-transformers that are read again.
IMPORTED = ("last-avg", "cls", "whitening", "tanh head", "tuned backbone")
_READ = """
import json, sys
import numpy
texts, folders, out = json.load(sys.stdin)
for number, folder in enumerate(folders):
    numpy.save(f'{out}/{number}.npy', numpy.asarray(load(folder)(texts), dtype='float32'))
"""


def made(name: str) -> Entry:
    """Return an encoder of the tables: a named recipe, or one with random numbers."""
    if name not in LEARNED:
        return Entry(name, pc.RECIPES[name])
    recipe = pc.Recipe(backbone="mini-bert", **LEARNED[name])
    backbone = load_backbone("mini-bert")
    tensors = random_numbers(recipe, backbone)
    generator = torch.Generator().manual_seed(0)
    weights = {
        key: value
        for key, value in backbone.model.state_dict().items()
        if value.is_floating_point()
    }
    if name == "tuned backbone":
        whole = backbone.model.state_dict()
        noisy = {
            key: value + 0.01 * torch.randn(value.shape, generator=generator)
            for key, value in weights.items()
        }
        tensors |= {TUNED + key: noisy.get(key, value) for key, value in whole.items()}
    if name == "LoRA":
        tensors[f"{TUNED}lora_alpha"] = torch.tensor(16.0)
        for key, value in weights.items():
            if key.endswith("query.weight"):
                for part, shape in (("A", (8, value.size(1))), ("B", (value.size(0), 8))):
                    numbers = 0.05 * torch.randn(shape, generator=generator)
                    tensors[f"{TUNED}{key.removesuffix('.weight')}.lora_{part}.default.weight"] = (
                        numbers
                    )
    return Entry(name, recipe, tensors)


def imported(folder: Path) -> np.ndarray:
    """Return the vectors of a folder that was imported."""
    entry = import_model(folder, "again", force=True)
    return open_torch_encoder(entry, device="cpu", dtype="stored").encode(list(PROBES))


def main() -> None:
    for tool in sys.argv[1:] or ARROWS:
        target, package, loader, recipes = ARROWS[tool]
        entries = {recipe: made(recipe) for recipe in recipes}
        with tempfile.TemporaryDirectory() as work:
            folders = [str(Path(work, recipe)) for recipe in recipes]
            for entry, folder in zip(entries.values(), folders, strict=True):
                base = "owner/mini-bert" if target == "peft" else None
                export(entry, folder, target, base=base)
            request = json.dumps([list(PROBES), folders, work])
            subprocess.run(
                [sys.executable, "-c", loader + _READ], input=request, text=True, check=True
            )
            for number, (recipe, entry) in enumerate(entries.items()):
                theirs = np.load(f"{work}/{number}.npy")
                encoder = open_torch_encoder(entry, device="cpu", dtype="stored")
                ours = encoder.encode(list(PROBES))
                there = theirs.any(axis=1)  # that a vector is zero is said by the command
                cosine = lowest_cosine(ours[there], theirs[there])
                model = "MODEL" if recipe in LEARNED else recipe
                option = " --base OWNER/NAME" if base else ""
                command = f"`promptcli export {model} -o FOLDER --to {target}{option}`"
                print(
                    f"| {recipe} | {tool} {version(package)} | {cosine:.7f} | {command} |",
                    flush=True,
                )
                if tool == "sentence-transformers" and recipe in IMPORTED:
                    cosine = lowest_cosine(imported(Path(folders[number])), theirs)
                    command = "`promptcli models import FOLDER --name NAME`"
                    print(
                        f"| {recipe}, in | {tool} {version(package)} | {cosine:.7f} | {command} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
