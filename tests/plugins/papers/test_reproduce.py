"""``reproduce``: published figures, measured ones next to them, result files and refusals."""

import dataclasses
import importlib.util
import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import promptcli as pc
from promptcli.backbones.by_name import load_backbone
from promptcli.data.demo import SENTENCES_FILE
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import PromptcliError
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import mean_of_rounded, score_encoders
from promptcli.models.entries import Entry
from promptcli.plugins.papers import measures, report, systems
from promptcli.plugins.papers.contexts import FiguresCache, MeasurementContext, head_of
from promptcli.plugins.papers.documents import measure_table, overview
from promptcli.plugins.papers.measures import MEASURE_OF
from promptcli.plugins.papers.published import Texts, find_tables, published_tables
from promptcli.plugins.papers.report import (
    caption,
    column_headers,
    read_results,
    results_page,
    row_lines,
    write_result,
)
from promptcli.plugins.papers.systems import FORMS, SYSTEMS
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.fitting import fit_recipe
from promptcli.training.methods import METHODS, find_method
from tests.comparing import refusal
from tests.senteval import write_pairs, write_transfer
from tests.training_steps import stopped_at

ROOT = Path(__file__).parents[3]
DEMO = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()
THERE = ["STS12", "STS13", "STS14", "STS-B", "SICK-R"]
NOT_THERE = ["MR", "CR", "SUBJ", "MPQA", "MRPC"]  # of the transfer tasks


#: Tables that analyses fill are tried beside the plug-in ``analyze``.
needs_analyze = pytest.mark.skipif(
    importlib.util.find_spec("promptcli.plugins.analyze") is None, reason="analyze is not here"
)


@pytest.fixture(scope="module")
def senteval(tmp_path_factory):
    """A SentEval folder of our own pairs, without STS15 and STS16."""
    root = tmp_path_factory.mktemp("senteval")
    pairs = [
        (one, other, (n * 7 % 51) / 10)
        for n, (one, other) in enumerate(itertools.pairwise(DEMO[:25]))
    ]
    for year in ("STS12", "STS13", "STS14"):
        write_pairs(root, year, pairs, "one")
        pairs = pairs[3:]
    for split in ("dev", "test"):
        write_pairs(root, "STS-B", pairs, split)
    write_pairs(root, "SICK-R", pairs, "test_annotated")
    return root


@pytest.fixture(scope="module")
def transfer_data(tmp_path_factory):
    """Two transfer tasks: the others are missing."""
    root = tmp_path_factory.mktemp("transfer")
    write_transfer(root)
    for name in NOT_THERE:
        shutil.rmtree(root / name)
    return root


@pytest.fixture(scope="module")
def kept_figures(tmp_path_factory):
    """The folder of figures that tests share: the same backbone on the same data."""
    return tmp_path_factory.mktemp("figures")


@pytest.fixture
def own_figures():
    """Let a test measure what others have measured."""


@pytest.fixture
def context(senteval, tiny_backbone, bert_folder, tmp_path, kept_figures, request):
    """Return what makes a context with a tiny backbone under any name."""
    figures = tmp_path / "figures" if "own_figures" in request.fixturenames else kept_figures
    few = tmp_path / "few.txt"
    few.write_text("\n".join(DEMO[:40]) + "\n")

    def make(name="tiny", *, fresh=False, seeds=(), corpus=few, **given):
        files = [given.pop(kind, None) for kind in ("triplets", "labelled", "definitions")]
        return MeasurementContext(
            name,
            # a training changes its backbone
            lambda: load_backbone(str(bert_folder)) if seeds else tiny_backbone("bert"),
            texts=Texts(str(corpus), *(file and str(file) for file in files)),
            cache=FiguresCache(figures, fresh=fresh),
            seeds=seeds,
            **{"data_dir": senteval} | given,
        )

    return make


def table(name):
    return find_tables([name])[0]


def row_of(document, method, backbone=None):
    rows = (row for row in document["rows"] if backbone in (None, row["published"]["backbone"]))
    return next(row for row in rows if row["method"] == method)


# the published figures


def test_every_row_and_column_can_be_looked_up():
    for found in published_tables().values():
        assert all(column in MEASURE_OF for column in found.columns), found.name
        for row in found.rows:
            assert row.kind in SYSTEMS and row.published.keys() <= set(found.columns), (
                found.name,
                row,
            )
            assert row.kind not in ("recipe", "own") or row.argument in RECIPES
            assert row.kind != "trained" or row.argument in (*FORMS, *METHODS)
    for form in FORMS.values():
        fields = vars(find_method(form.method, supervised=False).mini_bert_settings)
        assert form.changes.keys() <= fields.keys(), form.method


def test_published_figures_are_the_papers():
    tables = published_tables()
    papers = [found for name, found in tables.items() if not name.startswith("line/")]
    assert sum(len(found.rows) for found in papers) == 232
    for name in (
        *(f"promptbert/{n}" for n in (*range(1, 13), 15)),
        *(f"ditto/{n}" for n in range(1, 7)),
        "dcpcse/1",
    ):
        assert name in tables
    manual = next(row for row in tables["promptbert/5"].rows if row.method == "prompt manual")
    printed = "60.96 73.83 62.18 71.54 68.68 70.60 67.16 67.85"
    assert [f"{figure:.2f}" for figure in manual.published.values()] == printed.split()
    assert tables["ditto/4"].rows[0].published["diagonal-pearson"] == 64.34


