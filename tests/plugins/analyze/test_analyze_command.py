"""``promptcli analyze``: tables, JSON, pictures and refusals."""

import shlex

import pytest

from promptcli.plugins.analyze import pictures
from promptcli.plugins.analyze.geometry import Uniformity
from tests.comparing import refused
from tests.kept_figures import keep_figures
from tests.senteval import write_pairs
from tests.tiny import SENTENCES


@pytest.fixture
def analyze(run, bert_folder, here):
    """Run ``promptcli analyze`` on the tiny BERT, in a folder with a few files."""
    for name, lines in (
        ("corpus", [*SENTENCES, ""]),
        ("empty", []),
        ("one", ["A single sentence."]),
    ):
        (here / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (here / "taken.png").write_text("")
    return lambda *given: run("analyze", *given, "--backbone", bert_folder, "--offline")


@pytest.mark.parametrize(
    ("command", "picture", "key", "shown"),
    [
        (
            "anisotropy corpus.txt -m cls -m last-avg",
            "bars.svg",
            "vectors",
            ("last-avg", "█", "eq. 1"),
        ),
        ("vocabulary", None, "vectors", ()),
        (
            "uniformity demo:dev -m cls",
            "points.png",
            "alignment",
            ("uniformity", "60 sentences"),
        ),
        (
            "token-bias corpus.txt --set states=mlm-head",
            "tokens.png",
            "groups",
            ("output embeddings", "never"),
        ),
        (
            "impact 'it costs $5 or $6'",
            "impact.png",
            "matrix",
            ("mean impact on all tokens", "100"),
        ),
        (
            "impact-tfidf corpus.txt --set first=3",
            "tfidf.pdf",
            "correlation",
            ("all tokens", "3 sentences, "),
        ),
        (
            "attention --set head=1-1",
            "attention.png",
            "diagonal",
            ("using the sentence 'A baker", "to itself"),
        ),
        (
            "mask-tokens 'one [bold]' --prompt bare",
            None,
            "sentences",
            ("one [bold]", "prompt=bare"),
        ),
    ],
)
def test_every_analysis_as_json_as_a_table_and_as_a_picture(
    command, picture, key, shown, analyze, tmp_path, monkeypatch
):
    command = shlex.split(command)
    assert key in analyze(*command, "--json").json["results"][0]
    if picture:
        matplotlib = pytest.importorskip("matplotlib")
        # as a matplotlibrc of the current folder may say
        monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
        command += ["--plot", picture]
    ran = analyze(*command)
    assert ran.code == 0 and all(words in ran.out + ran.err for words in shown)
    if picture:
        assert f"drawn to {picture}" in ran.err
        first = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[(tmp_path / picture).suffix]
        assert (tmp_path / picture).read_bytes().startswith(first)


def test_a_long_title_is_broken():
    figure = pytest.importorskip("matplotlib.figure").Figure((6.4, 3.0), layout="constrained")
    pictures.figure_title(figure, "mini-bert: anisotropy of 300 sentences, " * 3, "Two.")
    figure.draw_without_rendering()
    box = figure._suptitle.get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_the_legend_has_the_name_of_each_point(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    figures = keep_figures(monkeypatch, pictures)
    names = ["static-avg", "last-avg", "cls"]
    found = {name: Uniformity(0.1, -2.0, 3, 6) for name in names}
    Uniformity.draw(tmp_path / "all.png", found, "mini-bert")
    ((legend,),) = (figure.legends for figure in figures)
    assert [text.get_text() for text in legend.texts] == names


def test_settings_reach_the_analysis_and_rows_that_cannot_be_computed_are_left_out(analyze):
    given = ("--set", "sample=5", "--set", "seed=3", "--set", "lower=false", "--set", "words=0")
    document = analyze("anisotropy", "corpus.txt", "-m", "cls", *given, "--json").json
    assert document["settings"] == {
        "first": 100_000,
        "sample": 5,
        "seed": 3,
        "lower": False,
        "words": 0,
    }
    assert document["results"][0]["vectors"] == 5
    ran = analyze("anisotropy", "--set", "first=20")
    assert ran.code == 0 and "using the shipped demo sentences" in ran.err
    # a folder has no known Ditto head
    assert "static-ditto is left out: no head is known" in ran.err
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == [
        "static-avg",
        "last-avg",
        "first-last-avg",
    ]


@pytest.mark.parametrize("command", [("vocabulary",), ("token-bias", "corpus.txt")])
def test_what_is_of_the_backbone_has_its_name_alone(command, analyze, bert_folder):
    ran = analyze(*command)
    assert "first-last-avg" not in ran.out + ran.err and bert_folder.name in ran.out + ran.err
    assert "recipe" not in analyze(*command, "--json").json["results"][0]


def test_uniformity_of_a_folder_is_of_all_splits_of_sts_b(analyze, tmp_path):
    for split, golds in (("train", (4.2, 1.0)), ("dev", (5.0, 0.0)), ("test", (3.0, 4.8))):
        pairs = [(SENTENCES[row], SENTENCES[row + 1], gold) for row, gold in enumerate(golds)]
        write_pairs(tmp_path, "STS-B", pairs, split)
    words = ("uniformity", "-m", "last-avg", "--data-dir", tmp_path)
    real = analyze(*words, "--json").json
    assert real["on"] == ["STS-B:train", "STS-B:dev", "STS-B"]
    assert (real["results"][0]["positives"], real["results"][0]["sentences"]) == (3, 12)
    (tmp_path / "STS" / "STSBenchmark" / "sts-dev.csv").unlink()
    refused(analyze(*words, "-q"), 3, "STS-B:dev is missing")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("anisotropy", "empty.txt"), 2, "empty.txt is empty"),
        (("anisotropy", "nowhere.txt"), 3, "'nowhere.txt'"),
        (("uniformity", "demo:train"), 2, "unknown task 'demo:train'; valid: "),
        (("vocabulary", "one"), 2, "leave out 'one'"),
        (("anisotropy", "one.txt", "--set", "first=x"), 2, "first: 'x' is not allowed"),
        (
            ("map", "corpus.txt", "--set", "first=-1"),
            2,
            "--set first: must be 0 to 4294967295, got -1",
        ),
        (("mask-tokens", "one", "--plot", "map.png"), 2, "mask-tokens has no picture"),
        (("attention", "one", "--plot", "map.gif"), 2, ".png or .svg or .pdf"),
        (("attention", "one", "--set", "head=1-1", "--plot", "taken.png"), 2, "force"),
        (("attention", "one", "--plot", "nowhere/map.png"), 3, "no folder 'nowhere'"),
    ],
)
def test_an_analysis_that_cannot_be_is_refused(arguments, code, message, analyze):
    refused(analyze(*arguments, "-q"), code, message)


def test_a_picture_needs_matplotlib(analyze, monkeypatch):
    monkeypatch.setattr("promptcli.errors.missing_libraries", lambda *names: list(names))
    refused(analyze("attention", "one", "--plot", "map.png"), 2, "pip install '.[plot]'")


@pytest.mark.data
def test_impact_goes_with_tfidf_on_real_text(data_folder, run, tmp_path):
    lines = (data_folder / "pud" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    short = [line for line in lines if len(line) < 60]  # a sentence of n tokens is n^2 / 2 inputs
    (tmp_path / "short.txt").write_text("\n".join(short), encoding="utf-8")
    ran = run(
        "analyze",
        "impact-tfidf",
        tmp_path / "short.txt",
        "--set",
        "first=10",
        "--offline",
        "--json",
    )
    (study,) = ran.json["results"]
    assert study["sentences"] == 10 and study["correlation"]["spearman"] > 0


@pytest.mark.parametrize("pair", ["nosuch=3", "nosuch"])
def test_a_setting_that_an_analysis_does_not_have_is_told_with_its_own(run, pair):
    refused(run("analyze", "map", "--set", pair), 2, "method, first, seed, ")
