"""``search-templates``: greedy and free search, scoring as ``eval`` scores, the cache after a kill,
the command.
"""

import contextlib
import functools
import re
from types import SimpleNamespace

import numpy as np
import pytest

import promptcli as pc
from promptcli.cli.commands.select import print_templates
from promptcli.data.demo import SENTENCES_FILE
from promptcli.data.tasks import Pairs, STSTask
from promptcli.encoder.encoder import TorchEncoder, build_encoder
from promptcli.encoder.template import check_template
from promptcli.errors import NotFoundError, UsageError
from promptcli.evaluation import statistics
from promptcli.evaluation.evaluator import score_encoders
from promptcli.notes import showing_stages
from promptcli.recipe import RECIPES, Recipe
from promptcli.select import template_search
from promptcli.select.search import ScoredChoice
from promptcli.select.template_search import (
    PROTOCOL,
    TemplateScorer,
    demonstrations,
    search_greedily,
)
from promptcli.storage.cache import Cache
from tests.comparing import gap, refusal
from tests.select.pairs import EVERY_PAIR
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs

TEXTS = [
    "[X] [MASK] .",
    '"[X]" means [MASK] .',
    "[MASK] : ' [X] '",
    "this([X]) is[MASK]!",
    "I say [X] , it is [MASK]",
]


@pytest.fixture(scope="module")
def task():
    """Each sentence with two others, in two subsets."""
    rows = [
        (one, SENTENCES[(n * 5 + k) % 12], (n * 7 + k * 3) % 6)
        for k in (1, 2)
        for n, one in enumerate(SENTENCES)
    ]

    def pairs(part):
        return Pairs(
            [row[0] for row in part],
            [row[1] for row in part],
            np.array([float(row[2]) for row in part]),
        )

    return STSTask(
        "demo", "dev", "senteval", "made up", {"one": pairs(rows[:14]), "two": pairs(rows[14:])}
    )


# --- scoring ---


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *((family, {}) for family in ("bert", "roberta", "xlm-roberta")),
        *(
            ("bert", {field: value})
            for field, value in (("period", False), ("denoise", "hidden"), ("max_length", 20))
        ),
    ],
)
def test_a_template_has_the_figure_that_eval_prints(family, changes, tiny_backbone, task):
    backbone = tiny_backbone(family)
    recipe = PROTOCOL.replace(**{"period": True, **changes})
    scorer = TemplateScorer(backbone, task, recipe=recipe)
    for text, item in zip(TEXTS, scorer.score(TEXTS, "all", lambda done: None), strict=True):
        encoder = build_encoder(recipe.replace(prompt=text), backbone=backbone)
        (expected,) = score_encoders([encoder], [task])
        assert (item.choice, item.value, item.ci95) == (text, expected.value, expected.ci95)


def test_cosines_of_a_subset_are_those_of_the_whole(tiny_backbone, task, monkeypatch):
    monkeypatch.setattr(template_search, "_SMALL_BATCH", 2)
    scorer = TemplateScorer(tiny_backbone("roberta"), task, PROTOCOL)
    whole = scorer.cosines(TEXTS[1])
    before = scorer.encoded
    some = np.array([20, 3, 3, 7])
    assert gap(scorer.cosines(TEXTS[1], some), whole[some]) < 1e-5
    assert 0 < scorer.encoded - before < before


# --- cache ---


def test_the_cache_gives_back_what_it_was_given(tiny_backbone, task, tmp_path):
    cache, bert = Cache(tmp_path / "new" / "cache"), tiny_backbone("bert")
    first = TemplateScorer(bert, task, PROTOCOL, cache)
    plain, some = first.cosines(TEXTS[0]), first.cosines(TEXTS[0], np.array([4, 2]))
    again = TemplateScorer(bert, task, PROTOCOL, cache)
    assert (again.cosines(TEXTS[0]) == plain).all() and (
        again.cosines(TEXTS[0], np.array([4, 2])) == some
    ).all()
    assert again.encoded == 0
    again.cosines(TEXTS[0], np.array([2, 4]))
    assert again.encoded > 0  # other pairs
    for other in (
        TemplateScorer(tiny_backbone("roberta"), task, PROTOCOL, cache),
        TemplateScorer(bert, task, PROTOCOL.replace(denoise="hidden"), cache),
        TemplateScorer(
            bert, STSTask("demo", "dev", "", "", {"x": task.subsets["one"]}), PROTOCOL, cache
        ),
    ):
        other.cosines(TEXTS[0])
        assert other.encoded > 0


