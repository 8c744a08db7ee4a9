"""``promptcli analyze``: what the commands print, draw and refuse."""

import json

import pytest

from promptcli.cli.pictures import plots
from promptcli.cli.pictures.maps import text_bar, token_map
from tests.tiny import SENTENCES


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*SENTENCES, ""]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def analyze(run, tiny_folder, tmp_path, monkeypatch):
    """Run ``promptcli analyze`` on the tiny BERT."""
    monkeypatch.chdir(tmp_path)
    return lambda *given: run("analyze", *given, "--backbone", tiny_folder("bert"), "--offline")


def test_anisotropy(analyze, corpus):
    ran = analyze("anisotropy", corpus, "--model", "last-avg", "--model", "static-avg", "--json")
    assert ran.code == 0 and ran.err == ""
    document = json.loads(ran.out)
    assert document["settings"] == {"first": 100_000, "sample": 0, "seed": 0, "lower": True, "words": 32}
    assert [row["recipe"] for row in document["results"]] == ["last-avg", "static-avg"]
    assert {row["vectors"] for row in document["results"]} == {len(SENTENCES)}
    chosen = [part for pair in ("sample=5", "seed=3", "lower=false", "words=0") for part in ("--set", pair)]
    drawn = json.loads(analyze("anisotropy", corpus, "-m", "cls", *chosen, "--json").out)
    assert drawn["settings"]["lower"] is False and drawn["results"][0]["vectors"] == 5
    shown = analyze("anisotropy", corpus, "-m", "last-avg", "--set", "first=4")
    assert "4 sentences of" in shown.err and "eq. 1" in shown.err and "last-avg" in shown.out and "█" in shown.out


def test_anisotropy_bare_says_what_it_assumes_and_leaves_out(analyze):
    ran = analyze("anisotropy", "--set", "first=20")
    assert ran.code == 0 and "assumed: demo" in ran.err
    assert "static-ditto is left out: no head is known" in ran.err  # a folder has no known Ditto head
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == ["static-avg", "last-avg", "first-last-avg"]


