"""Where sentences to fit on and pairs to choose by come from: ``demo``, a task, a file. Knows nothing of encoders."""

from collections.abc import Iterator
from pathlib import Path

from promptcli.data.demo import SENTENCES
from promptcli.data.sts import DEMO, STSTask, task_names
from promptcli.errors import NotFoundError, UsageError


def fitting_sentences(
    on: str, data_dir: Path | None, *, text_field: str | None = None, offline: bool = False
) -> list[str]:
    """Return the sentences of ``read_sentences`` as a list, repeated as often as they occur."""
    return list(read_sentences(on, data_dir, text_field=text_field, offline=offline))


def read_sentences(
    on: str, data_dir: Path | None, *, text_field: str | None = None, offline: bool = False
) -> Iterator[str]:
    """Yield the sentences that ``on`` names, in order; a file is read no further than the caller goes.

    Args:
        on: ``demo``, a task's name (its sentences, both sides of every pair), or a file.
        data_dir: SentEval folder for a task.
        text_field: Field of the sentence, for files that have fields.
        offline: Never use the network.

    Raises:
        NotFoundError: The task or the file is not there.
        UsageError: The file is not readable as sentences.
    """
    from promptcli.data.tables import Fields
    from promptcli.data.text import open_source
    from promptcli.evaluation import load_tasks

    if on != DEMO and not Path(on).exists():
        try:
            names = task_names([on])
        except UsageError as error:
            raise NotFoundError(f"no file {on!r} with sentences, and no task: {error}; or `demo`") from None
        loaded = load_tasks(data_dir, names, "senteval", offline=offline)
        if loaded.missing:
            raise NotFoundError(f"task {on} is not there: {loaded.missing[str(names[0])]}")
        pairs = loaded.tasks[0].pairs()
        yield from (*pairs.first, *pairs.second)
        return
    path = SENTENCES if on == DEMO else Path(on)
    with open_source(path, Fields(text=text_field) if text_field else Fields()) as source:
        yield from (record.text for record in source)


def development_task(name: str, data_dir: Path | None, *, offline: bool = False) -> STSTask:
    """Return the graded pairs that a search or a training run chooses by.

    Args:
        name: A task (``demo:dev``, ``STS-B:dev``, ...).
        data_dir: SentEval folder for a task other than ``demo``.
        offline: Never use the network.

    Raises:
        UsageError: No such task.
        NotFoundError: Its data are not there.
    """
    from promptcli.evaluation import load_tasks

    loaded = load_tasks(data_dir, task_names([name]), "senteval", offline=offline)
    if loaded.missing:
        raise NotFoundError(f"task {name} is not there: {loaded.missing[name]}; `demo:dev` always is")
    return loaded.tasks[0]