# --- racing ---


class Table:
    """A stub scorer on made-up cosines: candidate k correlates with gold the better, the larger its
    quality.
    """

    def __init__(self, number, size, *, seed=0):
        generator = np.random.default_rng(seed)
        self.gold = generator.integers(0, 26, size) / 5
        self.size = size
        self.templates = [f"word{k} [X] [MASK] ." for k in range(number)]
        shared = generator.normal(size=size)  # templates err alike
        quality = generator.beta(2, 3, size=number)
        signal_part = (self.gold - self.gold.mean()) / self.gold.std()
        noise = 0.7 * shared + 0.5 * generator.normal(size=(number, size))
        self.rows = quality[:, None] * signal_part + noise
        self.pairs = 0

    def value(self, template):
        return 100 * statistics.spearman(self.rows[self.templates.index(template)], self.gold)

    def cosines(self, template, pairs=None):
        wanted = np.arange(self.size) if pairs is None else pairs
        self.pairs += len(wanted)
        return self.rows[self.templates.index(template)][wanted]

    def score(self, templates, stage="all", advance=lambda pairs: None):
        scored = []
        for template in templates:
            value = 100 * statistics.spearman(self.cosines(template), self.gold)
            scored.append(ScoredChoice(template, value, (value - 1, value + 1), stage))
            advance(self.size)
        return scored

    def run(self, templates=None, **options):
        return template_search.race(templates or self.templates, self, **options)


@pytest.mark.parametrize("seed", range(3))
def test_a_race_finds_the_winner_in_every_order_at_a_bounded_cost(seed):
    table = Table(500, 1500, seed=seed)
    best = max(table.value(template) for template in table.templates)
    found = []
    for order in range(3):
        table.pairs = 0
        moved = [table.templates[k] for k in np.random.default_rng(order).permutation(500)]
        finalists, rungs = table.run(moved, seed=order)
        found.append(finalists[0])
        assert best - finalists[0].value <= 0.2
        assert table.pairs <= 0.15 * 500 * 1500
        assert (finalists, rungs) == table.run(table.templates, seed=order)
    assert all(item.stage == "final" and item.value == table.value(item.choice) for item in found)


@pytest.mark.parametrize(
    ("number", "size"), [(60, 300), (1, 2), (10, 400), (11, 40), (12, 49), (3000, 50)]
)
def test_a_race_accounts_for_every_pair_and_ends_on_all(number, size):
    table, done = Table(number, size), []
    with showing_stages(lambda name, steps: contextlib.nullcontext(done.append)):
        finalists, rungs = table.run([*table.templates, table.templates[0]])
    assert sum(done) == table.pairs
    sizes = [rung.pairs for rung in rungs]
    assert sizes == sorted(set(sizes)) and all(item.stage == "final" for item in finalists)
    assert len(finalists) == (min(number, 10) if rungs else number)


# --- greedy ---


def test_greedy_builds_on_the_relation_that_won():
    liked = {"[X] is [MASK] .": 9.0, "This [X] is [MASK] .": 10.0}
    asked = []

    def score(templates, stage, advance):
        asked.append(list(templates))
        return [ScoredChoice(text, liked.get(text, 5.0), (0.0, 20.0), stage) for text in templates]

    stages, _ = search_greedily(score, 1)
    relations = ("", "is ", "mean ", "means ")
    prefixes = (
        "This [X]",
        "This sentence of [X]",
        'This sentence of "[X]"',
        'This sentence : "[X]"',
    )
    assert asked == [
        [f"[X] {word}[MASK] ." for word in relations],
        [f"{prefix} is [MASK] ." for prefix in prefixes],
    ]
    assert [{item.stage for item in rows} for rows in stages.values()] == [{"relation"}, {"prefix"}]


