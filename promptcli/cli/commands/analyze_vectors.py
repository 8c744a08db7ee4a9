"""``promptcli analyze anisotropy`` and ``uniformity``: how the vectors of several encoders lie."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import options
from promptcli.cli.commands.eval_choice import EvalChoice, find_candidates, is_bare, open_candidates, recipes_option
from promptcli.cli.console import note, progress, result_json, result_table
from promptcli.cli.opening import configure_libraries, data_folder, open_registry
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.analyses import draw_uniformity
from promptcli.cli.pictures.maps import text_bar
from promptcli.cli.pictures.plots import PictureOptions, draw_bars
from promptcli.errors import NotFoundError, unknown
from promptcli.settings import BARE

if TYPE_CHECKING:
    from promptcli.analysis.anisotropy import Anisotropy, Preparation
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.evaluation.scores import Label

#: The rows of Ditto's table 5; one forward pass serves all.
ROWS = ["static-avg", "static-ditto", "last-avg", "last-ditto", "first-last-avg", "first-last-ditto"]
#: Splits of graded pairs by task.
_SPLITS = {"STS-B": ("train", "dev", "test"), "demo": ("dev", "test")}


@dataclass(frozen=True)
class ComparedChoice(EvalChoice):
    """Which encoders; changes of single recipe fields apply to every one."""

    recipe: Annotated[list[str] | None, recipes_option("average and Ditto of static, last and first-last states")] = (
        None
    )


@dataclass(frozen=True)
class Compared:
    """Encoders and what they are called."""

    encoders: "Sequence[Encoder]"
    labels: "Sequence[Label]"

    @property
    def names(self) -> list[str]:
        """What to call each in a table."""
        from promptcli.cli.commands.score_table import table_names

        named = table_names(self.labels)
        return [named[label] for label in self.labels]


def open_compared(choice: ComparedChoice, runtime: Runtime, rows: Sequence[str] = ROWS) -> Compared:
    """Return the encoders that the options name, else ``rows``, of which those are left out that cannot be made."""
    bare = is_bare(choice)
    if bare:
        choice = dataclasses.replace(choice, recipe=list(rows))
    encoders, kept = open_candidates(find_candidates(open_registry(), choice), runtime, bare=bare)
    return Compared(encoders, [candidate.label for candidate in kept])


def anisotropy(
    source: Annotated[
        str | None, typer.Argument(metavar="[SENTENCES]", help="A file, a task (STS-B, ...) or `demo`. Default: demo.")
    ] = None,
    first: Annotated[int, typer.Option(min=2, help="Take so many lines from the start.")] = 100_000,
    sample: Annotated[int | None, typer.Option(min=2, help="Take so many at random in their place.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of --sample.")] = 0,
    lower: Annotated[bool, typer.Option("--lower/--cased", help="Lower-case the lines, for cased models too.")] = True,
    words: Annotated[int, typer.Option(min=0, help="Cut a line to so many words; 0: do not.")] = 32,
    text_field: options.SentenceField = None,
    data_dir: options.DataDir = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Of the rows of the word-embedding matrix (PromptBERT, table 2).")
    ] = False,
    json: options.Json = False,
    *,
    picture: PictureOptions,
    choice: ComparedChoice,
    runtime: Runtime,
) -> None:
    """Print the mean cosine between sentences (PromptBERT, eq. 1 and table 1; Ditto, table 5): 0 is isotropic.

    Lines are prepared as PromptBERT's code does: the first 100,000, lower-cased, cut to 32 words. The papers' texts
    say random sentences: --sample 1000 --cased --words 0 is Ditto's table 5.
    """
    configure_libraries(runtime)
    picture.check()
    from promptcli.analysis.anisotropy import Preparation, sentence_anisotropy

    if tokens:
        names, rows = _of_tokens(open_compared(choice, runtime, ["static-avg"]))
        about: dict[str, Any] = {"of": "rows of the word-embedding matrix"}
    else:
        preparation = Preparation(first, sample, seed, lower, words or None)
        sentences = _sentences(source, data_dir, text_field, preparation, runtime)
        compared = open_compared(choice, runtime)
        with progress("anisotropy", len(sentences)) as advance:
            found = sentence_anisotropy(compared.encoders, sentences, progress=advance)
        names = compared.names
        rows = [
            {"model": label.model, "recipe": label.recipe, **_figures(one)}
            for label, one in zip(compared.labels, found, strict=True)
        ]
        about = {"of": "sentence vectors", "source": source or BARE.corpus, "prepared": preparation.to_dict()}
    cut = max(row["truncated"] for row in rows)
    if cut:
        note(f"{cut:,} sentences were cut to the longest input")
    values = {name: float(row["anisotropy"]) for name, row in zip(names, rows, strict=True)}
    title = f"Anisotropy of {rows[0]['vectors']:,} {about['of']}"
    picture.draw(draw_bars, values, "mean cosine over all pairs", title)
    if json:
        result_json({**about, "results": rows})
        return
    note(_caption(about, rows))
    cells = [(name, f"{value:.4f}", text_bar(value)) for name, value in values.items()]
    result_table(("", "mean cosine", ""), cells)


def _sentences(
    source: str | None, data_dir: Path | None, text_field: str | None, preparation: "Preparation", runtime: Runtime
) -> list[str]:
    from promptcli.analysis.anisotropy import check_enough
    from promptcli.data.sources import read_sentences

    if source is None:
        note("assumed: demo, sentences of our own; the papers': a file of Wikipedia sentences")
    lines = read_sentences(source or BARE.corpus, data_folder(data_dir), text_field=text_field)
    sentences = preparation.apply(lines)
    check_enough(len(sentences))
    return sentences


def _of_tokens(compared: Compared) -> tuple[list[str], list[dict[str, Any]]]:
    """Return names and figures of each backbone, once; a tuned one goes by its model's name."""
    from promptcli.analysis.anisotropy import token_anisotropy

    once = {id(encoder.backbone): place for place, encoder in reversed(list(enumerate(compared.encoders)))}
    rows = [
        {"model": compared.labels[place].model, **_figures(token_anisotropy(compared.encoders[place].backbone))}
        for place in sorted(once.values())
    ]
    return [row["model"] for row in rows], rows