def test_the_line_has_every_recipe_that_needs_no_fitting():
    masked, causal = (
        [row.method for row in table(f"line/{kind}").rows] for kind in ("masked", "causal")
    )
    fitted = {"first-last-tfidf", "whitening", "flow"}
    assert {*masked, *causal} == {*RECIPES} - fitted
    assert "last-avg" in masked and not {*masked} & {*causal}


def test_a_gain_is_the_paired_difference_to_the_plain_mean(context):
    document = measure_table(table("line/masked"), context(head="1-2"))
    rows = {row["method"]: row for row in document["rows"]}
    assert "gain" not in rows["last-avg"]["figures"]
    assert rows["last-avg"]["published"]["own"] is False
    tasks = context().tasks(THERE).content
    backbone = context().backbone
    of_recipe = {}
    for name in ("last-avg", "values-avg"):
        encoder = build_encoder(RECIPES[name], backbone=backbone)
        of_recipe[name] = score_encoders([encoder], tasks)
    pairs = [
        np.stack([one.cosines, other.cosines])
        for one, other in zip(of_recipe["values-avg"], of_recipe["last-avg"], strict=True)
    ]
    draws = statistics.resampled_averages(pairs, [task.pairs().gold for task in tasks])
    low, high = statistics.percentile_interval(draws[0] - draws[1])
    cell = rows["values-avg"]["figures"]["gain"]
    expected = mean_of_rounded(of_recipe["values-avg"]) - mean_of_rounded(of_recipe["last-avg"])
    assert cell["value"] == pytest.approx(expected, abs=0.011)  # averages have two decimals
    assert cell["ci95"] == pytest.approx([100 * low, 100 * high], abs=1e-3)
    assert column_headers(document)[-1] == "- last-avg (5 of 7)"
    again = measure_table(table("line/masked"), context(head="1-2"))
    assert again["rows"] == document["rows"]


def test_printed_averages_are_the_columns_means():
    for found in published_tables().values():
        for row in found.rows:
            columns = [column for column in found.columns if column in row.published]
            if (
                len(columns) == 8
                and columns[-1] in ("Avg", "transfer")
                and "columns' mean" not in row.note
            ):
                values = [row.published[column] for column in columns]
                assert np.mean(values[:7]) == pytest.approx(values[7], abs=0.0151), (
                    found.name,
                    row.method,
                )


# measuring


def test_figures_are_those_of_eval(context, senteval, tiny_backbone):
    document = measure_table(table("promptbert/5"), context())
    encoder = build_encoder(RECIPES["last-avg"], backbone=tiny_backbone("bert"))
    scores = pc.evaluate(encoder, THERE, data_dir=senteval)
    figures = row_of(document, "last avg")["figures"]
    assert [figures[score.column]["value"] for score in scores] == [
        round(score.value, 4) for score in scores
    ]
    assert figures["STS12"]["ci95"] == [round(bound, 4) for bound in scores[0].ci95]
    assert figures["Avg"]["value"] == pytest.approx(mean_of_rounded(scores), abs=1e-4)
    low, high = figures["Avg"]["ci95"]
    assert low < figures["Avg"]["value"] < high
    assert figures["Avg"]["on"] == THERE and document["missing"] == ["STS15", "STS16"]
    assert document["data"]["STS12"]["sha256"] == scores[0].data_sha256
    assert document["backbone"]["weights_sha256"] == tiny_backbone("bert").provenance.weights_sha256


def test_another_backbone_has_no_difference_and_every_row_stays(context):
    # a name alone makes no published backbone
    document = measure_table(table("promptbert/5"), context("some/folder/bert-base-uncased"))
    assert document["backbone"]["published"] is None
    assert [row["method"] for row in document["rows"]] == [
        row.method for row in table("promptbert/5").rows
    ]
    assert not any(row["difference"] or row["published"]["own"] for row in document["rows"])
    assert (
        row_of(document, "GloVe embeddings avg")["not_measured"]["Avg"]
        == "needs backbone glove:FILE"
    )
    reason = row_of(document, "prompt manual&OptiPrompt")["not_measured"]["STS12"]
    assert reason == "training: `promptcli reproduce --train` does it"
    measured = row_of(document, "static avg")
    assert measured["not_measured"] == {"STS15": "no data: STS15", "STS16": "no data: STS16"}
    lines = list(row_lines(measured, document["columns"]))
    assert [line.kind for line in lines] == ["measured", "interval", "published"]
    assert column_headers(document)[-1] == "Avg (5 of 7)"
    assert lines[2].label == "published for bert-base-uncased"
    assert any("other backbones" in line for line in caption(document))


