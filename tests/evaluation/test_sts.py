from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest

from promptcli.data.hub_sets import HubSet
from promptcli.data.senteval import moses as tokenize
from promptcli.data.task_table import PROTOCOLS, TASKS, TaskName, task_row
from promptcli.data.tasks import (
    Pairs,
    STSTask,
    fitting_task_name,
    graded_task_names,
    load_graded_tasks,
)
from promptcli.errors import NotFoundError
from promptcli.notes import without_network
from tests.comparing import refusal
from tests.source_files import write_table

#: All splits of a task: to fit on.
ALL_SPLITS = [TaskName("STS-B", "all"), TaskName("SICK-R", "all")]
SICK_HEADER = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(root: Path, *names: str, protocol: str = "senteval"):
    return load_graded_tasks(root, graded_task_names(names), protocol)


def one(root: Path, name: str, protocol: str = "senteval") -> STSTask:
    loaded = load(root, name, protocol=protocol)
    assert not loaded.missing
    return loaded.tasks[0]


def rows(pairs: Pairs) -> list[tuple[str, str, float]]:
    return list(zip(pairs.first, pairs.second, pairs.gold.tolist(), strict=True))


def write_sick(root: Path) -> None:
    write(
        root / "SICK/SICK_train.txt",
        f"{SICK_HEADER}\n1\tA dog\tA cat\t4.5\tNEUTRAL\n2\tB\tC\t3\tNEUTRAL\n",
    )
    write(root / "SICK/SICK_trial.txt", f"{SICK_HEADER}\n4\tD\tE\t3.6\tCONTRADICTION\n")
    write(
        root / "SICK/SICK_test_annotated.txt",
        f"{SICK_HEADER}\r\n6\tNo boy\tA kid\t3.3\tENTAILMENT\r\n",
    )


def year(
    root: Path, name: str, subset: str, text: str | bytes, gold: str, prefix: str = "STS"
) -> None:
    """Write one subset of a year: its pairs and their gold scores."""
    folder = root / "STS" / f"{name}-en-test"
    write(folder / f"{prefix}.input.{subset}.txt", text)
    write(folder / f"{prefix}.gs.{subset}.txt", gold)


