"""One ``evaluate`` for tasks of every kind: order, retrieval, metrics of a user's own, wrong
names.
"""

import json
import random

import numpy as np
import pytest
import torch

import promptcli as pc
from promptcli.data.task_table import TASKS, TaskRow, read_graded_pairs
from promptcli.data.tasks import RetrievalTask, load_tasks, task_names
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation import statistics
from tests.comparing import refusal
from tests.tiny import SENTENCES


@pytest.fixture
def encoder(tiny_backbone):
    backbone = tiny_backbone("bert")
    return TorchEncoder(pc.Recipe(backbone=backbone.name, pooling="last/avg"), backbone, {})


@pytest.fixture
def documents(tmp_path):
    """Two queries, three graded documents and two that are neither's."""
    rows = [
        ("cats", SENTENCES[0], 2),
        ("cats", SENTENCES[1], 1),
        ("dogs", SENTENCES[2], 1),
        ("dogs", SENTENCES[0], 0),
    ]
    rows += [("", SENTENCES[3], 0), ("", SENTENCES[4], 0)]
    path = tmp_path / "notes.tsv"
    path.write_text("query\tdocument\tgrade\n" + "".join(f"{q}\t{d}\t{g}\n" for q, d, g in rows))
    return path


def test_a_retrieval_set_is_a_file(encoder, documents):
    [score] = pc.evaluate(encoder, f"retrieval:{documents}")
    vectors = encoder.encode(SENTENCES[:5], normalize_embeddings=True)
    gains = []
    for query, grades in (("cats", {0: 2, 1: 1}), ("dogs", {2: 1})):
        order = np.argsort(
            -(vectors @ encoder.encode(query, normalize_embeddings=True)), kind="stable"
        )
        gain = sum(grades.get(place, 0) / np.log2(rank + 2) for rank, place in enumerate(order))
        ideal = sum(
            grade / np.log2(rank + 2)
            for rank, grade in enumerate(sorted(grades.values(), reverse=True))
        )
        gains.append(gain / ideal)
    assert score.value == pytest.approx(100 * np.mean(gains), abs=1e-6)
    assert (score.recall_at_10, score.queries, score.documents) == (100, 2, 5)
    assert (score.metric, score.task) == ("ndcg@10", f"retrieval:{documents}")
    assert score.ci95[0] <= score.value <= score.ci95[1]
    assert score.to_dict()["recall@10"] == 100
    renamed = documents.with_name("others.tsv")
    renamed.write_text(documents.read_text().replace("query\tdocument\tgrade", "q\td\tg"))
    [same] = pc.evaluate(encoder, f"retrieval:{renamed}:q,d,g")
    assert same.value == score.value


def test_ndcg_and_recall_are_those_of_scikit_learn():
    metrics = pytest.importorskip(
        "sklearn.metrics", reason="scikit-learn, the peer, is not installed"
    )
    # neighbouring cosines differ by 8.8e-6 or more: float32 tells them apart
    generator = np.random.default_rng(3)
    queries, documents = generator.standard_normal((20, 8)), generator.standard_normal((300, 8))
    graded = generator.integers(0, 4, (20, 300)) * (generator.random((20, 300)) < 0.05)
    graded[:, 0] = 1
    ranked = statistics.nearest(queries, documents, 100)
    grades = [{int(place): float(row[place]) for place in np.flatnonzero(row)} for row in graded]
    lengths = np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(documents, axis=1))
    cosines = queries @ documents.T / lengths
    assert statistics.ndcg(ranked, grades).mean() == pytest.approx(
        metrics.ndcg_score(graded, cosines, k=10), abs=1e-9
    )
    order = np.argsort(-cosines, axis=1)[:, :100]
    assert np.array_equal(ranked, order)
    expected = [
        np.isin(np.flatnonzero(row), best).mean() for row, best in zip(graded, order, strict=True)
    ]
    assert np.allclose(statistics.recall(ranked, grades, 100), expected)


def test_equal_documents_stand_in_their_order():
    ranked = statistics.nearest(np.ones((1, 2)), np.ones((5, 2)), 3)
    assert ranked.tolist() == [[0, 1, 2]]


