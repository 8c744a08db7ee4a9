"""Train an encoder by a published method."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.notes import obeys_offline
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.data.sources import TrainingData
    from promptcli.data.tasks import STSTask
    from promptcli.training.run import Trained

Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting


@obeys_offline
def train(
    method: str,
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
    offline: bool = False,
    **settings: Setting,
) -> "Trained":
    """Train a sentence encoder; the checkpoint that is best on the development pairs is kept.

    Args:
        method: ``promptbert``, ``dcpcse``, ``simcse``, ``sbert``, ...: a name of ``training.methods.METHODS``.
        data: Sentences, pairs or triplets (sent0, sent1, hard_neg), labelled pairs (premise, hypothesis, label; sbert,
            consert), graded pairs (sentence1, sentence2, score; sbert-regression), definitions (word, definition;
            defsent): a file, demo, wiki1m_for_simcse, nli_for_simcse; repeatable, pairs and triplets may be mixed, and
            hard_neg may be empty, or several columns (negative_1, negative_2). In Python also a list or a
            ``datasets.Dataset``. Default: demo.
        backbone: Pre-trained model: a shipped name, a folder, or a hub id.
            Products are in bfloat16 if the hardware computes in it; weights stay float32. Default: mini-bert.
        start: Model of the registry whose tuned backbone the run starts from.
        name: Name of the model to save; such a run can be resumed. Default: it is not saved.
        supervised: Refuse data without pairs or triplets, which are recognised by their columns.
        paper: The published settings, backbone and data, with the choices behind the printed figures.
        on: Graded pairs that choose the best checkpoint: a task, or a file. Default: demo:dev, or STS-B:dev.
        tests: Task to score at the end; repeatable. Default: the test split of the development task.
        data_dir: SentEval folder of the tasks.
        resume: Resume the unfinished run of that name; it ends with the weights of a run that was never killed.
        force: Replace a model of that name.
        offline: Never use the network.
        settings: The method's own, by the names of its options: ``steps=100``, ``learning_rate=1e-4``, ``seed=1``.

    Raises:
        UsageError: An unknown method or setting, data that cannot be learned from, or a name that is taken.
        NotFoundError: Data, a backbone or a model is missing.
        PromptcliError: The loss is not a number, or memory does not hold one sentence.

    Example:
        >>> import promptcli as pc
        >>> pc.train("dcpcse", steps=100).encoder.encode(["A cat sleeps."]).shape  # doctest: +SKIP
        (1, 256)
    """
    from promptcli.training.run import Request

    return Request(
        method, data, settings, backbone, start, supervised, paper, on, data_dir, name, tests, resume, force, offline
    ).train()  # fmt: skip


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
    **settings: Setting,
) -> dict[str, object]:
    """Return what ``train`` would do with the same arguments, JSON-ready, without reading weights or using the network.

    Local data are read: their columns decide whether the method is supervised.

    Example:
        >>> import promptcli as pc
        >>> pc.training_settings("dcpcse", batch_size=32)["batch_size"]
        32
    """
    from promptcli.training.run import Request

    return Request(method, data, settings, backbone, start, supervised, paper, on, data_dir).describe()
