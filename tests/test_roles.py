"""A model's prompts for queries and documents are used wherever text is in a role, are recorded,
and are reported.
"""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest

import promptcli as pc
from promptcli.evaluation.scores import Label
from promptcli.models.parity import lowest_cosine
from promptcli.plugins.papers.mteb_tasks import MtebEncoder
from tests.published_folders import write_folder
from tests.role_prompts import PROMPTS, vectors_behind
from tests.tiny import SENTENCES


@pytest.fixture
def folder(bert_folder, tmp_path):
    return write_folder(tmp_path, bert_folder, prompts=PROMPTS)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    return path


def cosines(queries, documents):
    sides = (side / np.linalg.norm(side, axis=1)[:, None] for side in (queries, documents))
    return np.matmul(*(side.T if number else side for number, side in enumerate(sides)))


def scores(hits):
    return {hit["text"]: hit["score"] for hit in hits}


def test_documents_and_queries_have_their_prompts_on_the_command_line(run, folder, text, tmp_path):
    built = run("index", "build", text, "-o", tmp_path / "i", "-m", folder, "--dtype", "float32")
    assert built.err.startswith("documents begin with the model's prompt 'document': 'flowers : '")
    assert "'document': 'flowers : '" in run("index", "info", tmp_path / "i").out
    (tmp_path / "more.txt").write_text("A boat.\n")
    assert "'document'" in run("index", "add", tmp_path / "i", tmp_path / "more.txt").err
    index, rows = pc.SentenceIndex.open(tmp_path / "i"), [*SENTENCES, "A boat."]
    stored = index.store.vectors(range(len(index)))
    assert lowest_cosine(stored, vectors_behind(folder, "flowers : ", rows)) >= 0.9999
    assert index.load_origin().prompt == "document"
    expected = cosines(
        vectors_behind(folder, "two dogs : ", ["A cat."]),
        vectors_behind(folder, "flowers : ", rows),
    )[0]
    (tmp_path / "q.txt").write_text("A cat.\n")
    for query in ("A cat.", tmp_path / "q.txt"):
        ran = run("index", "search", tmp_path / "i", query, "-k", 99, "--json")
        assert ran.err.startswith("queries begin with the model's prompt 'query': 'two dogs : '\n")
        found = scores(map(json.loads, ran.out.splitlines()))
        assert [found[row] for row in rows] == pytest.approx(expected.tolist(), abs=1e-4)


def test_vectors_of_embed_keep_their_prompts_and_are_no_documents(run, folder, text, tmp_path):
    assert (
        run("embed", text, "-o", tmp_path / "v.npy", "-m", folder, "--dtype", "float32").err.count(
            "prompt"
        )
        == 0
    )
    built = run("index", "build", tmp_path / "v.npy", "-o", tmp_path / "i")
    assert "without the model's prompt for documents" in built.err
    ran = run("index", "search", tmp_path / "i", "A cat.", "-k", 1, "--json")
    expected = cosines(
        vectors_behind(folder, "two dogs : ", ["A cat."]), vectors_behind(folder, "")
    )[0]
    assert ran.json["score"] == pytest.approx(expected.max(), abs=1e-4)


def test_an_index_of_the_library_equals_sentence_transformers(folder, tmp_path):
    encoder = pc.load(folder, device="cpu", dtype="float32")
    index = pc.SentenceIndex.build(SENTENCES, encoder, output=tmp_path / "i")
    index.add(["A boat."])
    rows = [*SENTENCES, "A boat."]
    documents, queries = (
        vectors_behind(folder, "flowers : ", rows),
        vectors_behind(folder, "two dogs : "),
    )
    if importlib.util.find_spec("sentence_transformers") is not None:
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(str(folder), device="cpu")
        assert lowest_cosine(documents, theirs.encode_document(rows)) >= 0.9999
        assert lowest_cosine(queries, theirs.encode_query(SENTENCES)) >= 0.9999
    assert lowest_cosine(index.store.vectors(range(len(rows))), documents) >= 0.9999
    for each in (
        index,
        pc.SentenceIndex.open(tmp_path / "i"),
        pc.SentenceIndex.open(tmp_path / "i", folder),
    ):
        for hits, row in zip(
            each.search(SENTENCES, k=99, by="meaning"), cosines(queries, documents), strict=True
        ):
            assert [hit.score for hit in hits] == pytest.approx(
                [row[hit.id] for hit in hits], abs=1e-4
            )


