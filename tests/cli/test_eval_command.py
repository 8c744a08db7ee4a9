import csv
import dataclasses
import json

import numpy as np
import pytest
import torch

from promptcli.cli.console import Grid
from promptcli.cli.tables import comparison_table, table_names
from promptcli.data.task_table import TEST_TASKS
from promptcli.errors import UsageError
from promptcli.evaluation import evaluator, statistics
from promptcli.evaluation.scores import Comparison, Label, recipe_name
from promptcli.models import loading
from promptcli.models.entries import Entry
from promptcli.plugins.papers.mteb_tasks import MtebTask
from promptcli.recipe import COMPARED, RECIPES
from tests.comparing import refused
from tests.letter_encoder import LETTERS, LetterEncoder, count_letters
from tests.senteval import write_pairs

UNFITTED = [name for name in COMPARED if name not in ("first-last-tfidf", "whitening", "flow")]


@pytest.fixture
def fake(monkeypatch):
    """Stand in for backbones and forward passes.

    Lists the recipes opened and the sentences encoded.
    """
    seen = {"opened": [], "encoded": count_letters(monkeypatch)}

    def open_torch_encoder(choice, **_):
        entry = choice.model
        fitted = "tfidf" in entry.recipe.pooling or {"whitening", "flow"} & set(
            entry.recipe.transforms
        )
        if fitted and not entry.tensors:
            raise UsageError("is fitted: `promptcli fit --model ... --on FILE --name NAME`")
        seen["opened"].append(entry.recipe)
        name = recipe_name(entry.recipe)
        return LetterEncoder(
            1 + (list(RECIPES).index(name) if name in RECIPES else 20) / 5, entry.recipe
        )

    monkeypatch.setattr(loading, "open_torch_encoder", open_torch_encoder)
    return seen


@pytest.fixture
def score(run, tmp_path):
    """Run ``eval`` on a folder of a few tasks."""
    root = tmp_path / "data"
    for year, name, number in (
        ("STS12", "MSRpar", 30),
        ("STS12", "MSRvid", 20),
        ("STS14", "images", 25),
    ):
        generator = np.random.default_rng(number)
        words = ["".join(generator.choice(list(LETTERS), 6)) for _ in range(number)]
        write_pairs(
            root,
            year,
            zip(words, words[::-1], generator.integers(0, 26, number) / 5, strict=True),
            name,
        )
    pairs = [("abc"[n % 3] * 3 + "x", "cab"[n % 2], n % 6) for n in range(12)]
    write_pairs(root, "STS-B", pairs, "dev")
    write_pairs(root, "STS-B", pairs * 2, "test")
    return lambda *arguments: run("eval", "--data-dir", root, *arguments)


@pytest.fixture
def document(score):
    """The same, as its JSON document."""
    return lambda *arguments: score(*arguments, "--json").json


@pytest.fixture
def entry(registry):
    """A registry entry with fitted tensors."""
    registry.save(Entry("mine", RECIPES["whitening"], tensors={"mean": torch.zeros(3)}))
    return registry


def test_missing_tasks_are_named_and_are_dashes_in_the_table(score, document, fake):
    scored = document("--model", "last-avg")
    assert [row["task"] for row in scored["results"]] == ["STS12", "STS14", "STS-B"]
    assert {(row["recipe"], row["split"]) for row in scored["results"]} == {("last-avg", "test")}
    assert list(scored["missing"]) == ["STS13", "STS15", "STS16", "SICK-R"]
    ran = score("--model", "cls")
    assert ran.code == 0 and all(f"{name} is missing: " in ran.err for name in scored["missing"])
    head, row = (line for line in ran.out.splitlines() if "STS13" in line or " cls " in line)
    assert [column.strip("*") for column in head.split()][:7] == [str(name) for name in TEST_TASKS]
    assert head.endswith("Avg") and "mean of 3 of the papers' 7 tasks" in ran.out
    assert [index for index, cell in enumerate(row.split()[2:]) if cell == "-"] == [1, 3, 4, 6]


