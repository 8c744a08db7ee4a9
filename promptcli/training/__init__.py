"""The public interface of training: train an encoder by a method, or fit a recipe on sentences.

It imports nothing heavy, since the command line reads it: its functions import the work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.given import check_arguments
from promptcli.data.senteval import tasks_from
from promptcli.jobs import Job, argument, function_of, function_with, option
from promptcli.notes import without_network
from promptcli.recipe import Choice
from promptcli.training.ranges import Range
from promptcli.training.train_arguments import Setting, TrainArguments

if TYPE_CHECKING:
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.models.loading import Model, Sentences
    from promptcli.training.trained import Trained


@dataclass(frozen=True)
class TrainJob(TrainArguments, Job["Trained"]):
    """Train a sentence encoder; the checkpoint that is best on the development pairs is kept.

    Raises:
        UsageError: An unknown method or setting, data that cannot be learned from, or a name that
            is taken.
        NotFoundError: Data, a backbone or a model is missing.
        PromptcliError: The loss is not a number, or memory does not hold one sentence.

    Example:
        >>> import promptcli as pc
        >>> pc.train("dcpcse", steps=100).encoder.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 256)
    """

    further = "changes"

    def run(self) -> "Trained":
        from promptcli.training.carry_out import carry_out
        from promptcli.training.finished import check_same, find_ended
        from promptcli.training.resuming import plan_of

        with without_network(self.offline):
            if not self.method:
                ended = find_ended(self.name, resume=self.resume)
                if ended is not None:
                    check_same(ended.entry, self.changes)
                    return ended
            plan = plan_of(self)
            return carry_out(plan, watchers=plan.job.make_watchers())


train = function_of(TrainJob, "train")


@check_arguments
def train_sweep(
    trials: Sequence[Mapping[str, Setting]], *, name: str, **arguments: Any
) -> "list[Trained]":
    """Train with each of several changes of the settings; the best on the development pairs stays.

    It becomes the model ``name``, whose record holds the scores and curves of all runs.

    Args:
        trials: Changes of the settings, one for each run: ``[{"seed": 0}, {"seed": 1}]``.
        name: Name of the model.
        arguments: The other arguments of ``train``. With ``resume`` they and the trials may be
            those of the stopped runs.

    Returns:
        The runs, in the order of the trials; with ``resume`` after their end the best one alone.

    Raises:
        UsageError: As ``train``, or a name of a run that a model has.

    Example:
        >>> import promptcli as pc
        >>> trials = [{"seed": 0}, {"seed": 1}]
        >>> runs = pc.train_sweep(trials, method="simcse", name="mine")  # doctest: +SKIP
        >>> [run.chosen_by for run in runs]  # doctest: +SKIP
    """
    from promptcli.training.finished import check_same_runs
    from promptcli.training.plan import TrainingPlan
    from promptcli.training.several_runs import SeveralRuns, records_of, run_trials

    with without_network(bool(arguments.get("offline"))):
        runs = SeveralRuns.of(name, arguments)
        if (ended := runs.ended()) is not None:
            check_same_runs(ended.entry, trials, records_of(TrainingPlan(runs.job), trials))
            return [ended]
        return run_trials(runs, trials)


def unfinished_search(name: str) -> tuple[dict[str, Any], int] | None:
    """Return the space and the number of trials of an unfinished search; None without one."""
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder

    run = RunFolder(open_registry().run_folder(f"{name}.sweep"))
    if not run.has_begun or "space" not in run.identity:
        return None
    return run.identity["space"], run.settings["count"]


def is_unfinished(name: str) -> bool:
    """Return whether there is an unfinished run, or several, whose record tells all that ``resume``
    needs.
    """
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder

    registry = open_registry()
    return any(
        RunFolder(registry.run_folder(folder)).settings for folder in (name, f"{name}.sweep")
    )


def is_trained(name: str) -> bool:
    """Return whether a training has made the model of that name."""
    from promptcli.models.loading import open_registry

    registry = open_registry()
    return name in registry.names() and "trained" in registry.card(name).provenance


def unfinished_trials(name: str) -> list[dict[str, Setting]]:
    """Return the trials of unfinished runs that ``train_sweep`` began under a name.

    Empty if it has none.
    """
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder

    registry = open_registry()
    sweep = RunFolder(registry.run_folder(f"{name}.sweep"))
    if RunFolder(registry.run_folder(name)).has_begun or not sweep.has_begun:
        return []
    trials: list[dict[str, Setting]] = sweep.identity.get("trials", [])
    return trials


def describe_job(job: TrainJob) -> dict[str, object]:
    """Return what ``train`` would do with the same arguments, JSON-ready, without reading weights
    or using the network.

    Local data are read: their columns decide whether the method is supervised. ``bad_lines`` is not
    written.

    Example:
        >>> import promptcli as pc
        >>> pc.training_settings("dcpcse", batch_size=32)["batch_size"]
        32
    """
    from promptcli.training.description import describe
    from promptcli.training.plan import TrainingPlan

    return describe(TrainingPlan(job))


training_settings = function_with(TrainJob, "training_settings", describe_job)


def describe_several(
    jobs: Sequence[TrainJob], space: Mapping[str, "Range | Sequence[Setting]"] | None
) -> dict[str, object]:
    """Return what the first run of several, or a search in a space, would begin with.

    Raises:
        UsageError: As any of the runs.
    """
    from promptcli.training.plan import TrainingPlan
    from promptcli.training.several_runs import check_space

    described, *_ = [describe_job(job) for job in jobs]
    if space is not None:
        check_space(TrainingPlan(jobs[0]), space)
    return described


@dataclass(frozen=True)
class FitJob(Job["TorchEncoder"]):
    """Fit a recipe's TF-IDF weights or transforms on sentences.

    A task names its test sentences, both sides of every pair; STS-B:all and SICK-R:all those of all
    splits. With STS12 to STS16 they are the whitening paper's target setting; its other one is a
    file of NLI pairs. A model fitted on a task has seen the task's text, though never its scores.

    Raises:
        UsageError: The recipe has nothing to fit, there are too few sentences, or ``select`` is a
            test set.

    Example:
        >>> import promptcli as pc
        >>> pc.fit("first-last-tfidf", on=["A cat sleeps.", "A dog runs."]).recipe.pooling
        'first-last/tfidf'
    """

    recipe: "Model" = argument(
        "A named one (`whitening`, `flow`, `first-last-tfidf`), a `Recipe`, or what else `load`"
        " takes.",
        kind="model",
    )
    on: "Sentences" = option(
        "demo",
        "Sentences: a file (of pairs, such as sent0,sent1 or premise,hypothesis: both sides), a"
        " task (STS12, STS-B, ...), `demo`, or a list.",
        typed=str,
        required=True,
    )
    _: KW_ONLY
    select: str | Path | None = option(
        None,
        "Development pairs that choose the parameters of the last transform, if it is given without"
        " (all-but-the-top, whitening, spectral, embed-filter): STS-B:dev, demo:dev, or a FILE of"
        " graded pairs; never a test set. All candidates are printed, and kept with the model.",
        metavar="TASK",
    )
    name: str | None = option(None, "Name of the model to save.", required=True)
    data_dir: str | Path | None = option(
        None, "SentEval folder of the tasks.", typed=Path, kind="data folder"
    )
    text_field: str | None = option(
        None, "Column of the sentence. Default: `text`, else `sentence`, else the only one."
    )
    force: bool = option(False, "Replace a model of that name.")

    def run(self) -> "TorchEncoder":
        from promptcli.data.given import check_texts
        from promptcli.data.sources import development_task, fitting_sentences
        from promptcli.models.loading import entry_of, open_registry, register
        from promptcli.notes import note
        from promptcli.training.fits import fit_recipe

        with tasks_from(self.data_dir):
            wanted = entry_of(self.recipe).recipe
            where = self.recipe if isinstance(self.recipe, Choice) else Choice()
            pairs = None
            if self.select is not None:
                pairs = development_task(str(self.select))
            if isinstance(self.on, str | Path):
                source = str(self.on)
                sentences = fitting_sentences(source, text_field=self.text_field)
            else:
                source = "a list"
                sentences = list(check_texts(self.on))
            if self.name is not None:  # errors in the others are reported first
                open_registry().check_free(self.name, force=self.force)
            fitted = fit_recipe(
                wanted,
                sentences,
                choose_by=pairs,
                source=source,
                device=where.device,
                dtype=where.dtype or "stored",
            )
            if self.name is not None:
                register(fitted.encoder, self.name, force=self.force, **fitted.provenance)
                count = fitted.provenance["fitted_on"]["sentences"]
                note(f"fitted on {count:,} sentences of {source}; saved as model {self.name!r}")
            return fitted.encoder


fit = function_of(FitJob, "fit")