def test_an_average_has_one_definition_and_its_number_of_tasks_in_every_format(context):
    document = measure_table(table("promptbert/5"), context())
    row = row_of(document, "static avg")
    same = f"{np.mean([42.38, 56.74, 50.6, 56.82, 58.15]):.2f}"
    assert list(row_lines(row, document["columns"]))[-1].cells[-1] == same
    records = [each for each in report.records(document) if each["method"] == "static avg"]
    average = next(each for each in records if each["column"] == "Avg")
    assert (average["tasks"], average["published_tasks"]) == (5, 5)
    assert f"{average['published']:.2f}" == same
    assert {each["tasks"] for each in records if each["column"] != "Avg"} == {""}
    assert row["figures"]["Avg"]["tasks"] == 5
    # a paper that prints its average alone: of all seven, and it says so
    alone = measure_table(table("promptbert/1"), context())
    row = row_of(alone, "last avg", "roberta-base")
    assert any("(of 7)" in cell for cell in list(row_lines(row, alone["columns"]))[-1].cells)
    [average] = [
        each
        for each in report.records(alone)
        if (each["method"], each["published_backbone"], each["column"])
        == ("last avg", "roberta-base", "Avg")
    ]
    assert (average["tasks"], average["published_tasks"]) in [(5, 7), ("", 7)]


def test_the_published_backbone_has_differences(context, publish, tiny_backbone):
    publish("bert-base-uncased", tiny_backbone("bert"))
    document = measure_table(table("promptbert/5"), context("some/folder/bert-base-uncased"))
    row = row_of(document, "last avg")
    assert row["published"]["own"] and document["backbone"]["published"] == "bert-base-uncased"
    assert row["difference"]["STS12"] == pytest.approx(
        row["figures"]["STS12"]["value"] - 30.87, abs=1e-4
    )
    same = round(np.mean([30.87, 59.89, 47.73, 47.29, 58.22]), 2)
    assert row["difference"]["Avg"] == pytest.approx(
        row["figures"]["Avg"]["value"] - same, abs=1e-4
    )
    alone = measure_table(table("promptbert/1"), context("bert-base-uncased"))
    # 5 tasks against a printed 7: nothing to compare
    row = row_of(alone, "last avg", "bert-base-uncased")
    assert row["difference"] == {
        "anisotropy": pytest.approx(row["figures"]["anisotropy"]["value"] - 0.4874)
    }
    other = row_of(alone, "last avg", "roberta-base")
    assert not other["figures"] and other["not_measured"]["Avg"] == "needs backbone roberta-base"


def test_heads_of_another_backbone_go_by_rank(context, examples):
    document = measure_table(table("ditto/4"), context())
    best, second = document["rows"][:2]
    assert best["recipe"]["pooling"] != second["recipe"]["pooling"]
    assert best["figures"]["STS-B:dev"]["value"] >= second["figures"]["STS-B:dev"]["value"]
    diagonal = best["figures"]["diagonal-pearson"]
    assert -100 <= diagonal["value"] <= 100 and diagonal["on"] == ["STS-B:dev", "corpus"]
    assert document["corpus"]["sentences"] == 40
    # whose diagonals are not taken from the cache
    other = measure_table(table("ditto/4"), context(corpus=examples))
    assert diagonal != other["rows"][0]["figures"]["diagonal-pearson"]


def test_dittos_rows_take_a_head(context, tiny_folder):
    without = measure_table(table("ditto/1"), context())
    reason = row_of(without, "static Ditto")["not_measured"]["Avg"]
    assert "ditto-search" in reason
    document = measure_table(table("ditto/1"), context(head="2-3"))
    for states in ("static", "last", "first-last"):
        row = row_of(document, f"{states} Ditto", "bert-base-uncased")
        assert (row["recipe"]["pooling"], row["head"]) == (f"{states}/ditto:2-3", "2-3")
        assert next(row_lines(row, document["columns"])).label == f"{states} Ditto, head 2-3"
        assert row["figures"]["Avg"]["value"]
    other = measure_table(table("ditto/1"), context(head="1-1"))  # not taken from the cache
    values = [row_of(each, "last Ditto")["figures"]["Avg"]["value"] for each in (document, other)]
    assert values[0] != values[1]
    reason = row_of(measure_table(table("ditto/1"), context(head="9-1")), "last Ditto")[
        "not_measured"
    ]["Avg"]
    assert "head '9-1' does not exist" in reason


@pytest.mark.parametrize(
    ("given", "backbone", "expected"),
    [
        ("1-9", "x", "1-9"),
        ("ditto:1-9", "x", "1-9"),
        ("last/ditto:1-9", "x", "1-9"),
        ("searched", "mini-bert", "3-2"),
        ("searched", "x", "of mini-bert, no head of x"),
        ("mini", "mini-bert", "model 'mini' reads last/mask"),
        ("nobody", "x", "'nobody'"),
    ],
)
def test_a_head_is_given_by_its_numbers_or_by_a_model(given, backbone, expected, registry):
    registry.save(Entry("searched", Recipe(pooling="first-last/ditto:3-2")))
    if re.fullmatch(r"\d-\d", expected):
        assert head_of(given, backbone) == expected
        return
    with refusal(re.escape(expected), PromptcliError):
        head_of(given, backbone)