@pytest.mark.parametrize(
    ("words", "pooling"),
    [
        ([], "last/mask"),
        (["--pooling", "last/avg"], "last/avg"),
        (["-m", "last-avg"], "last/avg"),
        (["-m", '{"max_length": 16}'], "last/mask"),
    ],
)
def test_a_prompt_with_a_mask_is_read_at_the_mask_unless_a_pooling_is_given(
    words, pooling, score, fake
):
    assert score("--prompt", "[X] means [MASK] .", *words).code == 0
    assert [recipe.pooling for recipe in fake["opened"]] == [pooling]


def test_table_says_protocol_text_intervals_subsets_and_what_is_not_comparable(
    run, score, document, fake
):
    tasks = ("--model", "cls", "--task", "STS12", "--task", "STS14", "--task", "STS-B:dev")
    ran = score(*tasks)
    for words in (
        "protocol senteval",
        "95% bootstrap interval",
        "text: as in the folder, lower-cased",
    ):
        assert words in ran.out
    assert "* STS12: 50 pairs, not 3108: not comparable" in ran.out and "MSRvid" not in ran.out
    figures = {row["task"]: row for row in document(*tasks)["results"]}
    first = figures["STS12"]
    assert (
        f"{first['value']:.2f}" in ran.out
        and f"±{(first['ci95'][1] - first['ci95'][0]) / 2:.2f}" in ran.out
    )
    # the average is of the rounded figures of test splits
    row = next(line for line in ran.out.splitlines() if " cls " in line)
    assert (
        row.split()[-1]
        == f"{np.mean([round(figures[task]['value'], 2) for task in ('STS12', 'STS14')]):.2f}"
    )
    subsets = score(*tasks, "--subsets").out
    assert "STS14 by subset" not in subsets
    assert f"{first['subsets']['MSRvid']['value']:.2f}" in subsets.split("STS12 by subset")[1]
    # our own pairs have none
    assert "protocol" not in run("eval", "--model", "cls", "--task", "demo").out


def test_nothing_named_means_every_recipe_that_needs_no_fitting(score, document, fake):
    ran = score("--task", "STS14", "--json")
    assert [row["recipe"] for row in ran.json["results"]] == UNFITTED
    for name in ("first-last-tfidf", "whitening", "flow"):
        assert f"{name} is left out: " in ran.err
    assert ran.err.count("promptcli fit") == 3
    assert len(fake["encoded"]) == 1 and len(set(fake["encoded"][0])) == len(fake["encoded"][0])
    neutral = document("--task", "STS14", "--backbone", "other", "--set", "max-length=32")[
        "results"
    ]
    assert [(row["model"], row["recipe_fields"]["max_length"]) for row in neutral] == [
        ("other", 32)
    ] * len(UNFITTED)
    changed = document("--task", "STS14", "--pooling", "last/cls")["results"]
    assert [row["recipe"] for row in changed] == ["cls"]


def test_entries_and_recipes_stand_in_one_table(score, document, fake, entry):
    chosen = ("--model", "mine", "--model", "cls", "--task", "STS14")
    lines = score(*chosen).out.splitlines()
    assert all(any(line.startswith(name) for line in lines) for name in ("mine", "mini-bert cls"))
    scored = document(*chosen)["results"]
    assert [(row["model"], row["recipe"]) for row in scored] == [
        ("mine", "whitening"),
        ("mini-bert", "cls"),
    ]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (
            [("mini", "prompt=Say pooling=last/mask"), ("mini-bert", "last-avg")],
            ["mini last/mask", "mini-bert last-avg"],
        ),
        (
            [("/a/b/MiniLM/", "pooling=last/max max_length=9"), ("x/y", "cls")],
            ["MiniLM last/max", "y cls"],
        ),
        ([("/a/b/MiniLM/", "pooling=last/max")], ["MiniLM last/max"]),
        (
            [("/a/MiniLM", "pooling=last/avg"), ("/b/MiniLM", "pooling=last/avg")],
            ["/a/MiniLM pooling=last/avg", "/b/MiniLM pooling=last/avg"],
        ),
        ([("mine", "cls", True)], ["mine"]),
        ([("mine", "cls", True), ("mini-bert", "cls")], ["mine", "mini-bert cls"]),
        ([("/a/folder", "cls")], ["folder cls"]),
        (
            [("mini-bert", "last-avg"), ("mini-bert", "pooling=last/ditto:1-9")],
            ["last-avg", "last/ditto:1-9"],
        ),
    ],
)
def test_names_in_a_table_are_short_and_no_two_are_equal(labels, names):
    assert list(table_names([Label(*label) for label in labels]).values()) == names


