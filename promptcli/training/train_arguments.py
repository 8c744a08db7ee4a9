"""What ``train`` is asked for. Light: the command line reads it for its help."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.jobs import argument, option
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.data.sources import TrainingData
    from promptcli.data.tasks import DevelopmentTask
    from promptcli.training.watching import Watcher

Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting


def _names_of_methods() -> str:
    from promptcli.training.methods import METHODS  # loads those of other packages

    return f"One of {', '.join(METHODS)}."


@dataclass(frozen=True)
class TrainArguments:
    """The arguments of ``train``, as the files below its job read them.

    A field is a part of the run, so that ``resume`` finds it again, unless its metadata say that
    ``of_run`` is False. ``locates`` marks names of files, which ``resume`` finds from another
    folder, too.
    """

    method: str = argument(
        "Method; only a run that is resumed needs none.",
        "",
        in_python="A name of `training.methods.METHODS`: `promptbert`, `dcpcse`, `simcse`, ...",
        on_command_line=_names_of_methods,
        metavar="[METHOD]",
    )
    data: "TrainingData | None" = option(
        None,
        "Sentences, pairs or triplets (sent0, sent1, hard_neg), labelled pairs (premise,"
        " hypothesis, label; sbert, consert), graded pairs (sentence1, sentence2, score;"
        " sbert-regression), definitions (word, definition; defsent): a file, demo,"
        " wiki1m_for_simcse, nli_for_simcse; repeatable, pairs and triplets may be mixed, and"
        " hard_neg may be empty, or several columns (negative_1, negative_2). Default: demo.",
        in_python="Also a list, or a `datasets.Dataset`.",
        typed=list[str],
        locates=True,
    )
    _: KW_ONLY
    backbone: str | Choice | None = option(
        None,
        "Pre-trained model: a shipped name, a folder, or a hub id. Matrix products are in bfloat16"
        " if the hardware computes in it; weights stay float32. Default: mini-bert.",
        typed=str,
        kind="named model",
    )
    start: str | None = option(
        None,
        "Model of the registry whose tuned backbone the run starts from.",
        names="from",
        metavar="MODEL",
    )
    name: str | None = option(
        None,
        "Name of the model.",
        in_python="Such a run can be resumed. Default: it is not saved.",
        on_command_line="Default: the method's.",
        of_run=False,
    )
    supervised: bool = option(
        False, "Refuse data other than pairs or triplets; their columns tell."
    )
    paper: bool = option(
        False,
        "The published settings, backbone and data, with the choices behind the printed figures.",
    )
    on: "DevelopmentTask | str | Path | None" = option(
        None,
        "Graded pairs that choose the best checkpoint: a task, or a file; or queries with their"
        " documents, `retrieval:FILE`, by nDCG@10. Default: demo:dev, or STS-B:dev.",
        typed=str,
        locates=True,
    )
    tests: Sequence[str] = option(
        (),
        "Task to score at the end; repeatable. Default: the test split of the development task.",
        names="test",
        locates=True,
    )
    data_dir: str | Path | None = option(
        None, "SentEval folder of the tasks.", typed=Path, kind="data folder", locates=True
    )
    resume: bool = option(
        False,
        "Resume the unfinished run of that name, which needs no other argument; it ends with the"
        " weights of a run that was never killed. With a method, a run is begun if none is there,"
        " and one that has ended is done.",
        of_run=False,
    )
    force: bool = option(False, "Replace a model of that name.", of_run=False)
    report_to: Sequence[str] = option(
        (),
        "Tracker that receives loss, learning rate, gradient norm, speed, development score and"
        " settings: `tensorboard`, `wandb`, `mlflow`, `trackio`, or several.",
        metavar="TRACKER,...",
    )
    bad_lines: str | Path | None = option(
        None,
        "File that gets the rows of the data that cannot be read, as JSON lines with number, reason"
        " and line; they are left out. Default: the first one is refused.",
        metavar="FILE",
        typed=str,
        of_run=False,
    )
    offline: bool = option(False, "Never use the network.", hidden=True, of_run=False)
    keep_runs: bool = option(
        False,
        "Keep every run as a model of its own, NAME.run-N, not the best alone.",
        panel="Several runs",
    )
    changes: Mapping[str, Setting] = option(
        {},
        "The method's own settings, also as keywords, by the names of its options: `steps=100`,"
        " `learning_rate=1e-4`, `seed=1`.",
        hidden=True,
    )

    @property
    def where(self) -> Choice:
        """The backbone that is given, and where the run computes."""
        if isinstance(self.backbone, Choice):
            return self.backbone
        return Choice(self.backbone)

    def make_watchers(self) -> "list[Watcher]":
        """Return the trackers that are told of the run.

        Raises:
            UsageError: One that is unknown, not installed, or forbidden by ``offline``.
        """
        if not self.report_to:
            return []
        from promptcli.training.tracker_table import make_trackers

        return make_trackers(self.report_to)