def test_year_puts_subsets_together_and_skips_what_is_none(tmp_path):
    year(tmp_path, "STS12", "MSRpar", 'a " quote\tb\nsame\tsame\nsame\tsame\n', "4.400\n0.6\n0.6\n")
    year(tmp_path, "STS12", "surprise.OnWN", "c\td\n", "3\n")
    year(tmp_path, "STS12", "ALL", "a\tb\nsame\tsame\nsame\tsame\nc\td\n", "4.400\n0.6\n0.6\n3\n")
    task = one(tmp_path, "STS12")
    assert {name: len(part) for name, part in task.subsets.items()} == {
        "MSRpar": 3,
        "surprise.OnWN": 1,
    }
    assert rows(task.pairs()) == [
        ('a " quote', "b", 4.4),
        *[("same", "same", 0.6)] * 2,
        ("c", "d", 3.0),
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_smt_is_left_out_with_and_without_its_input(tmp_path, protocol):
    year(tmp_path, "STS13", "FNWN", "a\tb\n", "1\n")
    write(tmp_path / "STS/STS13-en-test/STS.gs.SMT.txt", "1\n2\n")
    assert list(one(tmp_path, "STS13", protocol).subsets) == ["FNWN"]
    year(tmp_path, "STS13", "SMT", "x\ty\nx\ty\n", "1\n2\n")
    assert list(one(tmp_path, "STS13", protocol).subsets) == ["FNWN"]


EIGHT = "a\tb\nc\td\ne\tf\ng\th\n"


@pytest.mark.parametrize(
    ("name", "text", "gold", "expected"),
    [
        # unscored pairs are dropped by their line number
        *(
            ("STS15", EIGHT, f"\n2\n \n4{end}", [("c", "d", 2.0), ("g", "h", 4.0)])
            for end in ("", "\n", "\n\n\n")
        ),
        # the last pair may be unscored: "1\n" is a scored line and an empty one without a line feed
        *(
            ("STS15", "a\tb\nc\td\n", gold, [("a", "b", 1.0)])
            for gold in ("1\n\n", "1\n", "1\n\n\n\n")
        ),
        # lines end at line feeds only, and fields are stripped
        ("STS14", "a\u2028b  c \t d \x0ce\x85 \r\n", "1.0\r\n", [("a b c", "d e", 1.0)]),
        (
            "STS16",
            "A first.\tA second.\tsource 1\tsource 2\nB\tC\ts\ts\n",
            "\n5\n",
            [("B", "C", 5.0)],
        ),
    ],
)
def test_unscored_pairs_are_dropped_and_lines_end_at_line_feeds_only(
    tmp_path, name, text, gold, expected
):
    year(tmp_path, name, "images", text, gold, prefix="STS2016" if name == "STS16" else "STS")
    for other in ("LICENSE.txt", "correlation-noconfidence.pl"):
        write(tmp_path / f"STS/{name}-en-test" / other, "text")
    assert rows(one(tmp_path, name).subsets["images"]) == expected


def test_benchmark_has_7_columns_or_9_and_no_header(tmp_path):
    row = "main-news\theadlines\t2013\t0001\t{}\t{}\t{}"
    folder = tmp_path / "STS" / "STSBenchmark"
    lines = [
        row.format("5.000", 'he said "no', "x"),
        row.format("0.2", "y", "z") + "\tlicence\tlicence",
        "",
    ]
    write(folder / "sts-test.csv", "\n".join(lines))
    write(folder / "sts-dev.csv", row.format("1", "dev", "dev") + "\n")
    test, dev = load(tmp_path, "STS-B", "STS-B:dev").tasks
    assert (test.label, dev.label) == ("STS-B", "STS-B:dev")
    assert rows(test.pairs()) == [
        ('he said "no', "x", 5.0),
        ("y", "z", 0.2),
    ] and dev.pairs().second == ["dev"]


def test_sick_protocols_differ_in_their_pairs(tmp_path):
    write_sick(tmp_path)
    senteval, mteb = one(tmp_path, "SICK-R"), one(tmp_path, "SICK-R", "mteb")
    assert {name: len(part) for name, part in senteval.subsets.items()} == {"test": 1}
    assert senteval.pairs().first == ["No boy"] and senteval.text == "as in the folder, cased"
    assert {name: len(part) for name, part in mteb.subsets.items()} == {
        "train": 2,
        "trial": 1,
        "test": 1,
    }
    assert (senteval.expected_pairs, mteb.expected_pairs) == (4927, 9927)
    header = (
        "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score"  # columns go by name
    )
    write(tmp_path / "SICK/SICK_test_annotated.txt", f"{header}\n1\ta\tb\tNEUTRAL\t4.5\n")
    assert one(tmp_path, "SICK-R").pairs().gold.tolist() == [4.5]


@pytest.mark.parametrize("inner", ["", "senteval", "downstream", "data/downstream"])
def test_folder_may_hold_the_downstream_folder(tmp_path, inner):
    write_sick(tmp_path / inner)
    assert one(tmp_path, "SICK-R").pairs().first == ["No boy"]


def test_missing_tasks_are_named_and_the_others_are_there(tmp_path):
    write_sick(tmp_path)
    (tmp_path / "SICK/SICK_trial.txt").unlink()
    (tmp_path / "STS" / "STS14-en-test").mkdir(parents=True)
    loaded = load(tmp_path, "STS12", "STS14", "STS-B", "SICK-R")
    assert [task.name for task in loaded.tasks] == ["SICK-R"]
    for name, file in {
        "STS12": "STS12-en-test",
        "STS14": "STS14-en-test",
        "STS-B": "sts-test.csv",
    }.items():
        assert file in loaded.missing.pop(name)
    assert not loaded.missing
    assert "SICK_trial.txt" in load(tmp_path, "SICK-R", protocol="mteb").missing["SICK-R"]


def test_no_folder_is_not_found_and_one_of_something_else_has_no_tasks(tmp_path):
    write(tmp_path / "file", "x")
    for name in ("nowhere", "file"):
        with refusal("no such folder", NotFoundError):
            load(tmp_path / name)
    loaded = load(tmp_path, "STS12", "SICK-R")
    assert loaded.tasks == [] and set(loaded.missing) == {"STS12", "SICK-R"}


@pytest.mark.parametrize(
    ("sentence", "text"),
    [("a russian", "as in the folder, lower-cased"), ("a Russian", "raw text, as in the folder")],
)
def test_text_of_a_folder_is_what_is_found(tmp_path, sentence, text):
    year(tmp_path, "STS14", "images", f"{sentence}\tb\n", "1\n")
    assert one(tmp_path, "STS14").text == one(tmp_path, "STS14", "mteb").text == text


INPUT, GOLD = "STS/STS14-en-test/STS.input.x.txt", "STS/STS14-en-test/STS.gs.x.txt"
BENCHMARK, SICK = "STS/STSBenchmark/sts-test.csv", "SICK/SICK_test_annotated.txt"


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({INPUT: "a\tb\nno tab\n", GOLD: "1\n2\n"}, r"STS.input.x.txt:2: .*tab"),
        ({INPUT: "a\tb\nc\td\n", GOLD: "1\nhigh\n"}, r"STS.gs.x.txt:2: .*'high'"),
        ({INPUT: "a\tb\n", GOLD: "nan\n"}, r"STS.gs.x.txt:1: .*'nan'"),
        (
            {INPUT: "a\tb\nc\td\ne\tf\n", GOLD: "1\n"},
            r"STS.gs.x.txt:1: 1 scores for the 3 lines of STS.input.x.txt",
        ),
        ({INPUT: "a\tb\n", GOLD: "1\n\n2\n"}, r"STS.gs.x.txt:3: 3 scores for the 1 lines"),
        ({INPUT: "a\tb\n"}, r"STS.input.x.txt: .*STS.gs.x.txt"),
        ({INPUT: "a\tb\n", GOLD: "\n"}, r"STS.gs.x.txt: holds no scored pairs"),
        ({INPUT: b"a\tb\nc\t\xe9\n", GOLD: "1\n2\n"}, "x.txt: line 2: is not UTF-8"),
        ({BENCHMARK: "a\tb\tc\td\t1\te\tf\ng\th\n"}, r"sts-test.csv:2: expected 7 columns"),
        ({BENCHMARK: "a\tb\tc\td\tscore\te\tf\n"}, r"sts-test.csv:1: the score 'score'"),
        ({SICK: "1\ta\tb\t4\tNEUTRAL\n"}, r"annotated.txt:1: expected a header"),
        ({SICK: ""}, r"annotated.txt:1: expected a header"),
        ({SICK: f"{SICK_HEADER}\n1\ta\tb\n"}, r"annotated.txt:2: expected 5 columns, found 3"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(tmp_path, files, place):
    for name, text in files.items():
        write(tmp_path / name, text)
    with refusal(place) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_names_come_in_the_papers_order():
    papers = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
    assert [str(name) for name in graded_task_names([])] == papers
    chosen = [TaskName("STS12"), TaskName("SICK-R"), TaskName("STS-B", "dev")]
    assert graded_task_names(["SICK-R", "STS-B:dev", "STS12", "STS12"]) == chosen


@pytest.mark.parametrize(
    "name", ["STS17", "sts12", "STS12:dev", "STS-B:test", "", "STS-B:all", "SICK-R:all"]
)
def test_an_unknown_task_is_answered_with_the_valid_ones(name):
    with refusal(r"unknown task .*valid: STS12, .*SICK-R, STS-B:dev"):
        graded_task_names([name])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_splits_are_to_fit_on(tmp_path, protocol):
    write_sick(tmp_path)
    for split, sentence in (("train", "a"), ("dev", "b"), ("test", "c")):
        write(tmp_path / f"STS/STSBenchmark/sts-{split}.csv", f"g\tf\ty\t1\t3\t{sentence}\tother\n")
    benchmark, sick = load_graded_tasks(
        tmp_path, list(map(fitting_task_name, ("STS-B:all", "SICK-R:all"))), protocol
    ).tasks
    assert (benchmark.label, benchmark.pairs().first) == ("STS-B:all", ["a", "b", "c"])
    assert (sick.label, sick.pairs().first) == ("SICK-R:all", ["A dog", "B", "D", "No boy"])
    (tmp_path / "STS/STSBenchmark/sts-train.csv").unlink()
    missing = load_graded_tasks(tmp_path, ALL_SPLITS, protocol).missing
    assert list(missing) == ["STS-B:all"] and "sts-train.csv is missing" in missing["STS-B:all"]
    assert fitting_task_name("STS14") == TaskName("STS14")
    with refusal(r"unknown task 'STS12:all'; valid: STS12, .*STS-B:all, SICK-R:all"):
        fitting_task_name("STS12:all")


def test_hash_changes_with_every_part_of_the_data():
    def digest(subset="s", first="a", second="b", gold=1.0):
        pairs = Pairs([first], [second], np.array([gold]))
        return STSTask("STS12", "test", "senteval", "raw text", {subset: pairs}).sha256()

    changes = ({}, {"subset": "t"}, {"first": "x"}, {"second": "y"}, {"gold": 1.5})
    assert digest() == digest() and len({digest(**change) for change in changes}) == 5


@pytest.mark.parametrize(
    ("raw", "tokenized"),
    [
        ("The CFE treaty (1990) was signed.", "the cfe treaty ( 1990 ) was signed ."),
        ("Russia's talks, don't they?", "russia ' s talks , don ' t they ?"),
        ('"Ham & eggs" cost $5,000.50', '" ham & eggs " cost $ 5,000.50'),
        ("U.N. experts left Gen. Urakov", "u.n. experts left gen. urakov"),
    ],
)
def test_a_sentence_is_tokenised_as_by_moses(raw, tokenized):
    assert tokenize([raw, raw], lower=True) == [tokenized, tokenized]
    assert tokenize([raw], lower=False)[0].lower() == tokenized


COLUMNS = ("sentence1", "sentence2", "score", "genre")
ROWS = [("A Dog's life.", "One (small) cat", 4.0, "x"), ("B", "C", 0.5, "x")]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def local_sets(tmp_path, cache, monkeypatch):
    """Local stand-ins of the hub's data sets: JSONL, Parquet, one that is missing and one with
    another column.
    """
    for name in ("sts12", "stsb", "odd", "sick"):
        (tmp_path / name).mkdir()
    for name in ("sts12", "stsb"):
        write_table(tmp_path / name / "test.jsonl", COLUMNS, ROWS)
    for split in ("validation", "train"):
        write_table(tmp_path / "stsb" / f"{split}.jsonl", COLUMNS, [(split, *ROWS[1][1:])])
    write_table(tmp_path / "odd" / "test.jsonl", ("a", *COLUMNS[1:3]), [("x", "y", 1)])
    sick = ("premise", "hypothesis", "relatedness_score")
    write_table(tmp_path / "sick" / "test-00000-of-00001.parquet", sick, [("A Dog", "A Cat", 3.3)])
    for label, source in {
        "STS12": HubSet(str(tmp_path / "sts12")),
        "STS13": HubSet(str(tmp_path / "nowhere")),
        "STS14": HubSet(str(tmp_path / "odd")),
        "STS-B": HubSet(str(tmp_path / "stsb")),
        "STS-B:dev": HubSet(str(tmp_path / "stsb"), split="validation"),
        "STS-B:all": HubSet(str(tmp_path / "stsb"), split=TASKS["STS-B:all"].hub.split),
        "SICK-R": HubSet(str(tmp_path / "sick"), columns=sick),
    }.items():
        monkeypatch.setitem(TASKS, label, replace(TASKS[label], hub=source))


def test_senteval_protocol_treats_raw_hub_text_and_mteb_leaves_it(local_sets):
    sts12, sick = load_graded_tasks(None, graded_task_names(["STS12", "SICK-R"]), "senteval").tasks
    assert sts12.text == "Moses-tokenised, lower-cased"
    assert rows(sts12.pairs()) == [("a dog ' s life .", "one ( small ) cat", 4.0), ("b", "c", 0.5)]
    assert sick.text == "Moses-tokenised, cased" and sick.pairs().first == ["A Dog"]
    assert sick.pairs().gold.tolist() == pytest.approx([3.3])
    (raw,) = load_graded_tasks(None, graded_task_names(["STS12"]), "mteb").tasks
    assert raw.text == "raw text" and raw.pairs().first == ["A Dog's life.", "B"]


def test_splits_of_the_hub_and_sets_that_cannot_be_read(local_sets):
    names = [
        *graded_task_names(["STS13", "STS14", "STS-B:dev", "STS-B"]),
        fitting_task_name("STS-B:all"),
    ]
    loaded = load_graded_tasks(None, names, "mteb")
    assert {task.label: task.pairs().first for task in loaded.tasks} == {
        "STS-B": ["A Dog's life.", "B"],
        "STS-B:dev": ["validation"],
        "STS-B:all": ["train", "validation", "A Dog's life.", "B"],
    }
    assert "nowhere" in loaded.missing["STS13"] and "data_dir" in loaded.missing["STS13"]
    assert "no column 'sentence1', only a, sentence2, score" in loaded.missing["STS14"]


def test_offline_an_uncached_data_set_is_named_at_once(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.HfApi.hf_hub_download", lambda *_, **__: pytest.fail("asked the network")
    )
    with without_network():
        loaded = load_graded_tasks(None, graded_task_names(["STS12", "SICK-R"]))
    assert not loaded.tasks
    assert "mteb/sts12-sts is not in the cache (offline)" in loaded.missing["STS12"]
    assert "data_dir" in loaded.missing["SICK-R"]


def test_one_wait_for_an_unreachable_hub_is_enough(cache, monkeypatch):
    asked = []

    def unreachable(path, **_):
        asked.append((path, datasets.config.HF_HUB_OFFLINE))
        raise ConnectionError

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    loaded = load_graded_tasks(None, graded_task_names([]), "mteb")
    first, *_ = [task_row(name, "mteb").hub.path for name in graded_task_names([])]
    # the others are looked for in the cache alone; no setting is switched meanwhile
    assert asked == [(first, False)]
    assert "cannot be reached" in loaded.missing["STS12"]
    assert len(loaded.missing) == 7


def test_a_data_set_in_the_cache_is_read_without_the_network(cache, tmp_path, monkeypatch):
    content = {"sentence1": ["A", "B"], "sentence2": ["a", "c"], "score": [4.0, 0.5]}
    datasets.Dataset.from_dict(content).to_json(tmp_path / "rows.jsonl")
    datasets.load_dataset("json", data_files={"test": str(tmp_path / "rows.jsonl")})
    [made] = (tmp_path / "cache" / "json").iterdir()
    made.rename(made.with_name("default"))
    (tmp_path / "cache" / "json").rename(tmp_path / "cache" / "mteb___sts12-sts")
    for path in (tmp_path / "cache").rglob("json-test.arrow"):
        path.rename(path.with_name("sts12-sts-test.arrow"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("asked the hub"))
    assert load_graded_tasks(None, graded_task_names(["STS12"]), "mteb").tasks[
        0
    ].pairs().gold.tolist() == [
        4.0,
        0.5,
    ]


@pytest.mark.data
def test_the_real_tasks_have_as_many_pairs_as_expected(data_folder):
    loaded = load(
        data_folder, *(str(name) for name in graded_task_names([])), "STS-B:dev", "STS-B:train"
    )
    loaded.tasks.extend(load_graded_tasks(data_folder, ALL_SPLITS).tasks)
    assert len(loaded.tasks) == 9 and set(loaded.missing) == {"STS15", "STS16"}
    assert all(task.expected_pairs == len(task.pairs()) for task in loaded.tasks)
    texts = {task.text for task in loaded.tasks if task.name != "SICK-R"}
    assert texts == {"as in the folder, lower-cased"}
    assert len(one(data_folder, "SICK-R", "mteb").pairs()) == 9927


@pytest.mark.data
def test_sentevals_own_text_is_a_fixed_point_of_the_moses_step(data_folder):
    pairs = one(data_folder, "STS14").pairs()
    sentences = list(dict.fromkeys(pairs.first + pairs.second))
    assert tokenize(sentences, lower=True) == sentences