@pytest.mark.parametrize(
    ("models", "rows", "reasons"),
    [
        (("last-avg", "cls", "--pooling", "last/avg"), ["last-avg", "last-avg (cls)"], {}),
        (
            ("ditto:1-2", "last/ditto:1-2", "cls"),
            ["first-last/ditto:1-2", "last/ditto:1-2", "cls"],
            {},
        ),
        (
            ("cls", "whitening", "nowhere"),
            ["cls", "whitening", "nowhere"],
            {"whitening": "fit", "": "no local model"},
        ),
    ],
)
def test_every_model_asked_for_is_a_row_with_its_figure_or_the_reason(
    score, fake, models, rows, reasons
):
    ran = score(*models, "--task", "STS14", "--json", "-q")
    assert ran.code == (2 if reasons else 0)
    document = json.loads(ran.out)
    assert len(document["results"]) == len(rows) - len(reasons)
    refused = {row["recipe"]: row["reason"] for row in document.get("refused", [])}
    assert refused.keys() == reasons.keys() and all(
        reasons[name] in refused[name] for name in reasons
    )
    lines = score(*models, "--task", "STS14", "-q").out.splitlines()
    assert all(any(line.split("  ")[0].endswith(name) for line in lines) for name in rows)


def test_a_task_that_a_model_cannot_take_leaves_its_other_figures(score, fake, monkeypatch):
    def refuse(*given):
        raise UsageError("nothing predicts")

    monkeypatch.setattr(MtebTask, "scores", refuse)
    ran = score("cls", "--task", "STS14", "--task", "mteb:STS17", "-q")
    assert ran.code == 2 and any(" cls  " in line and "." in line for line in ran.out.splitlines())
    assert "cls is not complete: nothing predicts" in ran.out


def test_compare_adds_the_other_and_says_how_sure_it_is(score, document, fake):
    chosen = ("--model", "cls", "--compare", "last-avg")
    found = document(*chosen)
    values = {(row["recipe"], row["task"]): row["value"] for row in found["results"]}
    assert len(found["comparisons"]) == 3
    for row in found["comparisons"]:
        assert (row["recipe"], row["against"]["recipe"]) == ("cls", "last-avg")
        difference = values["cls", row["task"]] - values["last-avg", row["task"]]
        assert row["value"] == pytest.approx(difference, abs=2e-4)
        assert row["ci95"][0] <= row["value"] <= row["ci95"][1] and 0 < row["p_value"] <= 1
    table = score(*chosen).out
    assert "cls - last-avg" in table and "paired bootstrap" in table
    assert f"{found['comparisons'][0]['value']:+.2f}" in table


