import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from promptcli.cli.tables import table_names
from promptcli.data.task_table import TEST_TASKS
from promptcli.errors import UsageError
from promptcli.evaluation.scores import Label
from promptcli.recipe import MASKED_RECIPES, RECIPES

LETTERS = "abcdefghij"
UNFITTED = [name for name in RECIPES if name not in ("first-last-tfidf", "whitening", "flow")]


class LetterEncoder:
    """Letter counts, bent a little by the recipe so that recipes differ."""

    def __init__(self, entry):
        from promptcli.evaluation.scores import recipe_name

        self.recipe = entry.recipe
        self.backbone, self.tensors = SimpleNamespace(name=entry.recipe.backbone), dict
        name = recipe_name(entry.recipe)
        self.power = 1 + (list(RECIPES).index(name) if name in RECIPES else 20) / 5
        self.fingerprint = entry.recipe.to_json()

    def vectors(self, sentences):
        counts = [[sentence.count(letter) for letter in LETTERS] for sentence in sentences]
        return np.array(counts, dtype=np.float32) ** self.power


@pytest.fixture
def fake(monkeypatch):
    """Stand in for backbones and forward passes; lists what was opened and encoded."""
    from promptcli.encoder.encoder import Encoded
    from promptcli.evaluation import evaluator as evaluation
    from promptcli.models import loading as opening

    seen = {"opened": [], "encoded": []}

    def open_model(entry, **_):
        fitted = "tfidf" in entry.recipe.pooling or {"whitening", "flow"} & set(entry.recipe.transforms)
        if fitted and not entry.tensors:
            raise UsageError("is fitted: `promptcli fit --model ... --on FILE --name NAME`")
        seen["opened"].append(entry.recipe)
        return LetterEncoder(entry)

    def encode_together(encoders, sentences, *, progress):
        seen["encoded"].append(list(sentences))
        return [Encoded(encoder.vectors(sentences), *np.zeros((2, len(sentences)), int)) for encoder in encoders]

    monkeypatch.setattr(opening, "open_model", open_model)
    monkeypatch.setattr(evaluation, "encode_together", encode_together)
    return seen


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_year(root: Path, year: str, **subsets: int) -> None:
    for seed, (name, number) in enumerate(subsets.items()):
        generator = np.random.default_rng(seed + int(year))
        words = ["".join(generator.choice(list(LETTERS), 6)) for _ in range(number)]
        folder = root / "STS" / f"STS{year}-en-test"
        write(folder / f"STS.input.{name}.txt", "".join(f"{a}\t{b}\n" for a, b in zip(words, words[::-1], strict=True)))
        write(folder / f"STS.gs.{name}.txt", "".join(f"{gold / 5}\n" for gold in generator.integers(0, 26, number)))


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    write_year(root, "12", MSRpar=30, MSRvid=20)
    write_year(root, "14", images=25)
    rows = "".join(f"g\tf\ty\t{n}\t{n % 6}\t{'abc'[n % 3] * 3}x\t{'cab'[n % 2]}\n" for n in range(12))
    write(root / "STS/STSBenchmark/sts-dev.csv", rows)
    write(root / "STS/STSBenchmark/sts-test.csv", rows * 2)
    return root


@pytest.fixture
def entry(home):
    """A registry entry with fitted numbers."""
    import torch

    from promptcli.models.registry import Entry, Registry

    registry = Registry(home)
    registry.save(Entry("mine", RECIPES["whitening"], tensors={"mean": torch.zeros(3)}))
    registry.alias("my-best", "mine")
    return registry


def results(ran):
    assert ran.code == 0, ran.err
    return json.loads(ran.out)["results"]


def test_json_is_one_document_of_the_agreed_shape(run, fake, data):
    ran = run("eval", "--data-dir", data, "--model", "last-avg", "--json")
    document = json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert [(item["recipe"], item["task"], item["split"]) for item in document["results"]] == [
        ("last-avg", "STS12", "test"),
        ("last-avg", "STS14", "test"),
        ("last-avg", "STS-B", "test"),
    ]
    assert list(document["missing"]) == ["STS13", "STS15", "STS16", "SICK-R"]


def test_missing_tasks_are_named_on_stderr_and_are_dashes(run, fake, data):
    ran = run("eval", "--data-dir", data, "--model", "cls")
    assert ran.code == 0
    for name in ("STS13", "STS15", "STS16", "SICK-R"):
        assert f"{name} is missing: " in ran.err
    head, row = (line for line in ran.out.splitlines() if "STS13" in line or line.startswith("cls"))
    assert [column.strip("*") for column in head.split()][:7] == [str(name) for name in TEST_TASKS]
    assert "Avg (3 of 7)" in head
    assert [index for index, cell in enumerate(row.split()[1:]) if cell == "-"] == [1, 3, 4, 6]


