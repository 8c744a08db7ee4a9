"""``analyze map``: sentences in a plane, coloured by a column, as a picture and as a page."""

import json
import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import promptcli as pc
from promptcli.encoder.encoder import TorchEncoder
from promptcli.plugins.analyze import sentence_map
from promptcli.plugins.analyze.pictures import GREY
from promptcli.plugins.analyze.sentence_map import MAX_CLASSES, METHODS, groups_of
from tests.comparing import refusal, refused

pytest.importorskip("sklearn")


def clouds(per_cloud, width=8):
    """Unit vectors around two opposite directions."""
    generator = np.random.default_rng(0)
    centre = np.zeros(width)
    centre[0] = 8
    first = generator.normal(size=(per_cloud, width)) + centre
    second = generator.normal(size=(per_cloud, width)) - centre
    vectors = np.concatenate([first, second])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_near_sentences_are_near_in_the_plane(method):
    vectors = clouds(12)
    points = METHODS[method].place(vectors, 0)
    assert points.shape == (24, 2) and np.isfinite(points).all()
    own = points[:12].mean(0)
    other = points[12:].mean(0)
    for point in points[:12]:
        assert np.linalg.norm(point - own) < np.linalg.norm(point - other)
    assert sentence_map._trustworthiness(vectors, points) > 0.7
    np.testing.assert_array_equal(points, METHODS[method].place(vectors, 0))


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_three_sentences_are_enough(method):
    points = METHODS[method].place(clouds(2)[:3], 0)
    assert points.shape == (3, 2) and np.isfinite(points).all()


@pytest.mark.real  # it needs none of the models, but UMAP compiles itself for most of a minute
@pytest.mark.skipif(not os.environ.get("PROMPTCLI_REAL_MODELS"), reason="UMAP compiles itself")
def test_umap_lays_out_few_sentences_and_many():
    pytest.importorskip("umap")
    for per_cloud in (2, 12):
        points = METHODS["umap"].place(clouds(per_cloud), 0)
        assert points.shape == (2 * per_cloud, 2) and np.isfinite(points).all()


@pytest.mark.parametrize(
    ("count", "near", "start"), [(4, 3, "random"), (15, 14, "random"), (24, 15, "spectral")]
)
def test_umap_has_no_more_neighbours_than_sentences(count, near, start, monkeypatch):
    asked = {}

    class UMAP:
        def __init__(self, **settings):
            asked.update(settings)

        def fit_transform(self, vectors):
            return vectors[:, :2]

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    METHODS["umap"].place(clouds(12)[:count], 7)
    assert (asked["n_neighbors"], asked["init"], asked["random_state"]) == (near, start, 7)


def test_points_without_a_column_are_alike():
    (group,) = groups_of(None, 4)
    assert (group.name, group.rows) == ("", [0, 1, 2, 3])


def test_few_classes_have_a_colour_and_a_mark_each():
    groups = groups_of(["b", "a", "", "a", " a "], 5)
    assert [(group.name, group.rows) for group in groups] == [
        ("a (3)", [1, 3, 4]),
        ("b (1)", [0]),
        ("no value (1)", [2]),
    ]
    looks = {(group.colour, group.mark) for group in groups}
    assert len(looks) == 3 and groups[2].colour == GREY


def test_of_300_classes_the_most_frequent_have_a_colour():
    values = [f"class {number % 300}" for number in range(1000)]
    groups = groups_of(values, 1000)
    assert len(groups) == MAX_CLASSES + 1
    assert [group.colour == GREY for group in groups] == [*[False] * MAX_CLASSES, True]
    assert groups[-1].name.startswith("293 others (")
    assert sorted(row for group in groups for row in group.rows) == list(range(1000))
    assert len({(group.colour, group.mark) for group in groups}) == MAX_CLASSES + 1


@pytest.mark.parametrize("frequent", [["b", "a", "b", "a", "a"], []])
def test_among_many_classes_one_of_a_single_point_has_no_colour(frequent):
    values = [*frequent, *(f"name {number}" for number in range(398))]
    *coloured, others = groups_of(values, len(values))
    assert [group.name for group in coloured] == ["a (3)", "b (2)"][: len(frequent)]
    kind = "others" if frequent else "values"
    assert (others.name, others.colour) == (f"398 {kind} (398)", GREY)


def test_many_numbers_are_a_scale_and_few_are_classes():
    values = [*(str(number / 2) for number in range(40)), ""]
    scale, without = groups_of(values, 41)
    assert scale.numbers == [number / 2 for number in range(40)] and without.rows == [40]
    assert [group.name for group in groups_of(["1", "2", "1"], 3)] == ["1 (2)", "2 (1)"]
    assert groups_of([*values, "unknown"], 42)[0].numbers is None  # a text among them: classes


ROWS = [
    (f"Sentence {number} is about {'cats' if number % 2 else 'rain'}.", number)
    for number in range(12)
]


@pytest.fixture
def table(tmp_path):
    """A table with sentences, one of them blank, a topic and a number."""
    path = tmp_path / "table.csv"
    lines = ["id,text,topic,size"]
    for sentence, number in ROWS:
        lines.append(f"i{number},{sentence},{'cats' if number % 2 else 'rain'},{number}")
    lines.append("i12,,cats,12")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def analyze(run, bert_folder):
    """Run ``analyze map`` on a tiny backbone, by the fastest method."""
    model = ("-m", "cls", "--backbone", bert_folder, "--offline")
    return lambda *given: run("analyze", "map", *given, *model, "--set", "method=pca")