def test_fitted_rows_name_what_they_were_fitted_on(context):
    document = measure_table(table("ditto/1"), context())
    row = row_of(document, "first-last TF-IDF")
    assert next(row_lines(row, document["columns"])).label == "first-last TF-IDF, fitted on few.txt"
    assert next(row_lines(row_of(document, "last avg"), document["columns"])).label == "last avg"
    assert (
        row["fitted"] and row["figures"]["Avg"]["value"] and document["corpus"]["name"] == "few.txt"
    )
    assert row_of(document, "BERT-flow")["figures"]["Avg"]["value"]
    sbert = [row for row in document["rows"] if row["run"].startswith("own:")]
    assert len(sbert) == 2 and not any(row["figures"] for row in sbert)


@needs_analyze
def test_a_row_has_its_five_tokens_at_the_mask(context):
    document = measure_table(table("promptbert/7"), context())
    assert all(len(row["figures"]["tokens"]["value"]) == 5 for row in document["rows"])


@pytest.mark.parametrize("name", ["dcpcse/3", "dcpcse/4", "promptbert/14", "sncse/settings"])
def test_tables_of_settings_are_listed_and_ours_are_those(name, context):
    [reason] = overview(table(name), context())["lacks"]
    assert reason.startswith("settings, no figures")
    assert measure_table(table(name), context())["backbone"] is None
    for row in table(name).rows:
        method = find_method(row.argument, supervised=row.setting == "sup")
        ours = vars(method.paper[row.backbone])
        shown = {column: ours[column] for column in row.published if column in ours}
        assert shown == {column: row.published[column] for column in shown}


@pytest.mark.usefixtures("own_figures")
def test_a_stopped_run_resumes_and_cached_figures_are_not_measured_again(context, monkeypatch):
    seen = []

    def dying(encoders, *rest, **named):
        seen.append(len(encoders))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return embed(encoders, *rest, **named)

    embed = measures.evaluator.embed_tasks
    monkeypatch.setattr(measures.evaluator, "embed_tasks", dying)
    with pytest.raises(KeyboardInterrupt):
        measure_table(table("promptbert/3"), context())
    first = measure_table(table("promptbert/3"), context())
    assert len(seen) == 6  # five inputs: the first is done, the second is repeated, three are left
    assert measure_table(table("promptbert/3"), context()) == first and len(seen) == 6
    assert measure_table(table("promptbert/3"), context(fresh=True)) == first and len(seen) == 11


def test_transfer_figures_are_those_of_transfer(context, transfer_data, tiny_backbone, publish):
    document = measure_table(table("promptbert/15"), context(data_dir=transfer_data))
    encoders = [
        build_encoder(RECIPES[name], backbone=tiny_backbone("bert")) for name in ("last-avg", "cls")
    ]
    scores = pc.evaluate(encoders, ["SST-2", "TREC"], data_dir=transfer_data)
    first, second = (row_of(document, f"{name} embedding") for name in ("Avg. BERT", "BERT-[CLS]"))
    found = [row["figures"][name]["value"] for row in (first, second) for name in ("SST-2", "TREC")]
    assert found == [score.value for score in scores]
    for row in (first, second):
        for name in ("SST-2", "TREC", "transfer"):
            low, high = row["figures"][name]["ci95"]
            assert low <= row["figures"][name]["value"] <= high
    assert first["figures"]["transfer"]["value"] == pytest.approx(np.mean(found[:2]), abs=1e-4)
    assert first["not_measured"] == {name: f"no data: {name}" for name in NOT_THERE}
    assert (
        document["missing"] == list(first["not_measured"])
        and column_headers(document)[-1] == "Avg (2 of 7)"
    )
    # the published average, shown and compared with, is that of the two tasks
    assert (
        list(row_lines(first, document["columns"]))[-1].cells[-1] == f"{np.mean([84.4, 92.8]):.2f}"
    )
    publish("bert-base-uncased", tiny_backbone("bert"))
    published = measure_table(
        table("promptbert/15"), context("bert-base-uncased", data_dir=transfer_data)
    )
    difference = row_of(published, "Avg. BERT embedding")["difference"]["transfer"]
    assert difference == pytest.approx(first["figures"]["transfer"]["value"] - 88.6, abs=1e-4)


@needs_analyze
def test_anisotropy_is_that_of_the_corpus_and_of_token_rows(context, tiny_backbone):
    document = measure_table(table("promptbert/1"), context())
    encoder = build_encoder(RECIPES["last-avg"], backbone=tiny_backbone("bert"))
    figure = row_of(document, "last avg")["figures"]["anisotropy"]
    prepared = [" ".join(line.split()[:32]).lower() for line in DEMO[:40]]
    found = pc.analyze("anisotropy", encoder, prepared, lower=False, words=0)
    assert figure["value"] == pytest.approx(found.value, abs=1e-4)
    assert figure["on"] == ["corpus"] and document["corpus"]["name"] == "few.txt"
    assert "corpus few.txt, 40 sentences" in "\n".join(caption(document))
    value = row_of(measure_table(table("ditto/5"), context()), "last avg")["figures"][
        "mean-cosine"
    ]["value"]
    found = pc.analyze("anisotropy", encoder, DEMO[:40], lower=False, words=0)
    assert value == pytest.approx(found.value, abs=1e-4)
    row = row_of(measure_table(table("promptbert/2"), context()), "word-embedding rows")
    assert row["figures"]["vocabulary"]["value"] == pytest.approx(
        pc.analyze("vocabulary", encoder).value, abs=1e-4
    )


