"""The public interface of training: train an encoder by a method, or fit a recipe on sentences.

It imports nothing heavy, since the command line reads it: its functions import the work.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.given import check_arguments
from promptcli.data.senteval import tasks_from
from promptcli.errors import UsageError
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import without_network
from promptcli.recipe import Choice
from promptcli.training.ranges import Range

if TYPE_CHECKING:
    from promptcli.data.sources import TrainingData
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.models.loading import Model, Sentences
    from promptcli.training.run import Trained, TrainingJob
    from promptcli.training.trials import SettingsSearch

Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting


@check_arguments
def train(
    method: str | None = None,
    data: "TrainingData | None" = None,
    *,
    backbone: str | Choice | None = None,
    start: str | None = None,
    name: str | None = None,
    supervised: bool = False,
    paper: bool = False,
    on: "STSTask | str | Path | None" = None,
    tests: Sequence[str] = (),
    data_dir: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    report_to: Sequence[str] = (),
    bad_lines: str | Path | None = None,
    offline: bool = False,
    **settings: Setting,
) -> "Trained":
    """Train a sentence encoder; the checkpoint that is best on the development pairs is kept.

    Args:
        method: ``promptbert``, ``dcpcse``, ``simcse``, ``sbert``, ...: a name of
            ``training.methods.METHODS``. Only a run that is resumed needs none.
        data: Sentences, pairs or triplets (sent0, sent1, hard_neg), labelled pairs (premise,
            hypothesis, label; sbert, consert), graded pairs (sentence1, sentence2, score;
            sbert-regression), definitions (word, definition; defsent): a file, demo,
            wiki1m_for_simcse, nli_for_simcse; repeatable, pairs and triplets may be mixed, and
            hard_neg may be empty, or several columns (negative_1, negative_2). In Python also a
            list or a ``datasets.Dataset``. Default: demo.
        backbone: Pre-trained model: a shipped name, a folder, or a hub id. Matrix
            products are in bfloat16 if the hardware computes in it; weights stay float32. Default:
            mini-bert.
        start: Model of the registry whose tuned backbone the run starts from.
        name: Name of the model to save; such a run can be resumed. Default: it is not saved.
        supervised: Refuse data other than pairs or triplets; their columns tell.
        paper: The published settings, backbone and data, with the choices behind the printed
            figures.
        on: Graded pairs that choose the best checkpoint: a task, or a file. Default: demo:dev, or
            STS-B:dev.
        tests: Task to score at the end; repeatable. Default: the test split of the development
            task.
        data_dir: SentEval folder of the tasks.
        resume: Resume the unfinished run of that name, which needs no other argument; it ends with
            the weights of a run that was never killed. With a method, a run is begun if none is
            there, and one that has ended is returned as it is.
        force: Replace a model of that name.
        report_to: Tracker that is told loss, learning rate, gradient norm, speed, development score
            and settings: `tensorboard`, `wandb`, `mlflow`, `trackio`, or several.
        bad_lines: File that gets the rows of the data that cannot be read, as JSON lines with
            number, reason and line; they are left out. Default: the first one is refused.
        offline: Never use the network.
        settings: The method's own, by the names of its options: ``steps=100``,
            ``learning_rate=1e-4``, ``seed=1``.

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
    from promptcli.training.finished import check_same
    from promptcli.training.run import TrainingJob

    with without_network(offline):
        job = TrainingJob(
            method=method or "",
            data=data,
            changes=settings,
            backbone=backbone,
            start=start,
            supervised=supervised,
            paper=paper,
            on=on,
            data_dir=data_dir,
            name=name,
            tests=tests,
            resume=resume,
            force=force,
            report_to=report_to,
            bad_lines=bad_lines,
            offline=offline,
        )
        if not job.method and (ended := _ended(name, resume=resume)) is not None:
            check_same(ended.entry, settings)
            return ended
        return _begun(job).train()