def test_a_file_without_grades_is_refused(encoder, tmp_path):
    with refusal("no query has a document with a grade above 0", pc.PromptcliError):
        RetrievalTask.of("notes", [("a", "b", 0.0), ("", "c", 1.0)])
    (tmp_path / "bad.csv").write_text("query,document,grade\na,b,good\n")
    with refusal(r"bad.csv: row 1: the score 'good' in 'grade' is not a number", pc.PromptcliError):
        pc.evaluate(encoder, f"retrieval:{tmp_path / 'bad.csv'}")


def test_a_metric_of_ones_own_is_a_function(encoder, monkeypatch):
    def mean_gap(parts):
        first, second, gold = parts["all"]
        return np.abs((first * second).sum(1) - gold).mean()

    rows = [(SENTENCES[0], SENTENCES[1], 1.0), (SENTENCES[2], SENTENCES[0], 0.0)]
    monkeypatch.setitem(TASKS, "GAP", TaskRow(mean_gap, lambda folder: {"all": rows}))
    [score] = pc.evaluate(encoder, "GAP")
    one, other, third = encoder.encode(SENTENCES[:3])
    assert score.value == pytest.approx((abs(one @ other - 1) + abs(third @ one)) / 2, rel=1e-5)
    assert (score.metric, score.task) == ("mean_gap", "GAP")


def test_several_models_and_kinds_come_in_one_order(encoder, documents):
    cls = TorchEncoder(
        pc.Recipe(backbone=encoder.recipe.backbone, pooling="last/cls"), encoder.backbone, {}
    )
    scores = pc.evaluate([encoder, cls], [f"retrieval:{documents}", "demo:dev", "demo"])
    assert [(score.label.recipe, score.column.partition(":")[0]) for score in scores] == [
        (recipe, task) for recipe in ("last-avg", "cls") for task in ("demo", "demo", "retrieval")
    ]
    assert scores[0].value == pc.evaluate(encoder, "demo")[0].value


def test_global_random_numbers_stay_as_they_are(encoder):
    torch.manual_seed(3)
    expected = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    pc.evaluate(encoder, ["demo"])
    assert torch.equal(expected[0], torch.get_rng_state()) and expected[2] == random.getstate()
    assert np.array_equal(expected[1], np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (5, "task 5 is int, not a name"),
        (None, "task None is NoneType, not a name"),
        ("STS-X", "unknown task 'STS-X'; valid: STS12.*; did you mean STS"),
        ("nowhere.csv", r"nowhere\.csv"),
        ("retrieval:nowhere.csv", r"nowhere\.csv"),
        ("retrieval:", "retrieval"),
        ("MR", "MR is missing: .*data_dir"),
    ],
)
def test_wrong_tasks_are_one_line(encoder, task, message):
    with refusal(message, pc.PromptcliError) as caught:
        pc.evaluate(encoder, [task])
    assert "\n" not in str(caught.value)


#: Queries, documents and judgements as BEIR and MS MARCO distribute them.
BEIR = {
    "corpus.jsonl": '{"_id": "d1", "title": "Cats", "text": "They purr."}\n'
    '{"_id": "d2", "title": "", "text": "Dogs bark."}\n'
    '{"_id": "d3", "title": "Fish", "text": "They swim."}\n',
    "queries.jsonl": '{"_id": "q1", "text": "who purrs"}\n{"_id": "q2", "text": "who barks"}\n'
    '{"_id": "q3", "text": "x"}\n',
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t2\nq2\td2\t1\nq2\td3\t0\n",
    "qrels/dev.tsv": "query-id\tcorpus-id\tscore\nq3\td3\t1\n",
}  # fmt: skip
MARCO = {
    "collection.tsv": "0\tCats They purr.\n1\tDogs bark.\n2\tFish They swim.\n",
    "queries.dev.small.tsv": "7\twho purrs\n8\twho barks\n",
    "queries.train.tsv": "9\tx\n",
    "qrels.dev.small.tsv": "7 0 0 2\n8 0 1 1\n",
}