@pytest.mark.parametrize(
    ("models", "task", "tasks", "count"),
    [
        (("cls", "last-avg", "static-avg"), ("STS12", "STS14"), "STS12, STS14", 3),
        (("cls", "last-avg", "--compare", "static-avg"), ("STS12",), "STS12", 2),
        (("cls", "--compare", "static-avg"), ("retrieval:FILE",), "retrieval:FILE", 1),
    ],
)
def test_differences_are_corrected_for_their_number(
    score, fake, tmp_path, models, task, tasks, count
):
    file = tmp_path / "notes.tsv"
    rows = [
        (LETTERS[n] * 2, LETTERS[n] + LETTERS[n - 1] * m, float(m == 1))
        for n in range(9)
        for m in (1, 2)
    ]
    file.write_text("query\tdocument\tgrade\n" + "".join(f"{q}\t{d}\t{g}\n" for q, d, g in rows))
    words = [word for name in task for word in ("--task", name.replace("FILE", str(file)))]
    found = score(*models, *words, "--json").json["comparisons"]
    assert [row["task"] for row in found] == [tasks.replace("FILE", str(file))] * count
    p_values = [row["p_value"] for row in found]
    assert [row["p_holm"] for row in found] == pytest.approx(statistics.holm(p_values), abs=2e-4)
    assert all(row["beyond_chance"] == (row["p_holm"] < 0.05) for row in found)
    table = score(*models, *words).out
    heads = next(line for line in table.splitlines() if "points" in line).split("  ")
    assert "p, Holm" in map(str.strip, heads) and f"Holm's p < 0.05 over {count} " in table
    for row in found:  # the interval and p are of the same difference
        low, high = row["ci95"]
        assert (low <= 0 <= high) == (row["p_value"] > 0.05)