@pytest.fixture
def as_mini(monkeypatch, own_figures):
    """Let tiny backbones have the settings found on mini-bert, whose batches are small."""
    monkeypatch.setattr("promptcli.training.config.has_mini_bert_shape", lambda shape: True)


@pytest.fixture
def examples(tmp_path):
    """Sentences for two steps of a small backbone's batch size."""
    path = tmp_path / "examples.txt"
    path.write_text("\n".join(DEMO[:140]) + "\n")
    return path


@pytest.mark.usefixtures("as_mini")
def test_trained_rows_are_those_of_training(context, examples, bert_folder, senteval, monkeypatch):
    settings = {"learning_rate": 3.0, "prefix_length": 4, "epochs": 2, "eval_steps": 1}
    quick = find_method("dcpcse", supervised=False)
    quick = dataclasses.replace(
        quick, mini_bert_settings=quick.mini_bert_settings.replace(**settings)
    )
    monkeypatch.setitem(METHODS, "dcpcse", (quick, None))
    document = measure_table(table("dcpcse/2"), context(corpus=examples, seeds=(42,)))
    measured = row_of(document, "DCPCSE w/o MLM")
    assert measured["fitted"] and document["seeds"]["training"] == [42]
    assert any("corpus examples.txt" in line for line in caption(document))
    given = {"backbone": str(bert_folder), "on": "STS-B:dev", "data_dir": senteval, "seed": 42}
    assert measured["training"]["method"] == "dcpcse"
    assert measured["training"]["epochs"] == 2
    said = "\n".join(caption(document))
    assert "differs from the paper: " in said and "learning rate 3 (" in said
    found = pc.train("dcpcse", str(examples), **given)
    # the numbers that are kept were learned
    assert max(found.curve, key=lambda score: score.value).step > 0
    scores = pc.evaluate(found.encoder, THERE, data_dir=senteval)
    assert measured["figures"]["Avg"]["value"] == pytest.approx(mean_of_rounded(scores), abs=0.01)


def settings_of(context, name="promptbert", **options):
    """Return a row, and what it is trained with in a context, without training it."""
    row = next(row for row in table("promptbert/8").rows if row.argument == name)
    system = SYSTEMS["trained"].make(row, context(seeds=(42,), **options))
    return row, system.training


@pytest.mark.usefixtures("as_mini")
def test_a_trained_row_has_all_settings_and_says_how_they_differ(context, examples):
    examples.write_text("\n".join(DEMO[:300]) + "\n")  # a batch of the paper's size
    row, facts = settings_of(context, corpus=examples)
    method = find_method("promptbert", supervised=False)
    assert vars(method.mini_bert_settings).keys() <= facts.keys()
    published = method.published(row.backbone)
    ours = facts["temperature"]
    assert ours != published.temperature
    assert facts["differs"]["temperature"] == [ours, published.temperature]
    assert "seed" not in facts["differs"]
    _, on_paper = settings_of(context, corpus=examples, paper=True)
    assert on_paper["temperature"] == published.temperature and on_paper["differs"] == {}
    _, changed = settings_of(context, corpus=examples, paper=True, changes={"temperature": 0.07})
    assert changed["differs"] == {"temperature": [0.07, published.temperature]}
    # the row is about this one
    changes = {"denoising": True}
    _, plain = settings_of(context, "promptbert-no-denoising", corpus=examples, changes=changes)
    assert plain["denoising"] is False


@pytest.mark.usefixtures("as_mini")
def test_a_row_that_was_stopped_goes_on_inside(context, examples, tmp_path, monkeypatch, notes):
    quick = find_method("simcse", supervised=False)
    quick = dataclasses.replace(
        quick, mini_bert_settings=quick.mini_bert_settings.replace(steps=2, eval_steps=100)
    )
    monkeypatch.setitem(METHODS, "simcse", (quick, None))
    whole = measure_table(table("ditto/1"), context(corpus=examples, seeds=(42,)))
    shutil.rmtree(tmp_path / "figures")
    with stopped_at(monkeypatch, 1), pytest.raises(KeyboardInterrupt):
        measure_table(table("ditto/1"), context(corpus=examples, seeds=(42,)))
    again = measure_table(table("ditto/1"), context(corpus=examples, seeds=(42,)))
    assert "resumed after step 1 of 2" in notes
    assert row_of(again, "SimCSE")["figures"] == row_of(whole, "SimCSE")["figures"]
    assert not list((tmp_path / "figures").glob("*.run"))