def test_table_says_protocol_text_intervals_and_what_is_not_comparable(run, fake, data):
    ran = run("eval", "--data-dir", data, "--model", "cls", "--task", "STS12")
    assert "protocol senteval" in ran.out
    assert "95% bootstrap interval" in ran.out
    assert "text: as in the folder, lower-cased" in ran.out
    assert "* STS12: 50 pairs, not 3108: not comparable" in ran.out
    score = results(run("eval", "--data-dir", data, "--model", "cls", "--task", "STS12", "--json"))[0]
    assert f"{score['value']:.2f}" in ran.out
    assert "protocol" not in run("eval", "--model", "cls", "--task", "demo").out  # our own pairs have none
    assert f"±{(score['ci95'][1] - score['ci95'][0]) / 2:.2f}" in ran.out


def test_avg_is_the_mean_of_the_rounded_figures_of_test_splits(run, fake, data):
    arguments = [
        "eval",
        "--data-dir",
        data,
        "--model",
        "cls",
        "--task",
        "STS12",
        "--task",
        "STS14",
        "--task",
        "STS-B:dev",
    ]
    values = {item["task"]: item["value"] for item in results(run(*arguments, "--json"))}
    row = next(line for line in run(*arguments).out.splitlines() if line.startswith("cls"))
    assert row.split()[-1] == f"{np.mean([round(values['STS12'], 2), round(values['STS14'], 2)]):.2f}"


def test_nothing_named_means_every_recipe_that_needs_no_fitting(run, fake, data):
    ran = run("eval", "--data-dir", data, "--task", "STS14", "--json")
    assert [item["recipe"] for item in results(ran)] == UNFITTED
    assert "first-last-tfidf is left out: " in ran.err
    assert "whitening is left out: " in ran.err
    assert "flow is left out: " in ran.err
    assert ran.err.count("promptcli fit") == 3
    assert len(fake["encoded"]) == 1
    assert len(set(fake["encoded"][0])) == len(fake["encoded"][0])


def test_neutral_changes_keep_the_table_of_all_recipes(run, fake, data):
    ran = run("eval", "--data-dir", data, "--task", "STS14", "--backbone", "other", "--set", "max-length=32", "--json")
    found = results(ran)
    assert len(found) == len(UNFITTED)
    assert {item["model"] for item in found} == {"other"}
    assert {recipe.max_length for recipe in fake["opened"]} == {32}


def test_a_changed_field_without_a_recipe_is_one_recipe(run, fake, data):
    found = results(run("eval", "--data-dir", data, "--task", "STS14", "--pooling", "last/cls", "--json"))
    assert [item["recipe"] for item in found] == ["cls"]


def test_entries_and_recipes_stand_in_one_table(run, fake, data, entry):
    ran = run("eval", "--data-dir", data, "--model", "my-best", "--model", "cls", "--task", "STS14", "--json")
    named = [(item["model"], item["recipe"]) for item in results(ran)]
    assert named == [("my-best", "whitening"), ("mini-bert", "cls")]
    table = run("eval", "--data-dir", data, "--model", "my-best", "--model", "cls", "--task", "STS14").out
    assert any(line.startswith("my-best whitening") for line in table.splitlines())
    assert any(line.startswith("mini-bert cls") for line in table.splitlines())


def test_a_model_whose_recipe_has_no_name_is_called_by_its_own():
    mini, plain = Label("mini", 'prompt=Say "[X]" . pooling=last/mask'), Label("mini-bert", "last-avg")
    other = Label("mini-bert", "prompt=[X] [MASK] pooling=last/mask")
    assert list(table_names([mini, plain]).values()) == ["mini", "mini-bert last-avg"]
    assert list(table_names([plain, other]).values()) == ["last-avg", other.recipe]
    assert list(table_names([other, mini, plain]).values())[:2] == [f"mini-bert {other.recipe}", "mini"]


def test_save_stores_the_scores_in_the_entry_only_when_asked(run, fake, data, entry):
    run("eval", "--data-dir", data, "--model", "my-best", "--task", "STS14")
    assert entry.load("mine").scores == []
    ran = run("eval", "--data-dir", data, "--model", "my-best", "--model", "cls", "--task", "STS14", "--save", "--json")
    assert entry.load("mine").scores == [item for item in results(ran) if item["model"] == "my-best"]


def test_changed_models_cannot_be_saved(run, fake, data, entry):
    ran = run("eval", "--data-dir", data, "--model", "mine", "--set", "max-length=16", "--save")
    assert (ran.code, ran.out) == (2, "") and "changed fields" in ran.err
    assert not fake["encoded"]


def test_compare_adds_the_other_and_says_how_sure_it_is(run, fake, data):
    arguments = ["eval", "--data-dir", data, "--model", "cls", "--compare", "last-avg"]
    document = json.loads(run(*arguments, "--json").out)
    values = {(item["recipe"], item["task"]): item["value"] for item in document["results"]}
    assert len(document["comparisons"]) == 3
    for item in document["comparisons"]:
        assert (item["recipe"], item["against"]["recipe"]) == ("cls", "last-avg")
        difference = values["cls", item["task"]] - values["last-avg", item["task"]]
        assert item["value"] == pytest.approx(difference, abs=2e-4)
        assert item["ci95"][0] <= item["value"] <= item["ci95"][1]
        assert 0 < item["p_value"] <= 1
    table = run(*arguments).out
    assert "cls - last-avg, paired bootstrap" in table
    assert f"{document['comparisons'][0]['value']:+.2f}" in table


