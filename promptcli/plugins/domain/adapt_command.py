"""``promptcli adapt``: a model that has learned from texts, and the table that says whether it is
better.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from promptcli.cli.console import result, result_json, result_table
from promptcli.cli.options import Json
from promptcli.notes import note
from promptcli.plugins.domain.adapt_job import AdaptJob
from promptcli.plugins.domain.command import half

_HEADS = ("row", "your texts", "change", "verdict")
_HEADS_ELSEWHERE = ("demo pairs", "change", "guides", "change")


def adapt(job: AdaptJob, json: Json = False) -> None:
    document = job.run().document
    if json:
        result_json(document)
        return
    if job.dry_run:
        _show_plan(document)
        return
    rows = []
    for row in document["rows"]:
        name, own, change, *elsewhere = _cells(row)
        rows.append([name, own, change, row["verdict"], *elsewhere])
    rows += [[name, "-", "", "left out", *[""] * 4] for name in document["left_out"]]
    result_table([*_HEADS, *_HEADS_ELSEWHERE], rows)
    for line in _how_to_read(document):
        note(line)
    result(document["reason"])
    for line in _next(document):
        result(line)


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row's name, and each score with its change."""
    yield row["row"]
    changes = row.get("changes") or [None] * len(row["scores"])
    for score, change in zip(row["scores"], changes, strict=True):
        yield f"{score['value']:.1f}"
        if change is None:
            yield ""
        else:
            yield f"{change['value']:+.1f} {half(change['ci95'])}"


def _how_to_read(document: Mapping[str, Any]) -> Iterator[str]:
    for name, reason in document["left_out"].items():
        yield f"{name} was left out: {reason}"
    count = document["queries"]["test"]
    yield (
        f"your texts: how far up the right passage comes for {count:,} queries made from"
        " documents that were not learned from; 100: always first (nDCG@10)"
    )
    yield (
        "demo pairs and guides: the same model on texts of others, graded pairs (Spearman x 100)"
        " and questions (nDCG@10); a large loss there means that it forgot"
    )
    yield (
        "change: against the model as it is; one smaller than its ± may be chance. So may one"
        " slightly larger, since several were tried, and the verdict counts that. dcpcse begins at"
        " the pre-trained backbone, as in its paper, and so lacks what the model had learned"
    )


def _next(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to type now."""
    model = document["saved"] or document["start"]
    files = " ".join(map(shlex.quote, document["files"]))
    search = f'promptcli search "your question" {files} -m {shlex.quote(model)}'
    if document["saved"] is None:
        yield f"nothing saved; go on with {model}: {search}"
        return
    yield f"saved as model {model!r}; use it: {search}"
    yield f"or keep an index of these files: promptcli index sync {model}.index {files} -m {model}"


def _show_plan(document: Mapping[str, Any]) -> None:
    rows = [
        [row["row"], row["learns_from"], f"{row['steps']:,}", f"{row['minutes']:.1f}"]
        for row in document["rows"]
    ]
    result_table(["row", "learned from", "steps at most", "minutes"], rows)
    result(f"at most about {document['hours']:.2f} hours; nothing was trained or saved")