def test_a_search_of_files_puts_both_prompts_in_front(folder, text):
    encoder = pc.load(folder, device="cpu", dtype="float32")
    lines = pc.search("A cat.", text, k=99, model=encoder, by="meaning")
    expected = cosines(
        vectors_behind(folder, "two dogs : ", ["A cat."]), vectors_behind(folder, "flowers : ")
    )[0]
    assert [line.score for line in lines] == pytest.approx(sorted(expected, reverse=True), abs=1e-4)


@pytest.mark.parametrize(
    ("prompts", "query", "document"),
    [
        ({"query": "q : ", "passage": "p : "}, "q : ", "p : "),
        ({"search_query": "q : ", "search_document": "p : "}, "q : ", "p : "),
        ({"query": "q : "}, "q : ", ""),
        ({"other": "o : "}, "", ""),
        (None, "", ""),
    ],
)
def test_prompts_of_a_role_are_known_by_their_usual_names(
    bert_folder, tmp_path, notes, prompts, query, document
):
    encoder = pc.load(
        write_folder(tmp_path, bert_folder, prompts=prompts), device="cpu", dtype="float32"
    )
    for role, prompt in (("query", query), ("document", document)):
        notes.clear()
        vectors = encoder.in_role(role, report=True).encode(SENTENCES)
        np.testing.assert_allclose(vectors, encoder.encode(SENTENCES, prompt=prompt), atol=1e-5)
        assert len(notes) == bool(prompt)


def test_retrieval_takes_both_prompts_and_other_tasks_none(folder, tmp_path, notes):
    rows = [(*SENTENCES[:2], 1), (*SENTENCES[2:4], 1), *(("", text, 0) for text in SENTENCES[4:])]
    path = tmp_path / "q.tsv"
    path.write_text(
        "query\tdocument\tgrade\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows)
    )
    encoder = pc.load(folder, device="cpu", dtype="float32")
    retrieval, demo = sorted(
        pc.evaluate(encoder, [f"retrieval:{path}", "demo:dev"]), key=lambda score: score.metric
    )
    told = [line.split(" begin")[0] for line in notes if " begin with the model's prompt" in line]
    assert told == ["queries", "documents"]
    assert demo.value == pc.evaluate(encoder, "demo:dev")[0].value
    queries = vectors_behind(folder, "two dogs : ", [SENTENCES[0], SENTENCES[2]])
    near = cosines(queries, vectors_behind(folder, "flowers : ", [row[1] for row in rows]))
    gains = [1 / np.log2(2 + (line > line[place]).sum()) for place, line in enumerate(near)]
    assert retrieval.value == pytest.approx(100 * np.mean(gains), abs=0.01)


@pytest.mark.parametrize(
    ("kind", "side", "prompt"),
    [
        ("Retrieval", "query", "two dogs : "),
        ("Retrieval", "document", "flowers : "),
        ("STS", None, "a man : "),
        ("Classification", None, ""),
    ],
)
def test_mteb_s_tasks_have_their_prompts(folder, kind, side, prompt):
    encoder = pc.load(folder, device="cpu", dtype="float32")
    model = MtebEncoder(encoder, encoder.fingerprint, Label("m", "r"))
    task, role = SimpleNamespace(name="A task", type=kind), side and SimpleNamespace(value=side)
    vectors = model.encode(
        [{"text": SENTENCES}], task_metadata=task, prompt_type=role, hf_split="test"
    )
    assert lowest_cosine(vectors, vectors_behind(folder, prompt)) >= 0.9999
