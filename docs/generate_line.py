"""Write docs/line.md: the line's published figures, and our own of every learning-free recipe.

The published rows are in the package's ``line.toml``; ours are in ``results/line``, which
``promptcli reproduce line --backbone MODEL`` writes.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("line.md")
RESULTS = Path(__file__).parents[1] / "results" / "line"

HEAD = """# The line in one table

This page has the figures that the papers of this line print. `promptcli reproduce line --backbone
MODEL` measures every method without training on a model. A figure is Spearman's correlation x 100
on one of the seven STS tasks, with all subsets of a year together. `make docs` writes the page
from the package's data.

- **from**: *own* is a row of the method's authors; *quoted* is a row of another paper, which the
  source prints.
- **learned from**: *Wikipedia* means SimCSE's one million Wikipedia sentences. A dash means that
  the source does not say.
- **here**: the command, after `promptcli`, if promptcli has the method.

## What cannot be compared

- Hierarchical Token Prepending: its script casts the gold scores to integers.
- TNCSE and JTCSE saw the sentences of SICK-R in training, and ConSERT those of all STS sets.
- RankEncoder's score is not a cosine: it mixes in a correlation of two rankings.
- DySem does not make one vector for each sentence: it chooses dimensions for each pair.
- MTEB averages the subsets of a year, and takes all pairs of SICK-R.
- Most trained rows have one seed. SimCSE's score is 76.25; the mean of ten seeds is 75.42
  (PromptBERT, table 10).
"""

_BASE = ("bert-base-uncased", "glove")
#: Title, the rows' group, and whether they are of BERT-base; None: of any model.
SECTIONS = (
    ("Unsupervised, BERT-base", "unsupervised", True),
    ("Supervised, BERT-base", "supervised", True),
    ("Training-free, causal models", "training-free", None),
    ("Unsupervised, other models", "unsupervised", False),
    ("Supervised, other models", "supervised", False),
)
OURS = """## Ours

`promptcli reproduce line --backbone MODEL --data-dir FOLDER` measures every recipe without training
on a model. STS15 and STS16 are missing, so a mean here is over five tasks and cannot be compared
with the means above. ± is half of the 95% bootstrap interval. The last column is the difference of
the means to `last-avg`, with the 95% interval of the differences on the same pairs. The best mean
of a model is bold. Ditto needs a head: if none is published, `ditto-search` chose it on
development pairs of STS-B.

all-MiniLM-L6-v2 and all-mpnet-base-v2 are sentence encoders, trained for the mean of the last
layer, which gives it a lead over every other reading. If a heading has a number of pairs, the
figures are for a sample of each set, the same for every recipe:
`python benchmarks/sts_sample.py DATA FOLDER --pairs N`. [Real models](real-models.md) has the
recipes of causal models.
"""


def page() -> str:
    """Return the page."""
    with (files("promptcli.plugins.papers") / "line.toml").open("rb") as file:
        facts = tomllib.load(file)
    parts = [HEAD]
    for title, group, is_base in SECTIONS:
        rows = []
        for row in facts["rows"]:
            if row["group"] == group and is_base in (None, row["backbone"] in _BASE):
                rows.append(row)
        lines = _published(rows, facts["tasks"], model=not is_base)
        parts.append(f"## {title}\n")
        parts.append("\n".join(lines) + "\n")
    kept = sorted(RESULTS.glob("*.json"))
    if kept:
        parts.append(OURS)
    for path in kept:
        parts.append("\n".join(_measured(json.loads(path.read_text(encoding="utf-8")))) + "\n")
    return "\n".join(parts)


def _published(
    rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], *, model: bool
) -> Iterator[str]:
    yield _row(
        ["method", *["model"] * model, *tasks, "mean", "from", "learned from", "here", "source"]
    )
    yield _row(["---"] * (1 + model + len(tasks) + 5))
    for row in sorted(rows, key=lambda row: (row["backbone"] if model else "", row["mean"])):
        scores = [f"{score:.2f}" for score in row.get("scores", ())] or [""] * len(tasks)
        method = row["method"]
        if "learning" in row:
            method += f", {row['learning']}"
        if "note" in row:
            method += f" ({row['note']})"
        command = row.get("command", "")
        yield _row(
            [
                method,
                *[row["backbone"]] * model,
                *scores,
                f"{row['mean']:.2f}",
                "quoted" if row.get("quoted") else "own",
                row.get("texts", "-"),
                f"`{command}`" if command else "-",
                row["source"],
            ]
        )


def _measured(document: Mapping[str, Any]) -> Iterator[str]:
    tasks = [name for name in document["columns"] if name in document["data"]]
    yield f"### {document['backbone']['name']}{_sample_of(document['data'])}\n"
    yield f"    {_command_of(document)}\n"
    yield _row(["recipe", *tasks, "mean", "- `last-avg`"])
    yield _row(["---"] * (len(tasks) + 3))
    measured = [row for row in document["rows"] if "Avg" in row["figures"]]
    best = max(row["figures"]["Avg"]["value"] for row in measured)
    for row in measured:
        figures = row["figures"]
        mean = _with_half(figures["Avg"])
        if figures["Avg"]["value"] == best:
            mean = f"**{mean}**"
        name = f"`{row['method']}`"
        if row["head"]:
            name += f", head {row['head']}"
        gain = ""
        if "gain" in figures:
            low, high = figures["gain"]["ci95"]
            gain = f"{figures['gain']['value']:+.2f} ({low:+.2f} to {high:+.2f})"
        yield _row([name, *(_with_half(figures[task]) for task in tasks), mean, gain])


def _sample_of(data: Mapping[str, Any]) -> str:
    """Return the number of pairs of each set, if they are a sample; else nothing."""
    sizes = sorted({facts["pairs"] for facts in data.values() if "pairs" in facts})
    is_whole = all(facts.get("pairs") == facts.get("expected_pairs") for facts in data.values())
    return "" if is_whole else f": {' to '.join(map(str, sizes))} pairs of each set"


def _command_of(document: Mapping[str, Any]) -> str:
    """Return the command that measured a document."""
    backbone = document["backbone"]
    name = backbone["name"]
    if backbone["family"] == "glove":
        name = f"glove:{name}"
    heads = {row["head"] for row in document["rows"] if row["head"]}
    head = "".join(f" --head {head}" for head in sorted(heads))
    if backbone["published"]:
        head = ""  # which is known
    return f"promptcli reproduce {document['table']} --backbone {name}{head} --data-dir FOLDER"


def _with_half(cell: Mapping[str, Any]) -> str:
    low, high = cell["ci95"]
    return f"{cell['value']:.2f} ±{(high - low) / 2:.1f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