def test_greedy_tries_the_papers_templates_in_its_order():
    scores = template_search.published_scores
    asked = []

    def score(templates, stage, advance):
        asked.extend(templates)
        return [ScoredChoice(text, " means " in text, (0.0, 1.0), stage) for text in templates]

    search_greedily(score, 1)
    published = scores("google-bert/bert-base-uncased", "STS-B:dev")
    assert asked == list(published) == template_search.published_templates()
    assert (published["[X] [MASK] ."], published['This sentence : "[X]" means [MASK] .']) == (
        39.34,
        73.44,
    )
    assert scores("mini-bert", "STS-B:dev") == scores("bert-base-uncased", "demo") == {}


# --- candidates ---


def test_the_grammar_holds_thousands_of_templates_and_each_is_one():
    everything, published = (
        template_search.grammar_templates(),
        template_search.published_templates(),
    )
    assert len(everything) == len(set(everything)) > 3000
    for text in everything:
        check_template(text)
    assert all("[MASK]" in text for text in everything)
    assert all("  " not in text and "<" not in text for text in everything)
    drawn = template_search.draw(everything, 100, 1, published)
    assert len(set(drawn)) == 100 and drawn[:8] == published
    assert drawn == template_search.draw(everything, 100, 1, published)
    assert template_search.draw(["a", "b"], 5, 1) == ["a", "b"]


def test_a_file_of_candidates_has_one_template_a_line(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text('[X] [MASK] .\n\n "[X]" is [MASK] \n[X] [MASK] .\n')
    assert template_search.read_candidates(path) == ["[X] [MASK] .", '"[X]" is [MASK]']
    with refusal("cannot be opened", NotFoundError):
        template_search.read_candidates(tmp_path / "nowhere.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (b"[X] [MASK]\n[X] is\n", "candidate 2: template '[X] is' has no [MASK]"),
        (b"[MASK]\n", "has no [X]"),
        (b"[X]\x00[MASK]\n", "line 1"),
    ],
)
def test_a_file_that_holds_no_templates_is_refused(content, message, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UsageError) as error:
        template_search.read_candidates(tmp_path / "a.txt")
    assert message in str(error.value) and "\n" not in str(error.value)


# --- the command ---


@pytest.fixture(name="search")
def search_command(monkeypatch, bert_folder, run):
    """Return a function that runs the command on a tiny backbone."""
    return lambda *arguments: run(
        "search-templates", "--backbone", bert_folder, "--offline", *arguments
    )


def test_greedy_command_saves_a_model_that_eval_scores_equally(search, run, home):
    ran = search("--json", "--name", "template")
    assert ran.code == 0, ran.err
    assert "choosing on demo:dev; the papers used" in ran.err
    found = ran.json
    rows = found["ranked"]
    assert {row["stage"] for row in rows} == {"relation", "prefix"} and len(rows) == 8
    best = rows[0]
    assert (
        best["value"] == max(row["value"] for row in rows)
        and best["ci95"][0] <= best["value"] <= best["ci95"][1]
    )
    assert (found["task"], found["model"]) == ("demo:dev", "template")
    (scored,) = run("eval", "--model", "template", "--task", "demo:dev", "--json").json["results"]
    assert (scored["value"], scored["ci95"]) == (best["value"], best["ci95"])
    before = sorted((home / "cache" / "search").iterdir())
    ran = search("--force", "-q", "--name", "template")
    assert (
        ran.code == 0 and ran.err == "" and sorted((home / "cache" / "search").iterdir()) == before
    )
    assert re.search(rf" \* +{best['value']:.2f} +±", ran.out)


def test_free_command_races_the_templates_of_a_file(search, home, tmp_path):
    sentences = SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:101]
    pairs = write_graded_pairs(tmp_path / "pairs.tsv", sentences)
    file = tmp_path / "candidates.txt"
    words = [(word, verb) for word in ("", "the", "this", "a") for verb in ("is", "means", ":")]
    file.write_text("\n".join(f"{word} [X] {verb} [MASK] ." for word, verb in words))
    ran = search("--on", pairs, "--candidates", file, "--top", 3, "--name", "free")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert "Free search" in lines
    race = r"12 templates were scored on [\d,]+ pairs; \d+ finalists on all 100 pairs"
    assert any(re.fullmatch(race, line) for line in lines)
    assert len([line for line in lines if "[MASK]" in line]) == 3
    assert (home / "models" / "free").is_dir()