@pytest.mark.usefixtures("as_mini")
def test_several_seeds_are_their_mean_spread_and_extremes(context, examples, monkeypatch):
    trained, train_one = [], systems.train_encoder

    def watched(method, settings, *rest, **options):
        trained.append((method.name, settings.seed))
        settings = settings.replace(learning_rate=1e-2, eval_steps=1)
        return train_one(method, settings, *rest, **options)

    monkeypatch.setattr(systems, "train_encoder", watched)
    both, *singles = (
        measure_table(table("promptbert/10"), context(corpus=examples, seeds=seeds))
        for seeds in ((0, 1), (0,), (1,))
    )
    # figures are kept
    assert trained == [
        ("simcse", 0),
        ("simcse", 1),
        ("promptbert", 0),
        ("promptbert", 1),
    ]
    for number, row in enumerate(both["rows"]):
        one, other = (single["rows"][number]["figures"]["Avg"]["value"] for single in singles)
        figures = row["figures"]
        assert figures["Avg"]["value"] == pytest.approx((one + other) / 2, abs=1e-3)
        assert figures["Avg"]["std"] == pytest.approx(abs(one - other) / 2**0.5, abs=1e-3)
        assert (figures["max"]["value"], figures["min"]["value"]) == (
            max(one, other),
            min(one, other),
        )
        assert list(row_lines(row, both["columns"]))[1].cells[0] == f"±{figures['Avg']['std']:.2f}"
        assert "several runs" in singles[0]["rows"][number]["not_measured"]["max"]
    assert any("2 runs each, seeds 0, 1" in line for line in caption(both))


@pytest.mark.usefixtures("as_mini")
def test_supervised_rows_are_trained_on_triplets_and_the_others_on_the_corpus(
    context, examples, senteval, tmp_path
):
    sentences = [sentence.replace('"', "") for sentence in DEMO[:390]]
    columns = {"sent0": sentences[::3], "sent1": sentences[1::3], "hard_neg": sentences[2::3]}
    triplets = tmp_path / "triplets.tsv"
    lines = ["\t".join(columns), *("\t".join(row) for row in zip(*columns.values(), strict=True))]
    triplets.write_text("\n".join(lines) + "\n")
    document = measure_table(
        table("promptbert/6"), context(corpus=examples, seeds=(42,), triplets=triplets)
    )
    assert document["triplets"]["examples"] == 130 and document["corpus"]["name"] == "examples.txt"
    rows = [row for row in document["rows"] if row["published"]["backbone"] == "roberta-base"]
    unsupervised, supervised = (
        row["figures"]["Avg"]["value"] for row in rows if row["method"] == "SimCSE"
    )
    assert supervised != unsupervised
    corpus = measure_table(table("promptbert/6"), context(corpus=examples))
    whitened, other = (
        row_of(given, "whitening")["figures"]["Avg"]["value"] for given in (document, corpus)
    )
    recipe = RECIPES["whitening"].replace(backbone="tiny")
    fitted = fit_recipe(
        recipe, [*columns["sent0"], *columns["sent1"]], backbone=context().backbone
    ).encoder
    assert whitened == pytest.approx(
        mean_of_rounded(pc.evaluate(fitted, THERE, data_dir=senteval)), abs=0.01
    )
    assert whitened != other and corpus["triplets"] is None
    assert any("triplets triplets.tsv, 130 examples" in line for line in caption(document))


@pytest.mark.usefixtures("as_mini")
def test_rows_of_labelled_pairs_and_definitions_are_trained_on_theirs(context, examples, tmp_path):
    labels = ["entailment", "neutral", "contradiction"]
    rows = [f"{labels[at % 3]}\t{one}\t{DEMO[64 - at]}" for at, one in enumerate(DEMO[:64])]
    (tmp_path / "nli.tsv").write_text("\n".join(["label\tpremise\thypothesis", *rows, ""]))
    (tmp_path / "words.tsv").write_text(
        "word\tdefinition\n"
        + "".join(f"{('dog', 'door')[at % 2]}\t{DEMO[at]}\n" for at in range(64))
    )
    given = {"labelled": str(tmp_path / "nli.tsv"), "definitions": str(tmp_path / "words.tsv")}
    wanted, entire = ("SBERT", "SBERT-whitening"), table("promptbert/6")
    few = dataclasses.replace(
        entire, rows=tuple(row for row in entire.rows if row.method in wanted)
    )
    document = measure_table(few, context(corpus=examples, seeds=(42,), **given))
    plain, whitened = (row_of(document, method)["figures"]["Avg"]["value"] for method in wanted)
    assert plain != whitened
    assert (
        document["labelled"]["examples"] == 64
        and document["triplets"] is document["corpus"] is None
    )
    without = measure_table(few, context(corpus=examples, seeds=(42,)))
    assert "labelled" in row_of(without, "SBERT")["not_measured"]["Avg"]
    defined = measure_table(table("defsent/sts"), context(corpus=examples, seeds=(42,), **given))
    # mean, [CLS] and max differ
    assert len({found["figures"]["Avg"]["value"] for found in defined["rows"][::2]}) == 3