def test_the_command_prints_a_table_and_json(analyze, table):
    ran = analyze(table, "--color", "topic")
    assert ran.code == 0, ran.err
    assert re.search(r"PCA +12 +[01]\.\d\d", ran.out)
    (row,) = analyze(table, "--color", "topic", "--json").json["results"]
    assert row["sentences"] == [sentence for sentence, _ in ROWS]
    assert row["values"] == ["rain", "cats"] * 6
    assert np.array(row["points"]).shape == (12, 2)
    assert 0 <= row["trustworthiness"] <= 1


@pytest.mark.parametrize("kind", [".png", ".svg", ".pdf"])
def test_a_picture_is_drawn(kind, analyze, table, tmp_path):
    path = tmp_path / f"map{kind}"
    ran = analyze(table, "--color", "size", "--plot", path)
    assert ran.code == 0, ran.err
    assert path.stat().st_size > 1000


def page_data(text):
    """The traces of a page."""
    found = re.search(r"Plotly\.newPlot\(\s*\"map\",\s*(\[.*?\])\s*,\s*\{\"template\"", text, re.S)
    return json.loads(found[1])


def test_a_page_shows_sentences_and_needs_no_network(analyze, tmp_path):
    table = tmp_path / "hostile.csv"
    script = "</script><script>alert(1)</script> costs $5 & <a href='x'>more</a>"
    lines = ["text\tkind"]
    lines += [f"{script} {number}\t{'<b>odd</b>' if number % 2 else 'even'}" for number in range(9)]
    lines.append(f"{'long ' * 400}\teven")
    table.write_text("\n".join(lines) + "\n")
    path = tmp_path / "map.html"
    ran = analyze(table, "--color", "kind", "--plot", path)
    assert ran.code == 0, ran.err
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text and text.count("<script") == text.count("</script>")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)  # nothing is fetched
    even, odd = sorted(page_data(text), key=lambda trace: trace["name"], reverse=True)
    assert (even["name"], odd["name"]) == ("even (6)", "&lt;b&gt;odd&lt;/b&gt; (4)")
    shown = odd["hovertext"][0]
    assert "&lt;script&gt;alert(1)" in shown and shown.endswith("kind: &lt;b&gt;odd&lt;/b&gt;")
    assert even["hovertext"][-1].count("<br>") == 12 and " …" in even["hovertext"][-1]
    assert even["marker"]["symbol"] != odd["marker"]["symbol"]
    assert len(even["x"]) == len(even["y"]) == 6


def test_two_models_are_two_panels(tiny_backbone, table, tmp_path):
    encoders = [
        TorchEncoder(pc.Recipe(backbone="tiny", pooling=pooling), tiny_backbone("bert"), {})
        for pooling in ("last/avg", "last/cls")
    ]
    found = pc.analyze("map", encoders, str(table), color="topic", method="pca")
    named = {str(number): plane for number, plane in enumerate(found.values())}
    traces = page_data(sentence_map.map_page(named, "topic"))
    assert [trace["showlegend"] for trace in traces] == [True, True, False, False]
    assert [trace["xaxis"] for trace in traces] == ["x", "x", "x2", "x2"]
    sentence_map.draw_map(tmp_path / "two.png", named, "topic")


def test_equal_vectors_have_no_map(tiny_backbone):
    encoder = TorchEncoder(pc.Recipe(backbone="tiny"), tiny_backbone("bert"), {})
    with refusal("same vector"):
        pc.analyze("map", encoder, ["One.", "One.", "One."], method="pca")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--color", "topik"], ["no column 'topik'", "id, topic, size", "topic?"]),
        (["--color", "text"], ["no column 'text' apart from its sentences"]),
        (["--plot", "map.gif"], [".png or .svg or .pdf or .html"]),
        (["--set", "method=mds"], ["unknown method 'mds'", "pca, tsne, umap"]),
        (["--set", "first=2"], ["at least 3 sentences"]),
    ],
)
def test_a_map_that_cannot_be_is_refused(given, words, run, table, bert_folder):
    model = ("-m", "cls", "--backbone", bert_folder)
    refused(run("analyze", "map", table, *model, *given, "-q"), 2, *words)


def test_columns_of_what_has_none_are_refused(run, tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_text("One.\nTwo.\nThree.\n")
    refused(run("analyze", "map", plain, "--color", "topic", "-q"), 2, "has no column", "color")
    refused(run("analyze", "map", "demo", "--color", "topic", "-q"), 2, "'demo' is not a file")
    refused(run("analyze", "anisotropy", plain, "--color", "topic", "-q"), 2, "applies to map")
    refused(run("analyze", "anisotropy", plain, "--plot", "a.html", "-q"), 2, ".svg or .pdf\n")


def test_libraries_that_are_missing_are_named(run, table, tmp_path, monkeypatch):
    monkeypatch.setattr("promptcli.errors.missing_libraries", lambda *names: list(names))
    ran = run("analyze", "map", table, "--plot", tmp_path / "map.html", "-q")
    refused(ran, 2, "needs plotly", "[map]")
    refused(run("analyze", "map", table, "-q", "--set", "method=umap"), 2, "needs sklearn, umap")