def test_published_figures_stand_next_to_measured_ones_of_the_same_protocol(capsys, task):
    rows = [
        ScoredChoice("[X] [MASK] .", 39.0, (36.0, 42.0)),
        ScoredChoice("[X] says [MASK] .", 40.0, (36.0, 42.0)),
    ]
    search = SimpleNamespace(
        recipe=PROTOCOL.replace(backbone="google-bert/bert-base-uncased"),
        task=STSTask("STS-B", "dev", "senteval", "raw", task.subsets),
        stages={"Relations": rows},
        compared_in_words="two",
        ranked=rows,
        best=rows[1],
        baselines={},
        better_baseline=None,
    )
    print_templates(search)
    lines = [line.split()[-3:] for line in capsys.readouterr().out.splitlines() if "[MASK]" in line]
    assert lines == [["39.00", "±3.00", "39.34"], ["40.00", "±3.00", "-"]]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--mode", "gredy"],
            2,
            "unknown mode 'gredy'; valid: greedy, free, demonstrations; did you mean greedy",
        ),
        (["--t5", "nowhere", "--candidates", __file__], 2, "--candidates: excludes t5"),
    ],
)
def test_wrong_options_of_the_search_are_refused(arguments, code, message, search):
    ran = search(*arguments, "-q")
    assert (ran.code, ran.out) == (code, "") and message in ran.err and ran.err.count("\n") == 1


def test_the_search_is_a_function(tiny_backbone, task, notes):
    backbone = tiny_backbone("bert")
    encoder = TorchEncoder(Recipe(backbone=backbone.name), backbone, {})
    found = pc.search_templates(encoder, task, mode="free", limit=20, top=4)
    assert (
        found.settings["mode"] == "free"
        and len(found.ranked) == 4
        and found.best == found.ranked[0]
    )
    assert found.recipe == found.entry("mine").recipe and found.recipe.prompt == found.best.choice
    assert (
        f"20 of the {len(template_search.grammar_templates()):,} templates of the grammar"
        in notes.text
    )
    with refusal("at least 2") as error:
        pc.search_templates(encoder, task, beam=1)
    assert error.value.parameter == "beam"


# --- demonstrations, as PromptEOL writes them, raced against none ---

PLAIN = 'This sentence : "[X]" means in one word:"'
DEMONSTRATIONS = 'rain\twater that falls\ncat\ta small animal\nwalk\tWho is "walking" here?\n'


def test_an_example_is_written_as_the_papers():
    pairs = [
        ("Smoking", "A man is smoking."),
        ("venison", "meat from a deer"),
        ("why", 'Who said "no"?'),
    ]
    assert demonstrations([*pairs, pairs[0]], RECIPES["prompteol"]) == [
        f'This sentence : "A man is smoking." means in one word:"Smoking".{PLAIN}',
        f'This sentence : "meat from a deer." means in one word:"Venison".{PLAIN}',
        f'This sentence : "Who said \'no\'." means in one word:"Why".{PLAIN}',
    ]
    with refusal(r"has \[X\]"):
        demonstrations([("slot", "this [X] here")], RECIPES["prompteol"])


def test_every_example_and_none_have_their_own_figures(tiny_backbone, tmp_path, notes):
    file = tmp_path / "pairs.tsv"
    file.write_text(f"word\tdefinition\n{DEMONSTRATIONS}")
    backbone = tiny_backbone("llama")
    encoder = TorchEncoder(pc.Recipe(backbone=backbone.name), backbone, {})
    search = functools.partial(pc.search_templates, encoder, EVERY_PAIR, mode="demonstrations")
    found = search(pairs=file, top=4)
    pairs = [tuple(line.split("\t")) for line in DEMONSTRATIONS.splitlines()]
    assert {row.choice for row in found.ranked} == {
        PLAIN,
        *demonstrations(pairs, RECIPES["prompteol"]),
    }
    for row in found.ranked:
        recipe = RECIPES["prompteol"].replace(prompt=row.choice)
        score = score_encoders([build_encoder(recipe, backbone=backbone)], [EVERY_PAIR])[0]
        assert row.value == pytest.approx(score.value, abs=1e-3)
    assert found.recipe.pooling == "last/last-token" and found.recipe.text_rule == "prompteol"
    one = search(limit=1)
    assert len(one.ranked) == 2 and PLAIN in {row.choice for row in one.ranked}
    assert "using the 235 shipped words and definitions" in notes