def test_word_vectors_have_their_row(run, senteval, tmp_path):
    words = sorted({word for line in DEMO[:25] for word in line.lower().split()})
    lines = (
        f"{word} {' '.join(str((len(word) * place) % 7 - 3) for place in range(1, 5))}"
        for word in words
    )
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    options = (
        "--backbone",
        f"glove:{tmp_path / 'vectors.txt'}",
        "--data-dir",
        senteval,
        "--offline",
        "--json",
    )
    ran = run("reproduce", "promptbert/5", "-o", tmp_path / "results", *options)
    rows = {row["method"]: row for row in ran.json["results"][0]["rows"]}
    row = rows.pop("GloVe embeddings avg")
    plain = run("eval", "--pooling", "static/avg", "--task", "STS-B", *options)
    assert row["figures"]["STS-B"]["value"] == pytest.approx(
        plain.json["results"][0]["value"], abs=1e-3
    )
    # the paper's are others
    assert not row["difference"] and not row["published"]["own"]
    assert list((tmp_path / "results").glob("promptbert-5.vectors.txt-*.json"))
    assert not any(other["figures"] for other in rows.values())
    ran = run("reproduce", "line/masked", "-o", tmp_path / "results", *options)
    lines = {row["method"]: row for row in ran.json["results"][0]["rows"]}
    own = lines.pop("static-avg")["figures"]
    assert own["STS-B"] == row["figures"]["STS-B"] and "gain" not in own
    for other in lines.values():
        assert set(other["not_measured"].values()) == {"needs the layers of a language model"}


def test_backbones_of_one_name_have_files_of_their_own(run, senteval, tiny_folder, tmp_path):
    for family in ("bert", "roberta"):
        model = shutil.copytree(tiny_folder(family), tmp_path / family / "checkpoint")
        options = ("--backbone", model, "--data-dir", senteval, "--offline", "--quiet")
        assert run("reproduce", "promptbert/4", "-o", tmp_path / "out", *options).code == 0
    kept = list((tmp_path / "out").glob("promptbert-4.checkpoint-*.json"))
    assert len(kept) == 2
    for path in kept:
        document = json.loads(path.read_text())
        assert document["backbone"]["id"] in path.name
        assert document["backbone"]["id"] in caption(document)[0]


@pytest.mark.usefixtures("as_mini")
def test_training_leaves_the_other_rows_alone_and_is_cached(
    context, examples, tmp_path, monkeypatch
):
    here = context(corpus=examples, seeds=(42,))
    plain = measure_table(table("promptbert/9"), here)
    trained, train_one = [], systems.train_encoder

    def watched(method, settings, *rest, **options):
        trained.append((settings.two_templates, settings.denoising))
        return train_one(method, settings, *rest, **options)

    monkeypatch.setattr(systems, "train_encoder", watched)
    found = measure_table(table("promptbert/8"), here)
    # dropout only, two templates, two templates with denoising; whatever backbone they were
    # published for
    assert trained == [(False, False), (True, False), (True, True)]
    (tmp_path / "figures" / "values.sqlite").unlink()  # the learned tensors are kept next to it
    assert (
        measure_table(table("promptbert/8"), context(corpus=examples, seeds=(42,))) == found
        and len(trained) == 3
    )
    here.cache = FiguresCache(tmp_path / "again")
    assert measure_table(table("promptbert/9"), here) == plain


@pytest.mark.usefixtures("as_mini")
def test_trained_rows_need_fitting_examples_and_data(context, examples, tmp_path):
    def why(**given):
        document = measure_table(table("dcpcse/1"), context(seeds=(42,), **given))
        return {
            row["not_measured"].get("Avg")
            for row in document["rows"]
            if row["run"].startswith("trained:dcpcse")
        }

    short, supervised = sorted(why(), key=lambda reason: "triplets" in reason)
    assert "40 examples are fewer than one batch" in short and "triplets need a file" in supervised
    assert any("examples.txt is plain text" in reason for reason in why(triplets=examples))
    nowhere = tmp_path / "empty"
    (nowhere / "STS").mkdir(parents=True)
    for name, options in (
        ("promptbert/8", {"corpus": examples, "seeds": (42,)}),
        ("promptbert/4", {}),
    ):
        document = measure_table(table(name), context(data_dir=nowhere, **options))
        assert not any(row["figures"] for row in document["rows"])
    reasons = overview(table("promptbert/5"), context(data_dir=nowhere))["lacks"]
    (reason,) = [reason for reason in reasons if reason.startswith("no data: ")]
    assert reason.count("STS12") == reason.count("SICK-R") == 1


@pytest.mark.usefixtures("own_figures")
def test_without_analyze_the_tables_that_need_it_say_so_and_the_others_are_measured(
    context, monkeypatch
):
    monkeypatch.delitem(vars(pc), "analyze", raising=False)
    monkeypatch.setitem(sys.modules, "promptcli.plugins.analyze", None)
    row = row_of(measure_table(table("promptbert/1"), context()), "last avg")
    assert "Avg" in row["figures"] and "anisotropy" not in row["figures"]
    assert "the plug-in analyze" in row["not_measured"]["anisotropy"]
    for name in ("promptbert/2", "promptbert/7"):
        document = measure_table(table(name), context())
        assert not any(each["figures"] for each in document["rows"])
        assert "the plug-in analyze" in str(document["rows"])