def test_map(run, tiny_folder, corpus, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    words = ("analyze", "map", corpus, "--model", tiny_folder("bert"), "--offline")
    document = json.loads(run(*words, "--json", "--plot", tmp_path / "map.svg").out)
    [row] = document["results"]
    assert document["settings"] == {"first": 2000} and row["method"] == "t-SNE" and 0 <= row["trustworthiness"] <= 1
    assert len(row["points"]) == len(row["clusters"]) == len(SENTENCES) and "<svg" in (tmp_path / "map.svg").read_text()
    shown = run(*words, "--set", "first=5")
    assert "5 sentences by t-SNE" in shown.err and shown.out.splitlines()[1].split()[-1] == "5"


def test_anisotropy_of_tokens(analyze, tiny_backbone, tiny_folder):
    row = json.loads(analyze("vocabulary", "--json").out)["results"][0]
    assert (row["model"], row["vectors"]) == (str(tiny_folder("bert")), len(tiny_backbone("bert").token_rows))


def test_uniformity(analyze, tmp_path):
    document = json.loads(analyze("uniformity", "--model", "last-avg", "--json").out)
    assert document["on"] == ["demo:dev", "demo"]
    assert document["results"][0]["sentences"] == 2 * (1355 + 1390)
    shown = analyze("uniformity", "demo:dev", "-m", "last-avg")
    assert "demo:dev; 2,780 sentences" in shown.err
    assert "assumed: demo pairs" in analyze("uniformity", "-m", "last-avg").err
    assert shown.out.splitlines()[0].split() == ["alignment", "uniformity"]
    folder = tmp_path / "STS" / "STSBenchmark"
    folder.mkdir(parents=True)
    for split, golds in (("train", (4.2, 1.0)), ("dev", (5.0, 0.0)), ("test", (3.0, 4.8))):
        rows = [f"a\tb\tc\td\t{gold}\t{SENTENCES[row]}\t{SENTENCES[row + 1]}\n" for row, gold in enumerate(golds)]
        (folder / f"sts-{split}.csv").write_text("".join(rows))
    real = json.loads(analyze("uniformity", "-m", "last-avg", "--data-dir", tmp_path, "--json").out)
    assert real["on"] == ["STS-B:train", "STS-B:dev", "STS-B"]
    assert (real["results"][0]["positives"], real["results"][0]["sentences"]) == (3, 12)
    (folder / "sts-dev.csv").unlink()
    gone = analyze("uniformity", "-m", "last-avg", "--data-dir", tmp_path, "-q")
    assert gone.code == 3 and "STS-B:dev is missing" in gone.err and gone.err.count("\n") == 1


def test_token_bias(analyze, corpus):
    document = json.loads(analyze("token-bias", corpus, "--json").out)["results"][0]
    assert document["tokens"] == sum(group["tokens"] for group in document["groups"] if group["bias"] == "subword")
    assert 0 < document["variance"][1] <= document["variance"][0] < 1
    assert set(document["between"]) == {"frequency", "subword", "case"}
    shown = analyze("token-bias", corpus, "--set", "states=mlm-head")
    assert "output embeddings" in shown.err and "continues a word" in shown.out and "never" in shown.out


def test_impact(analyze, corpus):
    document = json.loads(analyze("impact", "The dog barks", "--json").out)["results"][0]
    count = len(document["tokens"])
    assert len(document["matrix"]) == len(document["means"]) == count > 2
    assert [document["matrix"][place][place] for place in range(count)] == [0.0] * count
    shown = analyze("impact", "The dog barks", "-q")
    assert shown.err == "" and "mean impact on all" in shown.out and "█99" in shown.out
    counted = ("--set", f"corpus={corpus}", "--set")
    (study,) = json.loads(analyze("impact-tfidf", corpus, *counted, "first=3", "--json").out)["results"]
    assert (study["sentences"], study["left_out"]) == (3, 0) and set(study["correlation"]) == {"pearson", "spearman"}
    table = analyze("impact-tfidf", corpus, *counted, "first=2")
    assert "all tokens together" in table.out and "2 sentences, " in table.err


def test_attention(analyze):
    document = json.loads(analyze("attention", "The dog barks", "--set", "head=2-3", "--json").out)["results"][0]
    assert document["head"] == "2-3" and document["tokens"][0] == "[CLS]"
    assert [row[place] for place, row in enumerate(document["matrix"])] == document["diagonal"]
    shown = analyze("attention", "--set", "head=1-1")
    assert "assumed: A baker" in shown.err and "to itself" in shown.out


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("anisotropy", "corpus.txt", "-m", "cls", "-m", "last-avg"), "bars.svg"),
        (("uniformity", "demo:dev", "-m", "cls", "-m", "last-avg", "-m", "static-avg"), "points.png"),
        (("token-bias", "corpus.txt"), "tokens.png"),
        (("impact", "it costs $5 or $6"), "impact.png"),
        (("impact-tfidf", "corpus.txt", "--set", "first=2"), "tfidf.svg"),
        (("attention", "it costs $5 or $6", "--set", "head=1-1"), "attention.png"),
    ],
)
def test_pictures(command, name, analyze, corpus, tmp_path):
    pytest.importorskip("matplotlib")
    ran = analyze(*command, "--plot", name)
    assert ran.code == 0, ran.err
    assert f"drawn to {name}" in ran.err
    assert (tmp_path / name).read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
    again = analyze(*command, "--plot", name)
    assert again.code == 2 and "`force`" in again.err and again.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("anisotropy", "empty.txt"), 2, "empty.txt is empty"),
        (("anisotropy", "one.txt"), 2, "at least 2"),
        (("anisotropy", "nowhere.txt"), 3, "no file 'nowhere.txt' with sentences"),
        (("uniformity", "demo:train"), 2, "unknown task 'demo:train'; valid: "),
        (("impact", "one", "two"), 2, "one sentence, not 2"),
        (("vocabulary", "one"), 2, "leave out 'one'"),
        (("anisotrpy",), 2, "unknown analysis 'anisotrpy'"),
        (("impact-tfidf", "one.txt", "--set", "frist=1"), 2, "unknown setting 'frist'"),
        (("anisotropy", "one.txt", "--set", "first=x"), 2, "--set first: 'x' is not allowed; it takes a whole number"),
        (("attention", "one", "--set", "head=9-9"), 2, "head '9-9' does not exist"),
        (("attention", "one", "--plot", "map.gif"), 2, "a name that ends in .png or .svg"),
    ],
)
def test_what_is_refused_in_one_line(arguments, code, message, analyze, tmp_path):
    for name, text in (("empty", ""), ("one", "A single sentence.\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    ran = analyze(*arguments, "-q")
    assert (ran.code, ran.out) == (code, "") and message in ran.err and ran.err.count("\n") == 1


def test_no_two_labels_of_points_touch(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    boxes = []

    label = plots._label

    def watched(panel, points):
        label(panel, points)
        boxes.extend(text.get_window_extent() for text in panel.texts)

    monkeypatch.setattr(plots, "_label", watched)
    points = {"first of all": (0.0, 0.0), "second": (0.02, 0.0), "third one": (0.0, 0.02), "far": (1.0, 1.0)}
    plots.draw_points(tmp_path / "points.png", points, ("across", "up"), "title")
    assert len(boxes) == 4
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_maps_and_bars_read_without_colour():
    lines = [line.plain for line in token_map(["the", "dog"], [[0.0, 0.5], [1.0, 0.25]])]
    assert lines[0].split() == ["1", "2"]
    assert lines[1].split()[:2] == ["1", "the"] and lines[2].endswith("█99 ░25") and "▒50" in lines[1]
    assert token_map(["a"], [[0.0]])[1].plain.split()[-1] == "0"  # nothing but zeros: no division by zero
    assert [text_bar(share, 4) for share in (0.0, 0.5, 1.0, 2.0, 0.53125)] == ["", "██", "████", "████", "██▏"]


@pytest.mark.data
def test_impact_goes_with_tfidf_on_real_text(data_folder, run, tmp_path):
    lines = (data_folder / "pud" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    short = [line for line in lines if len(line) < 60]  # a sentence of n tokens is n^2 / 2 inputs
    (tmp_path / "short.txt").write_text("\n".join(short), encoding="utf-8")
    ran = run("analyze", "impact-tfidf", tmp_path / "short.txt", "--set", "first=10", "--offline", "--json")
    (study,) = json.loads(ran.out)["results"]
    assert study["sentences"] == 10 and study["correlation"]["spearman"] > 0
