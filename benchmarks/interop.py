"""Exports read by the other programs, each in a process of its own that knows nothing of promptcli.

    python benchmarks/interop.py [TOOL ...]

Prints the rows of the table in docs/interop.md: recipe, tool and version, lowest cosine, command. Needs the tools.
"""

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

import promptcli as pc
from promptcli.interchange.exactness import PROBES, lowest_cosine
from promptcli.interchange.export import export
from promptcli.registry.registry import Entry

_ST = """from sentence_transformers import SentenceTransformer
load = lambda folder: SentenceTransformer(folder, device='cpu'{}).encode"""
_ORT = """import numpy, onnxruntime, tokenizers
def load(folder):
    session = onnxruntime.InferenceSession(folder + '/model.onnx')
    tokenizer = tokenizers.Tokenizer.from_file(folder + '/tokenizer.json')
    def encode(texts):
        rows = [numpy.array([tokenizer.encode(text).ids]) for text in texts]
        fed = [{'input_ids': row, 'attention_mask': row * 0 + 1} for row in rows]
        return numpy.concatenate([session.run(None, given)[0] for given in fed])
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
_MODEL2VEC = "from model2vec import StaticModel\nload = lambda folder: StaticModel.from_pretrained(folder).encode"
#: Tool -> target, package, how it loads, recipes.
ARROWS = {
    "sentence-transformers": (
        "sentence-transformers",
        "sentence-transformers",
        _ST.format(""),
        ["last-avg", "first-last-avg", "cls", "prompt", "static-avg", "static-unbiased"],
    ),
    "sentence-transformers, trust_remote_code": (
        "sentence-transformers",
        "sentence-transformers",
        _ST.format(", trust_remote_code=True"),
        ["first-last-ditto", "prompt-denoised"],
    ),
    "model2vec": ("model2vec", "model2vec", _MODEL2VEC, ["static-avg", "static-unbiased"]),
    "onnxruntime": ("onnx", "onnxruntime", _ORT, ["first-last-ditto", "prompt-denoised"]),
    "fastembed": ("onnx", "fastembed", _FASTEMBED, ["first-last-ditto"]),
}
_READ = """
import json, sys
import numpy
texts, folders, out = json.load(sys.stdin)
for number, folder in enumerate(folders):
    numpy.save(f'{out}/{number}.npy', numpy.asarray(load(folder)(texts), dtype='float32'))
"""


def main() -> None:
    for tool in sys.argv[1:] or ARROWS:
        target, package, loader, recipes = ARROWS[tool]
        with tempfile.TemporaryDirectory() as work:
            folders = [str(Path(work, recipe)) for recipe in recipes]
            for recipe, folder in zip(recipes, folders, strict=True):
                export(Entry(recipe, pc.RECIPES[recipe]), target, Path(folder), offline=True)
            given = json.dumps([list(PROBES), folders, work])
            subprocess.run([sys.executable, "-c", loader + _READ], input=given, text=True, check=True)
            for number, recipe in enumerate(recipes):
                theirs = np.load(f"{work}/{number}.npy")
                ours = pc.load(pc.RECIPES[recipe], device="cpu").encode(list(PROBES))
                there = theirs.any(axis=1)  # that a vector is zero is said by the command
                cosine = lowest_cosine(ours[there], theirs[there])
                command = f"`promptcli export {recipe} -o FOLDER --to {target}`"
                print(f"| {recipe} | {tool} {version(package)} | {cosine:.7f} | {command} |", flush=True)


if __name__ == "__main__":
    main()
