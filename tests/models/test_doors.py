"""One form on disk: whatever an entry is opened by, its vectors are the same, and a damaged file is
an error.
"""

import importlib
import itertools
import json
import os
import re
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import promptcli as pc
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import PromptcliError
from promptcli.models import hub
from promptcli.models.entries import Entry
from promptcli.models.importing import import_model
from promptcli.models.loading import open_registry
from promptcli.recipe import RECIPES
from tests.comparing import gap, refusal

SENTENCES = ["A cat sleeps.", "Two dogs play in the snow.", "Prices fell in May."]
WHITENED = RECIPES["prompt"].replace(transforms=("whitening:4",))


def registry_folder(root):
    return open_registry().folder("white")


def saved_folder(root):
    pc.load("white").save(root / "saved")
    return root / "saved"


def pushed_folder(root):
    (root / "pushed").mkdir()
    hub._write(open_registry().load("white"), "me/white", root / "pushed")
    return root / "pushed"


def exported_folder(root):
    pc.export(open_registry().load("white"), root / "exported")
    return root / "exported"


WRITERS = [registry_folder, saved_folder, pushed_folder, exported_folder]


@pytest.fixture(scope="module")
def written_once(tmp_path_factory):
    """A folder with a home, its entry in every written form, and the entry's vectors."""
    root = tmp_path_factory.mktemp("doors")
    generator = torch.Generator().manual_seed(0)
    mean, matrix = (torch.randn(shape, generator=generator) for shape in ((256,), (256, 4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMPTCLI_HOME", str(root / "home"))
        open_registry().save(
            Entry("white", WHITENED, {"whitening.mean": mean, "whitening.matrix": matrix})
        )
        folders = {written: written(root) for written in WRITERS}
        return root, folders, pc.load("white", dtype="float32").encode(SENTENCES)


@pytest.fixture
def folder(written, written_once, tmp_path):
    """A folder of a test's own, as it was written; beside it, the home of its entry."""
    root, folders, _ = written_once
    # links: no test changes a file
    shutil.copytree(root, tmp_path, copy_function=os.link, dirs_exist_ok=True)
    return tmp_path / folders[written].relative_to(root)


def by_path(folder):
    return pc.load(str(folder), dtype="float32").encode(SENTENCES)


def by_import(folder):
    import_model(folder, "again")
    return pc.load("again", dtype="float32").encode(SENTENCES)


def by_sentence_transformers(folder):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=True, local_files_only=True
    )
    return model.encode(SENTENCES)


DOORS = [
    by_path,
    by_import,
    pytest.param(
        by_sentence_transformers,
        marks=pytest.mark.skipif(
            find_spec("sentence_transformers") is None, reason="needs sentence-transformers"
        ),
    ),
]


@pytest.mark.parametrize("opened", DOORS)
@pytest.mark.parametrize("written", WRITERS)
def test_a_folder_has_the_vectors_of_the_entry(written, opened, folder, written_once):
    *_, vectors = written_once
    np.testing.assert_allclose(opened(folder), vectors, atol=2e-5)


@pytest.mark.parametrize("opened", DOORS)
@pytest.mark.parametrize("name", ["mini", "mini-static", "mini-multi"])
def test_a_shipped_folder_has_the_vectors_of_its_name(name, opened, home):
    vectors = pc.load(name, dtype="float32").encode(SENTENCES)
    np.testing.assert_allclose(opened(open_registry().folder(name)), vectors, atol=2e-5)


def by_name(folder):
    return pc.load(folder.name)


@pytest.mark.parametrize(
    ("written", "opened", "damage"),
    [
        *itertools.product(WRITERS, [by_path], ["missing", "truncated", "other"]),
        *itertools.product([registry_folder], [by_import, by_name], ["missing", "truncated"]),
    ],
)
def test_a_damaged_weights_file_is_an_error(written, opened, damage, folder):
    manifest = json.loads((folder / "promptcli.json").read_text())
    file = folder / next(name for name in manifest["files"] if name.endswith(".safetensors"))
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(
            content[:-1] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1])
        )
    with refusal(re.escape(file.name), PromptcliError):
        opened(folder)


def test_evaluators_and_utilities_of_sentence_transformers_take_an_encoder():
    library = pytest.importorskip("sentence_transformers")
    evaluation = importlib.import_module("sentence_transformers.sentence_transformer.evaluation")
    encoder = pc.load("mini", device="cpu")
    pairs = evaluation.EmbeddingSimilarityEvaluator(SENTENCES[:2], SENTENCES[1:3], [0.1, 0.9])(
        encoder
    )
    assert abs(pairs["spearman_cosine"]) == pytest.approx(1)
    queries = evaluation.InformationRetrievalEvaluator(
        {"q": SENTENCES[0]}, {"a": SENTENCES[0]}, {"q": {"a"}}
    )(encoder)
    assert queries["cosine_accuracy@1"] == 1
    assert library.util.paraphrase_mining(encoder, [SENTENCES[0], SENTENCES[0]])[0][
        0
    ] == pytest.approx(1)
    from datasets import Dataset

    rows = Dataset.from_dict({"anchor": SENTENCES[:2], "positive": SENTENCES[1:]})
    assert len(library.util.mine_hard_negatives(rows, encoder, num_negatives=1, verbose=False)) == 2
    assert encoder.get_embedding_dimension() == encoder.get_sentence_embedding_dimension() == 256


def test_a_stand_in_has_length_and_tokenizer():
    pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    from promptcli.models.st_module import as_sentence_transformer

    encoder, long = (
        pc.load("mini", device="cpu", dtype="float32"),
        "A long sentence about many things , " * 3,
    )
    model = as_sentence_transformer(encoder)
    assert model.max_seq_length == encoder.max_length
    assert model.tokenizer("A cat.")["input_ids"] == encoder.tokenizer("A cat.")["input_ids"]
    before = model.encode([long])
    model.max_seq_length = 14
    short = TorchEncoder(
        encoder.recipe.replace(max_length=14), encoder.backbone, encoder.tensors()
    ).encode([long])
    np.testing.assert_allclose(model.encode([long]), short, atol=1e-6)
    assert model.max_seq_length == 14 and gap(before, short) > 1e-2
    with refusal("max_length: 0 is not allowed"):
        model.max_seq_length = 0


def test_a_prompt_with_a_mask_is_read_at_the_mask_of_a_language_model(bert_folder):
    prompt = "[X] means [MASK] ."
    masked = pc.load(str(bert_folder), prompt=prompt)
    assert masked.recipe.pooling == "last/mask"
    given = pc.load(pc.Recipe(str(bert_folder)), prompt=prompt, pooling="last/avg")
    assert given.recipe.pooling == "last/avg"
    own = pc.load("last-avg", backbone=str(bert_folder), prompt=prompt)
    assert own.recipe.pooling == "last/avg"
