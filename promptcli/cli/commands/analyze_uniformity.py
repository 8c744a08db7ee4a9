"""``promptcli analyze uniformity``: alignment and uniformity of several recipes on graded pairs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.commands.compared import ComparedChoice, open_compared
from promptcli.cli.console import note, progress, result_json, result_table
from promptcli.cli.opening import configure_libraries, data_folder
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.plots import Picture, draw_points
from promptcli.errors import NotFoundError, unknown

if TYPE_CHECKING:
    from promptcli.analysis.uniformity import Uniformity
    from promptcli.data.tasks import STSTask

#: Splits of graded pairs by task.
_SPLITS = {"STS-B": ("train", "dev", "test"), "demo": ("dev", "test")}


def uniformity(
    split: Annotated[
        list[str] | None,
        typer.Option(help="train, dev, test; repeatable. Default: all that there are.", show_default=False),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="SentEval folder of STS-B. Without it: demo, pairs of our own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    *,
    picture: Picture,
    choice: ComparedChoice,
    runtime: Runtime,
) -> None:
    """Print alignment and uniformity of unit vectors, both better when lower (Ditto, figure 4).

    Alignment: mean squared distance of pairs graded above 4. Uniformity: logarithm of the mean of exp(-2 distance^2)
    over all pairs of sentences. Default: all of STS-B, both sides (with --paper from the hub), else the demo pairs.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.uniformity import POSITIVE, measure
    from promptcli.evaluation.evaluator import distinct_sentences

    tasks = _tasks(split, data_folder(data_dir), runtime, paper=choice.paper)
    compared = open_compared(choice, runtime)
    count = sum(2 * len(task.pairs()) for task in tasks)
    with progress("uniformity", count, quiet=runtime.quiet) as advance:
        found = measure(compared.encoders, tasks, progress=advance)
    if picture.plot is not None:
        draw_uniformity(picture.plot, dict(zip(compared.names, found, strict=True)), tasks)
        picture.drawn(quiet=runtime.quiet)
    if json:
        rows = [
            {"model": label.model, "recipe": label.recipe, **_figures(one)}
            for label, one in zip(compared.labels, found, strict=True)
        ]
        about = {"tasks": [task.label for task in tasks], "text": tasks[0].text, "positive_above": POSITIVE}
        result_json({**about, "data_sha256": [task.sha256() for task in tasks], "results": rows})
        return
    note(
        f"{', '.join(task.label for task in tasks)}, {tasks[0].text}; {count:,} sentences"
        f" ({len(distinct_sentences(tasks)):,} distinct), {found[0].positives:,} pairs graded above {POSITIVE:g}",
        quiet=runtime.quiet,
    )
    cells = [
        (name, f"{one.alignment:>9.4f}", f"{one.uniformity:>10.4f}")
        for name, one in zip(compared.names, found, strict=True)
    ]
    result_table(("", "alignment", "uniformity"), cells)


def draw_uniformity(path: Path, found: Mapping[str, "Uniformity"], tasks: Sequence["STSTask"]) -> None:
    """Draw each encoder as a point."""
    points = {name: (one.uniformity, one.alignment) for name, one in found.items()}
    on = "Alignment and uniformity on " + " + ".join(task.label for task in tasks)
    draw_points(path, points, ("uniformity (lower is better)", "alignment (lower is better)"), on)


def _figures(found: "Uniformity") -> dict[str, Any]:
    shown = {"alignment": round(found.alignment, 6), "uniformity": round(found.uniformity, 6)}
    return {**shown, "positives": found.positives, "sentences": found.sentences}


def _tasks(split: list[str] | None, data_dir: Path | None, runtime: Runtime, *, paper: bool) -> "list[STSTask]":
    from promptcli.data.task_table import TaskName
    from promptcli.data.tasks import load_tasks

    name = "STS-B" if paper or data_dir is not None else "demo"
    if name == "demo":
        note("assumed: our own demo pairs, no benchmark; STS-B: --data-dir FOLDER, or --paper", quiet=runtime.quiet)
    for given in split or ():
        if given not in _SPLITS[name]:
            raise unknown(f"split of {name}", given, _SPLITS[name])
    wanted = [TaskName(name, one) for one in _SPLITS[name] if one in (split or _SPLITS[name])]
    loaded = load_tasks(data_dir, wanted, "senteval", offline=runtime.offline)
    for label, reason in loaded.missing.items():
        raise NotFoundError(f"{label} is not there: {reason}; choose others by --split")
    return loaded.tasks
