"""Train a sentence encoder, or fit a recipe's weights and transforms on sentences.

The functions import heavy libraries when they are called.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.data.csv_options import stored_options
from promptcli.settings import list_of_names

if TYPE_CHECKING:
    from promptcli.data.tasks import DevelopmentTask
    from promptcli.data.training_data import TrainingData
    from promptcli.encoder.encoder import TorchEncoder
    from promptcli.models.loading import Model, Sentences
    from promptcli.training.config import Setting
    from promptcli.training.run import Trained


def train(
    method: str = "",
    data: "TrainingData | None" = None,
    *,
    backbone: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    start: str | None = None,
    name: str | None = None,
    supervised: bool = False,
    paper: bool = False,
    on: "DevelopmentTask | str | Path | None" = None,
    tests: str | Path | Sequence[str | Path] = (),
    data_dir: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    report_to: str | Sequence[str] = (),
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    offline: bool = False,
    **settings: "Setting",
) -> "Trained":
    """Train a sentence encoder and keep the checkpoint with the best development score.

    Args:
        method: A name of ``training.methods.METHODS``: ``promptbert``, ``dcpcse``, ``simcse``, ...;
            only a resumed run needs none.
        data: Training data: texts in a list, pairs or triplets in a list, a file (or several in a
            list), ``demo``, ``wiki1m_for_simcse``, ``nli_for_simcse``, or a ``datasets.Dataset``.
            Its columns decide whether the method is supervised. Default: ``demo``.
        backbone: Pre-trained model: a shipped name, a folder, or a hub id. Default: ``mini-bert``.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``. Default: the fastest.
        dtype: Precision of matrix products; weights stay float32. Default: bfloat16 if the hardware
            supports it.
        start: Model of the registry whose tuned backbone the run starts from.
        name: Name of the model; a named run can be resumed. Default: the model is not saved.
        supervised: Refuse data other than pairs or triplets.
        paper: The published settings, backbone and data, with the choices behind the printed
            figures.
        on: Graded pairs that choose the best checkpoint: a task, or a file; or queries with their
            documents, ``retrieval:FILE``, by nDCG@10. Default: ``demo:dev``, or ``STS-B:dev``.
        tests: Tasks to score at the end. Default: the test split of the development task.
        data_dir: SentEval folder of the tasks.
        resume: Continue the unfinished run of that name, with no other argument. Its weights are
            those of an uninterrupted run. With a method, a missing run is begun, a finished run is
            left alone.
        force: Replace a model of that name.
        report_to: Trackers that receive loss, learning rate, gradient norm, speed, development
            score and settings: ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``.
        csv: How the tables of the data are written: ``{"delim": ";", "decimal_separator": ","}``.
        skip_bad: Leave out unreadable rows of the data, and say how many and why.
        offline: Never use the network.
        settings: The method's own settings: ``steps=100``, ``learning_rate=1e-4``, ``seed=1``.

    Returns:
        The trained encoder, its scores in Spearman x 100, and the reference scores.

    Raises:
        UsageError: An unknown method or setting, data that cannot be learned from, or a name that
            is taken.
        NotFoundError: Data, a backbone or a model is missing.
        PromptcliError: The loss is not a number, or one sentence does not fit in memory.

    Example:
        >>> import promptcli as pc
        >>> pc.train("dcpcse", steps=100).encoder.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 256)
    """
    from promptcli.notes import current_command, without_network
    from promptcli.training import config, run

    with without_network(offline):
        trained = run.train_and_save(
            config.TrainConfig(
                method=method,
                data=data,
                backbone=backbone,
                device=device,
                dtype=dtype,
                start=start,
                name=name,
                supervised=supervised,
                paper=paper,
                on=on,
                tests=tuple(list_of_names(tests)),
                data_dir=data_dir,
                resume=resume,
                force=force,
                report_to=tuple(list_of_names(report_to)),
                csv=stored_options(csv),
                skip_bad=skip_bad,
                settings=settings,
                command=current_command(),
            )
        )
    return dataclasses.replace(trained, offline=offline)


def training_settings(
    method: str,
    data: "TrainingData | None" = None,
    *,
    backbone: str | None = None,
    start: str | None = None,
    supervised: bool = False,
    paper: bool = False,
    on: "DevelopmentTask | str | Path | None" = None,
    dtype: str | None = None,
    data_dir: str | Path | None = None,
    csv: Mapping[str, Any] | None = None,
    skip_bad: bool = False,
    **settings: "Setting",
) -> dict[str, Any]:
    """Return the settings, the recipe and the data of a ``train`` call, JSON-ready, without reading
    weights or using the network.

    Local data are read: their columns decide whether the method is supervised.

    Args:
        method: See ``train``; the same holds for all arguments.
        data: Training data.
        backbone: Pre-trained model.
        start: Model that the run starts from.
        supervised: Refuse data other than pairs or triplets.
        paper: The published settings.
        on: Development set that chooses the best checkpoint.
        dtype: Precision of matrix products.
        data_dir: SentEval folder of the tasks.
        csv: How the tables of the data are written.
        skip_bad: Leave out the rows that cannot be read.
        settings: The method's own settings.

    Raises:
        UsageError: As for ``train``.

    Example:
        >>> import promptcli as pc
        >>> pc.training_settings("dcpcse", batch_size=32)["batch_size"]
        32
    """
    from promptcli.training.config import TrainConfig, plan_training

    config = TrainConfig(
        method=method,
        data=data,
        backbone=backbone,
        dtype=dtype,
        start=start,
        supervised=supervised,
        paper=paper,
        on=on,
        data_dir=data_dir,
        csv=stored_options(csv),
        skip_bad=skip_bad,
        settings=settings,
    )
    return plan_training(config)


def fit(
    recipe: "Model",
    on: "Sentences" = "demo",
    *,
    select: str | Path | None = None,
    name: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    data_dir: str | Path | None = None,
    text_field: str | None = None,
    force: bool = False,
) -> "TorchEncoder":
    """Fit a recipe's TF-IDF weights or transforms on sentences.

    A task means its test sentences, both sides of every pair; ``STS-B:all`` and ``SICK-R:all`` add
    the other splits. STS12 to STS16 are the target setting of the whitening paper; a file of NLI
    pairs is its other setting. A model fitted on a task has seen the task's text, though never its
    scores.

    Args:
        recipe: A recipe's name (``whitening``, ``flow``, ``first-last-tfidf``), a ``Recipe``, or
            anything that ``load`` takes.
        on: n sentences in a list, a file (of pairs: both sides), a task, or ``demo``.
        select: Development pairs that choose the parameters of the last transform if none are
            given (all-but-the-top, whitening, spectral, embed-filter): ``STS-B:dev``,
            ``demo:dev``, or a file of graded pairs; never a test set.
        name: Name of the model. Default: the model is not saved.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps``. Default: the fastest.
        dtype: Precision of the backbone. Default: as stored.
        data_dir: SentEval folder of the tasks.
        text_field: Column of the sentence. Default: ``text``, else ``sentence``, else the only one.
        force: Replace a model of that name.

    Returns:
        The encoder with its fitted tensors.

    Raises:
        UsageError: The recipe has nothing to fit, there are too few sentences, or ``select`` is a
            test set.
        NotFoundError: A file, a task or a model is missing.

    Example:
        >>> import promptcli as pc
        >>> pc.fit("first-last-tfidf", on=["A cat sleeps.", "A dog runs."]).recipe.pooling
        'first-last/tfidf'
    """
    from promptcli.data.arguments import as_texts
    from promptcli.data.senteval import tasks_from
    from promptcli.data.training_data import development_task, fitting_sentences
    from promptcli.models.loading import open_registry, register, resolve_entry
    from promptcli.notes import note
    from promptcli.recipe import ModelChoice
    from promptcli.training.fitting import fit_recipe

    with tasks_from(data_dir):
        unfitted = resolve_entry(recipe).recipe
        choice = recipe if isinstance(recipe, ModelChoice) else ModelChoice()
        pairs = None if select is None else development_task(select)
        source = "a list"
        if isinstance(on, str | Path):
            source = str(on)
            on = fitting_sentences(source, text_field=text_field)
        else:
            on = list(as_texts(on))
        if name is not None:  # errors in the other arguments are reported first
            open_registry().check_free(name, force=force)
        fitted = fit_recipe(
            unfitted,
            on,
            choose_by=pairs,
            source=source,
            device=device or choice.device,
            dtype=dtype or choice.dtype or "stored",
        )
        if name is not None:
            register(fitted.encoder, name, force=force, **fitted.provenance)
            count = fitted.provenance["fitted_on"]["sentences"]
            note(f"fitted on {count:,} sentences of {source}; saved as model {name!r}")
        return fitted.encoder
