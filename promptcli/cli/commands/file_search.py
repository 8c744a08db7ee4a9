"""The command ``search``, which searches files without an index.

It imports nothing of an index (FAISS, Arrow's functions): it answers at once.
"""

import re
from dataclasses import asdict

from promptcli.cli import console
from promptcli.cli.options import Json
from promptcli.index.file_search import Line, SearchFilesJob
from promptcli.index.options import reaches

_BELOW_ONE = 0.9999
#: Breaks of lines and pages, and tabs.
_BREAKS = re.compile("[\t-\r\x85\u2028\u2029]")
_LONGEST = 1000  # characters of a text that are printed; `--json` prints all


def search_files(job: SearchFilesJob, json: Json = False) -> None:
    lines = job.run()
    for line in lines:
        if json:
            console.result_json({**asdict(line), "score": round(line.score, 6)})
        else:
            _print_line(line)
            if job.context:
                console.result("")
    if not lines:
        console.note(nothing_found(job.query, job.min_score, job.where))


def _print_line(line: Line) -> None:
    """Print a line that was found between those around it, as grep does."""
    for number, text in enumerate(line.before, line.line - len(line.before)):
        console.result(f"        {line.file}-{number}- {one_line(text)}")
    place = f"{line.file}:{line.line}"
    if line.end_line != line.line:
        place += f"-{line.end_line}"
    text = f"{line.heading}: {line.text}" if line.heading else line.text
    console.result(f"{score_text(line.score)}  {place}: {one_line(text)}")
    for number, text in enumerate(line.after, line.end_line + 1):
        console.result(f"        {line.file}-{number}- {one_line(text)}")


def nothing_found(query: str, least: float | None, where: str | None) -> str:
    """Return why a search has no hit: only its conditions can leave out every row."""
    if least is not None:
        reason = f"no row scores at least {least} for {query!r}"
        return reason if where is None else f"{reason} among those that meet the condition"
    if where is not None:
        return "no row meets the condition"
    return f"no row matches {query!r}"


def score_text(score: float) -> str:
    """Return a score with four decimals; only that of an exact copy is 1.0000."""
    if not reaches(score, 1):
        score = min(score, _BELOW_ONE)
    return f"{score:.4f}"


def one_line(text: str) -> str:
    """Return a text on one line, cut to what a screen holds."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return _BREAKS.sub(" ", text)