def _figures(found: "Anisotropy") -> dict[str, Any]:
    return {"anisotropy": round(found.value, 6), "vectors": found.vectors, "truncated": found.truncated}


def _caption(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    count = f"{rows[0]['vectors']:,}"
    if "prepared" not in about:
        return f"PromptBERT, table 2: {about['of']}, {count} of them"
    treated = about["prepared"]
    chosen = f"a random sample, seed {treated['seed']}" if "sample" in treated else "from the start"
    cut = f", cut to {treated['words']} words" if treated["words"] else ""
    case = "lower-cased" if treated["lower"] else "as they are"
    return f"PromptBERT, eq. 1: {count} sentences of {about['source']}, {chosen}, {case}{cut}"


def uniformity(
    split: Annotated[
        list[str] | None, typer.Option(help="train, dev, test; repeatable. Default: all that there are.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="SentEval folder of STS-B. Without it: demo, pairs of our own.")
    ] = None,
    json: options.Json = False,
    *,
    picture: PictureOptions,
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
    with progress("uniformity", count) as advance:
        found = measure(compared.encoders, tasks, progress=advance)
    picture.draw(draw_uniformity, dict(zip(compared.names, found, strict=True)), tasks)
    if json:
        rows = [
            {"model": label.model, "recipe": label.recipe, **one.to_dict()}
            for label, one in zip(compared.labels, found, strict=True)
        ]
        about = {"tasks": [task.label for task in tasks], "text": tasks[0].text, "positive_above": POSITIVE}
        result_json({**about, "data_sha256": [task.sha256() for task in tasks], "results": rows})
        return
    note(
        f"{', '.join(task.label for task in tasks)}, {tasks[0].text}; {count:,} sentences"
        f" ({len(distinct_sentences(tasks)):,} distinct), {found[0].positives:,} pairs graded above {POSITIVE:g}"
    )
    figures = zip(compared.names, found, strict=True)
    cells = [(name, f"{one.alignment:.4f}", f"{one.uniformity:.4f}") for name, one in figures]
    result_table(("", "alignment", "uniformity"), cells)


def _tasks(split: list[str] | None, data_dir: Path | None, runtime: Runtime, *, paper: bool) -> "list[STSTask]":
    from promptcli.data.task_table import TaskName
    from promptcli.data.tasks import load_tasks

    name = "STS-B" if paper or data_dir is not None else "demo"
    if name == "demo":
        note("assumed: our own demo pairs, no benchmark; STS-B: --data-dir FOLDER, or --paper")
    for given in split or ():
        if given not in _SPLITS[name]:
            raise unknown(f"split of {name}", given, _SPLITS[name])
    wanted = [TaskName(name, one) for one in _SPLITS[name] if one in (split or _SPLITS[name])]
    loaded = load_tasks(data_dir, wanted)
    for label, reason in loaded.missing.items():
        raise NotFoundError(f"{label} is not there: {reason}; choose others by --split")
    return loaded.tasks