def test_compare_in_the_table_of_all_recipes_and_without_the_changes(document, fake, entry):
    comparisons = document("--task", "STS14", "--compare", "mine")["comparisons"]
    assert [row["recipe"] for row in comparisons] == UNFITTED
    assert comparisons[0]["against"] == {"model": "mine", "recipe": "whitening"}
    fake["opened"].clear()
    document("--task", "STS14", "--model", "prompt", "--set", "period=false", "--compare", "prompt")
    assert [recipe.resolve().period for recipe in fake["opened"]] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--protocol", "glue"], 2, "unknown protocol 'glue'"),
        (["--model", "cls", "--compare", "cls", "--task", "STS14"], 2, "compared with itself"),
        (["--model", "whitening"], 2, "promptcli fit"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused(score, fake, entry, arguments, code, message):
    refused(score(*arguments, "-q"), code, message)


@pytest.mark.parametrize(
    ("suffix", "format"),
    [(".json", "json"), (".csv", "csv"), (".md", "markdown"), (".tex", "latex")],
)
def test_results_are_written_by_the_files_name(suffix, format, score, fake, tmp_path):
    file = tmp_path / f"results{suffix}"
    words = ("--model", "cls", "--model", "last-avg", "--task", "STS12", "--task", "STS-B")
    written = score(*words, "-o", file)
    assert written.code == 0 and f"results in {file}" in written.err
    printed = score(*words, "--format", format).out
    read = json.loads if format == "json" else str.strip
    assert read(file.read_text()) == read(printed)
    if format == "csv":
        rows = list(csv.DictReader(printed.splitlines()))
        found = score(*words, "--json").json["results"]
        for row, kept in zip(rows, found, strict=True):
            assert (row["recipe"], row["task"]) == (kept["recipe"], kept["task"])
            assert [float(row[name]) for name in ("pairs", "value", "ci95_low")] == [
                kept["pairs"],
                kept["value"],
                kept["ci95"][0],
            ]
    refused(score(*words, "-o", file), 2, str(file), "force")
    assert score(*words, "-o", file, "--force").code == 0


@pytest.mark.parametrize(
    ("name", "code"), [("folder", 2), ("results.txt", 2), ("no/results.md", 3)]
)
def test_a_file_of_results_that_cannot_be_written_is_refused_before_any_work(
    name, code, score, fake, tmp_path
):
    refused(score("--model", "cls", "-o", tmp_path / name), code, "--output")
    assert not fake["opened"]


def test_an_average_is_of_complete_rows_only(score, fake, monkeypatch):
    real = evaluator.score_vectors

    def score_vectors(embedded, tasks, settings):
        if tasks[0].name == "STS12" and embedded[0].label.recipe == "cls":
            raise UsageError("no such figure")
        return real(embedded, tasks, settings)

    monkeypatch.setattr("promptcli.evaluation.candidates.score_vectors", score_vectors)
    ran = score("--model", "cls", "--model", "last-avg", "--task", "STS12", "--task", "STS14")
    lines = ran.out.splitlines()
    cls, last_avg = (
        next(line.split() for line in lines if line.startswith(name))
        for name in ("cls ", "last-avg ")
    )
    assert "-" not in last_avg
    assert (cls[1], cls[-1]) == ("-", "-") and cls[2] != "-"


def kept_notes(ran):
    return [line for line in ran.err.splitlines() if "kept from an earlier evaluation" in line]


def test_a_second_evaluation_measures_nothing_and_says_so(score, fake):
    words = ("-m", "cls", "-m", "last-avg", "--task", "STS12", "--task", "STS-B:dev")
    first = score(*words)
    measured = len(fake["encoded"])
    again = score(*words)
    assert measured > 0 and len(fake["encoded"]) == measured
    assert again.out == first.out and not kept_notes(first)
    assert kept_notes(again) == [
        "all scores are kept from an earlier evaluation; --force measures again"
    ]
    assert score(*words, "--json").json["comparisons"]  # of kept scores, too
    forced = score(*words, "--force")
    assert len(fake["encoded"]) == 2 * measured
    assert forced.out == first.out and not kept_notes(forced)


def test_a_killed_evaluation_goes_on_with_the_task_that_had_not_ended(score, fake, monkeypatch):
    words = ("-m", "cls", "--task", "STS12", "--task", "STS14", "--task", "STS-B")
    real = evaluator.encode_together

    def killed_in_the_second_task(encoders, sentences, *, progress):
        if len(fake["encoded"]) == 1:
            raise KeyboardInterrupt
        return real(encoders, sentences, progress=progress)

    monkeypatch.setattr(evaluator, "encode_together", killed_in_the_second_task)
    stopped = score(*words)
    assert stopped.code == 130
    assert "the same command measures only the tasks that had not ended" in stopped.err
    monkeypatch.setattr(evaluator, "encode_together", real)
    ran = score(*words, "--json")
    assert [row["task"] for row in ran.json["results"]] == ["STS12", "STS14", "STS-B"]
    assert len(fake["encoded"]) == 3  # one before, two now
    assert kept_notes(ran) == [
        "1 of 3 scores are kept from an earlier evaluation; --force measures again"
    ]


def test_a_damaged_score_is_measured_again(score, fake, home):
    words = ("-m", "cls", "--task", "STS12")
    first = score(*words)
    [file] = (home / "cache" / "scores").iterdir()
    file.write_bytes(file.read_bytes()[:40])
    again = score(*words)
    assert again.out == first.out and len(fake["encoded"]) == 2


def test_a_file_among_the_models_stops_before_anything_is_scored(run, fake, here):
    rows = ["sentence1\tsentence2\tscore", "A cat.\tA dog.\t4.6", "A car.\tA bus.\t0.3"]
    (here / "own.tsv").write_text("\n".join(rows))
    (here / "notes.txt").write_text("A cat.\nA dog.\n")
    for words in (["mini", "last-avg", "own.tsv"], ["own.tsv"], ["mini", "notes.txt"]):
        ran = run("eval", *words)
        assert (ran.code, ran.out) == (2, "")
        assert f"{words[-1]} is a file, not a model" in ran.err and "--task" in ran.err
    assert not fake["encoded"]


def test_a_table_without_a_star_says_so():
    label, other = Label("a", "a"), Label("b", "b")
    smaller = Comparison(label, other, ["x"], "spearman", 0.0, (-9.0, 9.0), 1.0, 10, 1.0)
    larger = dataclasses.replace(smaller, difference=7.0, ci95=(-7.0, 21.0), p_holm=0.4)
    names = {label: "a", other: "b"}
    assert comparison_table([smaller, larger], names)[-1] == "no difference is beyond chance"
    starred = dataclasses.replace(larger, p_holm=0.01)
    assert isinstance(comparison_table([smaller, starred], names)[-1], Grid)
