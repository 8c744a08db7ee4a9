"""``promptcli judge``: shows hits without the names of their models; a key grades a hit."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from promptcli.cli import console, options
from promptcli.cli.hits import cut_line
from promptcli.cli.visible import escape_controls
from promptcli.errors import UsageError, if_stopped, with_count
from promptcli.plugins.judge.judgements import GRADES

if TYPE_CHECKING:
    from promptcli.plugins.judge.judging import Judging, Standing

_GRADES_BY_KEY = {name[0]: grade for name, grade in GRADES.items()}
_PROMPT = f"{', '.join(f'{name[0]} {name}' for name in GRADES)}, u undo, s stop: "
_MAX_ESTIMATE = 1000  # a higher estimate of missing questions is not shown


def judge(
    queries: Annotated[
        str,
        typer.Argument(
            metavar="QUERIES", help="Your questions: a text with one on each line, or a table."
        ),
    ],
    folder: Annotated[str, typer.Argument(metavar="INDEX", help="Index of your texts.")],
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model that ranks by meaning; repeatable. Its vectors are"
            " computed from the texts of the index.",
        ),
    ] = None,
    ways: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            help="Ranking by the index itself: words, meaning or both; repeatable. Default: all"
            " three if no model is named.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the judgements.")
    ] = Path("judged"),
    k: Annotated[
        int, typer.Option("-k", min=1, max=100, help="Hits of each ranking to judge.")
    ] = 5,
    seed: Annotated[int, typer.Option(help="Random seed of the order of hits.")] = 0,
    template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Table to fill in instead of pressing keys: it is written first, then read back.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Judge the hits of several models and rankings, with one key for a hit, and see which of them
    answers your questions better.

    The hits are mixed, and the names of the models are not shown. The same command continues where
    it stopped; no hit is asked twice. The output folder is a retrieval set for `eval --task
    retrieval:DIR`.
    """
    from promptcli.plugins.judge.judging import open_judging
    from promptcli.retrieval.sentence_index import SentenceIndex
    from promptcli.storage.files import check_output

    if template is not None:
        check_output(template, force=True, parameter="template")
    if not ways and not models:
        ways = ["words", "meaning", "both"]
    choices = {name: options.choice_of(name) for name in models or ()}
    index = SentenceIndex.open(folder)
    judging = open_judging(queries, index, output, choices, ways or (), k=k, seed=seed)
    if template is not None:
        if template.exists():
            judging.judgements.read_template(template, judging.pairs)
            judging.write()
        new_rows = judging.judgements.write_template(template, judging.open_pairs)
        if new_rows:
            console.say(
                f"write {', '.join(GRADES)} into the first column of {template}"
                f" ({with_count(new_rows, 'new row')}), and type the same command again"
            )
            return
    elif judging.open_pairs:
        if not sys.stdin.isatty() or not console.err.is_terminal:
            raise UsageError("keys need a terminal; `--template out.tsv` writes a table to fill in")
        with if_stopped("judgements are kept; the same command continues"):
            _ask(judging)
    _show(judging, as_json=json)


def _ask(judging: "Judging") -> None:
    """Show hits, and store the grades, until all are judged or the user stops."""
    while open_pairs := judging.open_pairs:
        query, text = open_pairs[0]
        pool = judging.pools[query]
        open_hits = sum(pair[0] == query for pair in open_pairs)
        question = f"question {[*judging.queries].index(query) + 1} of {len(judging.queries)}"
        console.err.print()
        console.say(f"{question}, hit {len(pool) - open_hits + 1} of {len(pool)}: {query}")
        line = Text(escape_controls(cut_line(" ".join(text.split()))))
        console.err.print(Padding(line, (0, 0, 0, 4)), soft_wrap=False)
        key = _wait_for_key()
        if key == "s":
            break
        if key == "u":
            judging.judgements.undo()
            continue
        judging.judgements.add((query, text), _GRADES_BY_KEY[key])
        if open_hits == 1:
            judging.write()
            _say_standings(judging)
    judging.write()


def _wait_for_key() -> str:
    console.err.print(_PROMPT, end="")
    while True:
        try:
            key = typer.getchar().lower()
        except EOFError:
            key = "s"
        if key in (*_GRADES_BY_KEY, "u", "s"):
            console.err.print(key)
            return key


def _say_standings(judging: "Judging") -> None:
    """Say how far the best ranking is ahead of each of the others."""
    questions = with_count(len(judging.judged_queries), "question")
    best, *others = judging.standings()
    for other in others:
        low, high = (-bound for bound in other.to_best_ci95[::-1])
        lead = f"{best.way} is {-other.to_best:.1f} points ahead of {other.way}"
        if not round(other.to_best, 1):
            lead = f"{best.way} and {other.way} are level"
        console.say(f"{questions}: {lead} ({low:z.1f} to {high:z.1f}), {_verdict(other)}")


def _verdict(standing: "Standing") -> str:
    if standing.more is None:
        return "no difference so far"
    if not standing.more:
        return "worse"
    if standing.more > _MAX_ESTIMATE:
        return f"open: over {_MAX_ESTIMATE:,} more questions"
    return f"open: about {standing.more} more questions"


def _show(judging: "Judging", *, as_json: bool) -> None:
    """Print the rankings, best first."""
    standings = judging.standings()
    queries = len(judging.judged_queries)
    open_hits = len(judging.open_pairs)
    if as_json:
        ways = list(map(asdict, standings))
        console.print_json({"queries": queries, "left": open_hits, "ways": ways})
        return
    rows: list[list[str]] = []
    for standing in standings:
        row = [standing.way, f"{standing.ndcg:.1f}", console.half_interval(standing.ci95, 1)]
        if rows:
            row += [f"{standing.to_best:+z.1f}", console.half_interval(standing.to_best_ci95, 1)]
            row.append(_verdict(standing))
        else:
            row += ["", "", "best"]
        rows.append(row)
    if rows:
        headers = ("way", f"nDCG@{judging.k}", "", "to the best", "", "verdict")
        console.print_table(headers, rows)
    counts = f"{with_count(queries, 'question')} judged, {with_count(open_hits, 'hit')} left"
    console.note(counts)