@check_arguments
def train_sweep(
    trials: Sequence[Mapping[str, Setting]], *, name: str, keep_runs: bool = False, **given: Any
) -> "list[Trained]":
    """Train with each of several changes of the settings; the best on the development pairs stays.

    It becomes the model ``name``, whose record holds the scores and curves of all runs.

    Args:
        trials: Changes of the settings, one for each run: ``[{"seed": 0}, {"seed": 1}]``.
        name: Name of the model.
        keep_runs: Keep every run as a model of its own, ``NAME.run-N``.
        given: The other arguments of ``train``. With ``resume`` they and the trials may be those of
            the stopped runs.

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
    from promptcli.training.sweep import run_trials

    with without_network(bool(given.get("offline"))):
        job = _job_of_several(name, {**given, "keep_runs": keep_runs})
        if (ended := _ended(name, resume=job.resume)) is not None:
            check_same_runs(ended.entry, trials, job.wanted(trials))
            return [ended]
        return run_trials(_begun(job), trials, name)


@check_arguments
def train_search(
    space: Mapping[str, "Range | str | Sequence[Setting]"],
    trials: int,
    *,
    name: str,
    **given: Any,
) -> "SettingsSearch":
    """Search settings by optuna: the best trial on the development pairs becomes a model.

    A tree-structured Parzen estimator draws each trial; one that is below the median of the earlier
    ones at the same step is ended.

    Args:
        space: Setting -> what is drawn from: a range (``"1e-5..1e-4:log"``), or a list of values.
        trials: How many trainings.
        name: Name of the model, whose record holds all trials.
        given: The other arguments of ``train``. With ``resume`` the search goes on where it was
            stopped, and ``trials`` may be more than before.

    Returns:
        The best run and all trials.

    Raises:
        UsageError: As ``train``, or a range of a setting that takes none.
        PromptcliError: No trial has a score.

    Example:
        >>> import promptcli as pc
        >>> space = {"learning_rate": "1e-5..1e-4:log", "batch_size": [64, 128]}
        >>> found = pc.train_search(space, 20, method="simcse", name="mine")  # doctest: +SKIP
        >>> found.best.chosen_by, found.trials[0].changes  # doctest: +SKIP
    """
    from promptcli.training.trials import ended_search, search_settings

    if trials < 1:
        raise UsageError(f"`trials` {trials}: give 1 or more")
    if not space:
        raise UsageError("a search needs settings to draw; give `space`")
    drawn = {}
    for setting, values in space.items():
        drawn[setting] = Range.of(values) if isinstance(values, str) else values
    with without_network(bool(given.get("offline"))):
        job = _job_of_several(name, given)
        if (ended := _ended(name, resume=job.resume)) is not None:
            return ended_search(ended)
        return search_settings(_begun(job), drawn, trials, name)


def begun_search(name: str) -> tuple[dict[str, Any], int] | None:
    """Return the space and the number of trials of an unfinished search; None if there is none."""
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder

    run = RunFolder(open_registry().run_folder(f"{name}.sweep"))
    if not run.begun or "space" not in run.identity:
        return None
    return run.identity["space"], run.given["count"]


def _job_of_several(name: str, given: Mapping[str, Any]) -> "TrainingJob":
    """Return the job of several runs from the arguments of ``train``."""
    from promptcli.training.run import TrainingJob

    fields = {field.name for field in dataclasses.fields(TrainingJob)} - {"changes"}
    arguments = {field: given[field] for field in fields & given.keys()}
    arguments["method"] = given.get("method") or ""
    changes = {setting: value for setting, value in given.items() if setting not in fields}
    return TrainingJob(**{**arguments, "name": f"{name}.sweep", "changes": changes})


def is_begun(name: str) -> bool:
    """Return whether there is an unfinished run, or several, whose record tells all that ``resume``
    needs.
    """
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder

    registry = open_registry()
    return any(RunFolder(registry.run_folder(folder)).given for folder in (name, f"{name}.sweep"))


def is_trained(name: str) -> bool:
    """Return whether a training has made the model of that name."""
    from promptcli.models.loading import open_registry

    registry = open_registry()
    return name in registry.names() and "trained" in registry.card(name).provenance


def _ended(name: str | None, *, resume: bool) -> "Trained | None":
    """Return the result of a run, or of several, that is resumed after its end."""
    from promptcli.models.loading import open_registry
    from promptcli.training.finished import finished_model, note_done
    from promptcli.training.run import Trained

    if not resume or name is None:
        return None
    entry = finished_model(open_registry(), name)
    if entry is None:
        return None
    note_done(entry)
    return Trained(entry)


def begun_trials(name: str) -> list[dict[str, Setting]]:
    """Return the trials of unfinished runs that ``train_sweep`` began under a name.

    Empty if it has none.
    """
    from promptcli.models.loading import open_registry
    from promptcli.storage.runs import RunFolder

    registry = open_registry()
    sweep = RunFolder(registry.run_folder(f"{name}.sweep"))
    if RunFolder(registry.run_folder(name)).begun or not sweep.begun:
        return []
    trials: list[dict[str, Setting]] = sweep.identity.get("trials", [])
    return trials


def _begun(job: "TrainingJob") -> "TrainingJob":
    """Return a job for a run that is resumed with all that the run was begun with."""
    from promptcli.models.loading import open_registry

    if job.resume and job.name is not None:
        job = job.resumed(open_registry().run_folder(job.name))
    if not job.method and job.resume and job.name is not None:
        raise UsageError(
            f"no unfinished run of {job.name.removesuffix('.sweep')!r}; leave out `resume` to"
            " start one"
        )
    if not job.method:
        raise UsageError(
            "give a method, e.g. `promptcli train simcse`; only a run that is resumed needs none"
        )
    return job


@check_arguments
def training_settings(
    method: str,
    data: "TrainingData | None" = None,
    *,
    backbone: str | Choice | None = None,
    start: str | None = None,
    supervised: bool = False,
    paper: bool = False,
    on: "STSTask | str | Path | None" = None,
    data_dir: str | Path | None = None,
    bad_lines: str | Path | None = None,
    **settings: Setting,
) -> dict[str, object]:
    """Return what ``train`` would do with the same arguments, JSON-ready, without reading weights
    or using the network.

    Local data are read: their columns decide whether the method is supervised. ``bad_lines`` is not
    written.

    Example:
        >>> import promptcli as pc
        >>> pc.training_settings("dcpcse", batch_size=32)["batch_size"]
        32
    """
    from promptcli.training.run import TrainingJob

    job = TrainingJob(
        method=method,
        data=data,
        changes=settings,
        backbone=backbone,
        start=start,
        supervised=supervised,
        paper=paper,
        on=on,
        data_dir=data_dir,
        bad_lines=bad_lines,
    )
    return job.describe()


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
            if self.name is not None:
                open_registry().check_free(self.name, force=self.force)
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