@needs_analyze
def test_impact_is_compared_over_the_corpus(context, tiny_backbone, tmp_path):
    (tmp_path / "few.txt").write_text("\n".join(DEMO[:4]) + "\n")
    document = measure_table(table("ditto/3"), context(corpus=tmp_path / "few.txt"))
    encoder = build_encoder(RECIPES["last-avg"], backbone=tiny_backbone("bert"))
    found = pc.analyze("impact-tfidf", encoder, DEMO[:4], corpus=DEMO[:4]).correlation
    for name in ("pearson", "spearman"):
        figure = document["rows"][0]["figures"][f"impact-{name}"]
        assert (figure["value"], figure["on"]) == (
            pytest.approx(100 * getattr(found, name), abs=1e-2),
            ["corpus"],
        )


# the command line


def test_the_command_keeps_results(run, senteval, bert_folder, tmp_path, publish, tiny_backbone):
    publish("bert-base-uncased", tiny_backbone("bert"))
    model = shutil.copytree(bert_folder, tmp_path / "models" / "bert-base-uncased")
    options = ("--backbone", model, "--data-dir", senteval, "--offline", "--quiet")
    ran = run("reproduce", "promptbert/4", "promptbert/2", "-o", tmp_path / "results", *options)
    assert ran.code == 0, ran.err
    assert "73.44" in ran.out and "difference" in ran.out and "STS-B dev" in ran.out
    kept = tmp_path / "results" / "promptbert-4.bert-base-uncased.json"
    text = kept.read_text()
    assert (
        str(tmp_path) not in text and (kept.parent / "promptbert-2.bert-base-uncased.json").exists()
    )
    again = write_result(tmp_path / "again", json.loads(text)).with_suffix(".md")
    assert kept.with_suffix(".md").read_text() == again.read_text()
    page = tmp_path / "docs" / "results.md"
    assert run("reproduce", "page", "-o", tmp_path / "results", "--page", page).code == 0
    assert page.read_text() == results_page(read_results(tmp_path / "results"))


@pytest.mark.parametrize("suffix", [".pdf", ".svg", ".png"])
def test_a_table_is_drawn_into_a_file_by_its_suffix(run, senteval, bert_folder, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    plot = tmp_path / f"figure{suffix}"
    options = ("--backbone", bert_folder, "--data-dir", senteval, "--offline", "--quiet")
    written = ("-o", tmp_path / "results", "--plot", plot)
    assert run("reproduce", "promptbert/4", *written, *options).code == 0
    starts = {".pdf": b"%PDF", ".svg": b"<?xml", ".png": b"\x89PNG"}
    assert plot.read_bytes().startswith(starts[suffix])
    again = run("reproduce", "promptbert/4", "promptbert/5", *written, *options, "--force")
    assert again.code == 2 and "one table" in again.err


def test_one_table_that_fails_does_not_end_the_others(run, senteval, tmp_path):
    options = (
        "--backbone",
        "no-such/model",
        "--data-dir",
        senteval,
        "--offline",
        "-o",
        tmp_path / "results",
    )
    ran = run("reproduce", "promptbert/4", "dcpcse/4", "--json", *options)
    assert [result["table"] for result in ran.json["results"]] == ["dcpcse/4"]
    assert "promptbert/4 on no-such/model" in ran.json["failed"] and "no local model" in ran.err
    assert run("reproduce", "promptbert/4", *options).code == 3


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("reproduce", "promptbert/99"), 2, "reproduce list"),
        (("reproduce", "promptbert/4", "--data-dir", "nowhere"), 3, "no such folder"),
        (("reproduce", "page", "-o", "nowhere"), 3, "reproduce all"),
    ],
)
def test_bad_input_is_refused(run, arguments, code, words):
    ran = run(*arguments, "--offline")
    assert ran.code == code and words in ran.err and len(ran.err.strip().splitlines()) == 1


def test_the_list_says_what_can_run(run, senteval, bert_folder):
    ran = run("reproduce", "list", "--json", "--backbone", bert_folder, "--data-dir", senteval)
    tables = {look["table"]: look for look in ran.json["tables"]}
    assert tables.keys() == published_tables().keys()
    assert (tables["promptbert/4"]["now"], tables["promptbert/4"]["figures"]) == (8, 8)
    assert tables["promptbert/8"]["now"] == 0 and tables["promptbert/8"]["time"] == ["hours, GPU"]
    assert tables["promptbert/12"]["now"] == 1  # the tiny model's output embeddings are tied


# what the repository keeps


def test_kept_results_and_their_page_are_not_stale(tmp_path):
    documents = read_results(ROOT / "results")
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page == results_page(documents), "make it again: promptcli reproduce page"
    for path in (ROOT / "results").glob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        again = write_result(tmp_path, document).with_suffix(".md")
        assert path.with_suffix(".md").read_bytes() == again.read_bytes(), path.name
        published = table(document["table"])
        assert [row["run"] for row in document["rows"]] == [row.run for row in published.rows], (
            path.name
        )
        figures = [row["published"]["figures"] for row in document["rows"]]
        assert figures == [dict(row.published) for row in published.rows], (
            f"{path.name}: run it again"
        )
