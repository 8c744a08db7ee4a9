"""``promptcli judge``: hits are shown without the names of their models, and a key grades each."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from promptcli.cli import console, options
from promptcli.cli.hits import one_line
from promptcli.cli.visible import visible
from promptcli.errors import UsageError, if_stopped, with_count
from promptcli.plugins.judge.judgements import GRADES

if TYPE_CHECKING:
    from promptcli.plugins.judge.judging import Judging, Standing

_KEYS = {name[0]: grade for name, grade in GRADES.items()}
_PROMPT = f"{', '.join(f'{name[0]} {name}' for name in GRADES)}, u undo, s stop: "
_MOST = 1000  #: higher estimates of missing questions are not shown


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
    """Judge the hits of several models and rankings with one key each, and see which answers your
    questions better.

    Hits are mixed and shown without names. The same command continues where it stopped, and asks
    nothing twice. The output folder is a retrieval set for `eval --task retrieval:DIR`.
    """
    from promptcli.plugins.judge.judging import open_judging
    from promptcli.retrieval.sentence_index import SentenceIndex
    from promptcli.storage.files import check_output

    named = {name: options.choice_of(name) for name in models or ()}
    if template is not None:
        check_output(template, force=True, parameter="template")
    usual = () if models else ("words", "meaning", "both")
    judging = open_judging(
        queries, SentenceIndex.open(folder), output, named, ways or usual, k=k, seed=seed
    )
    if template is not None:
        if template.exists():
            judging.judgements.read_template(template, judging.pairs)
            judging.write()
        if new := judging.judgements.write_template(template, judging.open_pairs):
            console.say(
                f"write {', '.join(GRADES)} into the first column of {template}"
                f" ({with_count(new, 'new row')}), and type the same command again"
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
    while left := judging.open_pairs:
        query, text = left[0]
        pool = judging.pools[query]
        open_hits = sum(pair[0] == query for pair in left)
        about = f"question {[*judging.queries].index(query) + 1} of {len(judging.queries)}"
        console.err.print()
        console.say(f"{about}, hit {len(pool) - open_hits + 1} of {len(pool)}: {query}")
        shown = Text(visible(one_line(" ".join(text.split()))))
        console.err.print(Padding(shown, (0, 0, 0, 4)), soft_wrap=False)
        key = _key()
        if key == "s":
            break
        if key == "u":
            judging.judgements.undo()
            continue
        judging.judgements.add((query, text), _KEYS[key])
        if open_hits == 1:
            judging.write()
            best, *others = judging.standings()
            for other in others:
                console.say(_so_far(best, other, len(judging.judged_queries)))
    judging.write()


def _key() -> str:
    console.err.print(_PROMPT, end="")
    while True:
        try:
            key = typer.getchar().lower()
        except EOFError:
            key = "s"
        if key in (*_KEYS, "u", "s"):
            console.err.print(key)
            return key


def _so_far(best: "Standing", other: "Standing", queries: int) -> str:
    low, high = (-bound for bound in other.to_best_ci95[::-1])
    ahead = f"{best.way} is {-other.to_best:.1f} points ahead of {other.way}"
    if not round(other.to_best, 1):
        ahead = f"{best.way} and {other.way} are level"
    verdict = _verdict(other)
    return f"{with_count(queries, 'question')}: {ahead} ({low:z.1f} to {high:z.1f}), {verdict}"


def _verdict(standing: "Standing") -> str:
    if standing.more is None:
        return "no difference so far"
    if not standing.more:
        return "worse"
    number = f"about {standing.more}" if standing.more <= _MOST else f"over {_MOST:,}"
    return f"open: {number} more questions"


def _show(judging: "Judging", *, as_json: bool) -> None:
    """Print the ways, best first."""
    standings = judging.standings()
    if as_json:
        about = {"queries": len(judging.judged_queries), "left": len(judging.open_pairs)}
        console.result_json({**about, "ways": list(map(vars, standings))})
        return
    rows = []
    for number, each in enumerate(standings):
        cells = [each.way, f"{each.ndcg:.1f}", console.half_interval(each.ci95, 1)]
        if number:
            rows.append(
                [
                    *cells,
                    f"{each.to_best:+z.1f}",
                    console.half_interval(each.to_best_ci95, 1),
                    _verdict(each),
                ]
            )
        else:
            rows.append([*cells, "", "", "best"])
    if rows:
        console.result_table(("way", f"nDCG@{judging.k}", "", "to the best", "", "verdict"), rows)
    left = with_count(len(judging.open_pairs), "hit")
    console.note(f"{with_count(len(judging.judged_queries), 'question')} judged, {left} left")
