"""``promptcli choose``: a table of models and rankings, and the advice that follows from it."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from promptcli.cli import options, result_files
from promptcli.cli.grids import Grid
from promptcli.cli.options import Json
from promptcli.notes import note
from promptcli.plugins.domain.job import ChooseJob, Chosen

if TYPE_CHECKING:
    from promptcli.plugins.domain.comparison import Way

#: The environment variable of an endpoint's key.
KEY = "OPENAI_API_KEY"
_HEADS = ("model", "by", "nDCG@10", "", "to the best", "", "verdict", "sentences/s", "MB")
_HEADS_WITHOUT_INTERVALS = ("model", "by", "nDCG@10", "to the best", "verdict", *_HEADS[-2:])
#: Times as fast from which speed is worth a word.
_FASTER = 2
_CAPTION = (
    "nDCG@10: 100 if the right passage always comes first, 0 if it is never among the first ten."
    " Low figures are usual, since one passage counts where others would do: only the order of the"
    " rows tells. ±: how far other such queries would move a figure (half of the 95% interval)"
)


def choose(
    job: ChooseJob,
    formats: result_files.FormatOptions,
    json: Json = False,
) -> None:
    format = formats.name(json=json)
    key = os.environ.get(KEY) or None
    chosen = replace(job, key=key, computed=options.choice_of(None)).run()
    files = [str(name) for name in job.files]
    advice = list(_advice(chosen, files))
    report = result_files.Report(
        _document(chosen, advice), [_grid(chosen, formats), _CAPTION], [*_records(chosen)]
    )
    result_files.print_report(report, format)
    for line in advice:
        note(line)


def _grid(chosen: Chosen, formats: result_files.FormatOptions) -> Grid:
    names = _names(chosen)
    rows = []
    for way in chosen.ways:
        cells = [names[way.model], way.by, f"{way.ndcg:.1f}", half(way.ci95)]
        if way.to_best is None:
            cells += ["", "", "best"]
        else:
            verdict = "within chance" if way.to_best.is_chance else "worse"
            cells += [f"{way.to_best.value:+.1f}", half(way.to_best.ci95), verdict]
        cells += [_number(way.sentences_per_second), _number(way.megabytes)]
        if not formats.intervals:
            del cells[5], cells[3]
        rows.append(cells)
    heads = _HEADS if formats.intervals else _HEADS_WITHOUT_INTERVALS
    return Grid.with_best(heads, rows, [2], range(len(rows)))


def half(interval: Sequence[float]) -> str:
    """Return half the width of an interval of nDCG@10 x 100, as tables show it."""
    low, high = interval
    return f"±{(high - low) / 2:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _names(chosen: Chosen) -> dict[str | None, str]:
    """Return short names of models: of a folder, a hub id or an endpoint the end, if no other model
    has it.
    """
    short = dict[str | None, str]()
    for way in chosen.ways:
        if way.model is not None:
            short[way.model] = way.model.rstrip("/").rpartition("#")[2].rpartition("/")[2]
    counts = Counter(short.values())
    names = {model: end if counts[end] == 1 else str(model) for model, end in short.items()}
    return {None: "-", **names}


def _records(chosen: Chosen) -> Iterator[dict[str, Any]]:
    for way in chosen.ways:
        difference = way.to_best
        yield {
            "model": way.model,
            "by": way.by,
            "ndcg_at_10": round(way.ndcg, 4),
            "ci95_low": round(way.ci95[0], 4),
            "ci95_high": round(way.ci95[1], 4),
            "to_best": None if difference is None else round(difference.value, 4),
            "to_best_low": None if difference is None else round(difference.ci95[0], 4),
            "to_best_high": None if difference is None else round(difference.ci95[1], 4),
            "within_chance": way.is_as_good,
            "sentences_per_second": _rounded(way.sentences_per_second),
            "megabytes": _rounded(way.megabytes),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _document(chosen: Chosen, advice: Sequence[str]) -> dict[str, Any]:
    made = chosen.queries
    return {
        "ways": [*_records(chosen)],
        "queries": {
            "made": len(made.queries),
            "kinds": made.kinds,
            "possible": made.all_queries,
            "passages": len(made.passages),
            "all_passages": made.all_passages,
            "files": made.files,
        },
        "advice": advice,
    }


def _advice(chosen: Chosen, files: Sequence[str]) -> Iterator[str]:
    """Yield what a reader should do, in plain sentences."""
    names = _names(chosen)
    best = _words(chosen.best, names)
    usable = chosen.best_here
    if usable is not chosen.best:
        yield f"best is {best}, an endpoint, with which promptcli does not search"
    yield f"take {_words(usable, names)}: {_command(usable, files)}"
    as_good = [way for way in chosen.ways[1:] if way.is_as_good]
    if as_good:
        others = ", ".join(_words(way, names) for way in as_good)
        yield f"within chance of {best}: these queries do not tell it from {others}"
    else:
        yield f"{best}: better than every other row beyond chance"
    faster = [way for way in as_good if way.speed > _FASTER * usable.speed]
    if faster:
        fastest = max(faster, key=lambda way: way.speed)
        yield f"if it is too slow, take {_words(fastest, names)}: {_command(fastest, files)}"
    yield (
        "the queries were made from the texts, and people ask in other words: try some questions of"
        " your own before you decide"
    )


def _words(way: "Way", names: Mapping[str | None, str]) -> str:
    """Return a way as a sentence names it."""
    if way.model is None:
        return "words alone"
    ranked = {"meaning": "meaning", "both": "meaning and words"}[way.by]
    return f"{names[way.model]} by {ranked}"


def _command(way: "Way", files: Sequence[str]) -> str:
    """Return the command of a search that ranks in this way."""
    model = [] if way.model is None else ["-m", way.model]
    words = [*map(shlex.quote, files), *map(shlex.quote, model), "--by", way.by]
    return f"promptcli search QUERY {' '.join(words)}"