@pytest.mark.parametrize(
    ("files", "name", "queries"),
    [
        (BEIR, "", ["who purrs", "who barks"]),
        (BEIR, "qrels/test.tsv", ["who purrs", "who barks"]),
        (BEIR, "qrels/dev.tsv", ["x"]),
        (MARCO, "", ["who purrs", "who barks"]),
        (MARCO, "qrels.dev.small.tsv", ["who purrs", "who barks"]),
    ],
)
def test_folders_of_beir_and_ms_marco_are_retrieval_tasks(files, name, queries, tmp_path):
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(content)
    (task,) = load_tasks(None, task_names(f"retrieval:{tmp_path / name}")).tasks
    assert task.queries == queries and sorted(task.documents) == [
        "Cats They purr.",
        "Dogs bark.",
        "Fish They swim.",
    ]
    judged = [
        [(task.documents[number], grade) for number, grade in grades.items()]
        for grades in task.grades
    ]
    expected = [[("Cats They purr.", 2)], [("Dogs bark.", 1)]]
    assert judged == ([[("Fish They swim.", 1)]] if queries == ["x"] else expected)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "qrels/test.tsv",
            "query-id\tcorpus-id\tscore\nq1\td1\n",
            r"test.tsv: line 2: give query, document and grade",
        ),
        ("corpus.jsonl", None, r"has no documents; .* corpus.jsonl"),
    ],
)
def test_a_retrieval_folder_that_is_not_one(name, content, message, tmp_path):
    (tmp_path / "qrels").mkdir()
    for file, text in (BEIR | {name: content}).items():
        if text is not None:
            (tmp_path / file).write_text(text)
    with refusal(message, pc.PromptcliError):
        pc.evaluate("mini", f"retrieval:{tmp_path}")


def test_judged_documents_that_are_missing_are_never_found(tmp_path, notes):
    (tmp_path / "qrels").mkdir()
    judged = "query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\tgone\t1\nq9\td2\t1\nq2\td2\t1\n"
    for file, text in (BEIR | {"qrels/test.tsv": judged}).items():
        (tmp_path / file).write_text(text)
    [score] = pc.evaluate("mini-static", f"retrieval:{tmp_path}")
    ideal = 1 + 1 / np.log2(3)  # of two documents, one of which is found first
    assert score.by_example == pytest.approx([1 / ideal, 1])
    assert (score.queries, score.documents, score.recall_at_10) == (2, 3, 75)
    assert "1 judged document missing" in notes.text and "1 judgement of missing" in notes.text


@pytest.mark.parametrize("by", ["meaning", "words", "both"])
def test_a_query_that_is_a_document_is_no_answer_to_itself(by, tmp_path, notes):
    (tmp_path / "qrels").mkdir()
    texts = [f"The {thing} {what}." for thing in ("lamp", "clock") for what in ("broke", "fell")]
    documents = [{"_id": str(number), "text": text} for number, text in enumerate(texts)]
    documents.append({"_id": "copy", "text": texts[2]})  # another's text is an answer
    queries = [*documents[::2][:2], {"_id": "1", "text": "other text, same id"}]
    lines = {"corpus": documents, "queries": queries}
    for name, rows in lines.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    judged = "query-id\tcorpus-id\tscore\n0\t1\t1\n2\tcopy\t1\n1\t3\t1\n"
    (tmp_path / "qrels/test.tsv").write_text(judged)
    scores = pc.evaluate("mini-static", f"retrieval:{tmp_path}", by=by)
    assert list(scores.tasks[0].left_out.items()) == [
        (0, scores.tasks[0].documents.index(texts[0]))
    ]
    assert scores[0].by_example[:2] == pytest.approx([1, 1])
    assert "1 queries are documents" in notes.text


def test_a_pair_with_an_empty_side_is_left_out_and_said(tmp_path, notes):
    path = tmp_path / "pairs.csv"
    path.write_text("sentence1,sentence2,score\na,b,1\n,c,2\nd,e,3\n")
    assert read_graded_pairs(path) == [("a", "b", 1.0), ("d", "e", 3.0)]
    assert "1 row with an empty sentence left out" in notes.text