def test_compare_with_an_entry_and_in_the_table_of_all_recipes(run, fake, data, entry):
    arguments = ["eval", "--data-dir", data, "--task", "STS14", "--json"]
    document = json.loads(run(*arguments, "--model", "cls", "--compare", "mine").out)
    assert document["comparisons"][0]["against"] == {"model": "mine", "recipe": "whitening"}
    document = json.loads(run(*arguments, "--compare", "cls").out)
    assert len(document["results"]) == len(UNFITTED)
    assert [item["recipe"] for item in document["comparisons"]] == [name for name in UNFITTED if name != "cls"]


def test_compare_does_not_take_the_changes_that_make_the_difference(run, fake, data):
    ran = run(
        "eval",
        "--data-dir",
        data,
        "--task",
        "STS14",
        "--model",
        "prompt",
        "--set",
        "period=false",
        "--compare",
        "prompt",
    )
    assert ran.code == 0
    assert [recipe.explicit().period for recipe in fake["opened"]] == [False, True]


def test_subsets_are_rows_on_request(run, fake, data):
    arguments = ["eval", "--data-dir", data, "--model", "cls", "--task", "STS12", "--task", "STS14"]
    assert "MSRvid" not in run(*arguments).out
    table = run(*arguments, "--subsets").out
    assert "STS12 by subset" in table
    assert "STS14 by subset" not in table
    part = results(run(*arguments, "--json"))[0]["subsets"]["MSRvid"]
    assert f"{part['value']:.2f}" in table.split("by subset")[1]


def test_retrieval_prints_recall(run, fake, tmp_path):
    write(tmp_path / "notes.tsv", "query\tdocument\tgrade\nab\tabc\t1\nde\tdef\t1\n")
    ran = run("eval", "cls", "--task", f"retrieval:{tmp_path / 'notes.tsv'}", "--compare", "last-avg")
    assert ran.code == 0 and "only scores on graded pairs are compared" in ran.err
    assert all(metric in ran.out for metric in ("ndcg@10", "recall@10 ", "recall@100"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--task", "STS17"], 2, "unknown task 'STS17'; valid: STS12, STS13"),
        (["--protocol", "glue"], 2, "unknown protocol 'glue'; valid: senteval, mteb"),
        (["--model", "nothing.toml"], 2, "nothing"),
        (["--data-dir", "/nowhere/at/all"], 3, "no such folder"),
        (["--task", "SICK-R"], 3, "SICK_test_annotated.txt is not there"),
        (["--model", "cls", "--compare", "cls", "--task", "STS14"], 2, "only encoder"),
        (["--model", "whitening"], 2, "promptcli fit"),
        (["--model", "cls", "--save"], 2, "`save`"),
        (["--model", "mini", "--save"], 2, "shipped"),
    ],
)
def test_refusals(run, fake, data, arguments, code, message):
    ran = run("eval", "--data-dir", data, *arguments, "-q")
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err and len(ran.err.splitlines()) == 1


def test_every_recipe_is_scored_on_the_shipped_backbone(run, data):
    """No fake: real forward passes, and the figures of one call equal those of single calls."""
    together = results(run("eval", "--data-dir", data, "--task", "STS14", "--json"))
    fitting = [name for name in UNFITTED if name in MASKED_RECIPES]  # mini is a masked model
    assert [item["recipe"] for item in together] == fitting
    assert len({item["fingerprint"] for item in together}) == len(fitting)
    alone = results(run("eval", "--data-dir", data, "--task", "STS14", "--model", "prompt-denoised", "--json"))
    (same,) = (item for item in together if item["recipe"] == "prompt-denoised")
    assert same["value"] == pytest.approx(alone[0]["value"], abs=0.5)
    assert same["fingerprint"] == alone[0]["fingerprint"]


@pytest.mark.data
def test_real_data_gives_the_figures_of_the_plain_reference(run, data_folder):
    """Against one sentence at a time, float32, on weights that lie next to the data: the mini of before this one."""
    weights = data_folder.parent / "models" / "mini-v0"
    if not weights.is_dir():
        pytest.skip(f"real weights: {weights.name} is not next to the data")
    recipes = ("--model", "first-last-avg", "--model", "cls")
    ran = run("eval", "--data-dir", data_folder, "--backbone", weights, *recipes, "--json")
    values = {(item["recipe"], item["task"]): item["value"] for item in results(ran)}
    expected = {
        "first-last-avg": {"STS12": 45.43, "STS13": 57.50, "STS14": 47.98, "STS-B": 49.57, "SICK-R": 57.40},
        "cls": {"STS12": 59.15, "STS13": 53.94, "STS14": 51.98, "STS-B": 54.09, "SICK-R": 57.88},
    }
    for recipe, figures in expected.items():
        for task, value in figures.items():
            assert values[recipe, task] == pytest.approx(value, abs=0.02), (recipe, task)
