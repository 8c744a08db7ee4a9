"""Where the sentences of a fit come from: ``demo``, a task, or a file. Knows nothing of encoders."""

from pathlib import Path

from promptcli.data.sts import task_names
from promptcli.errors import NotFoundError, UsageError

#: Sentences of our own inside the package; no benchmark.
DEMO = Path(__file__).parent / "shipped" / "demo" / "sentences.txt"


def fitting_sentences(
    on: str, data_dir: Path | None, *, text_field: str | None = None, offline: bool = False
) -> list[str]:
    """Return the sentences that ``on`` names, in order, repeated as often as they occur.

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

    if on != "demo" and not Path(on).exists():
        try:
            names = task_names([on])
        except UsageError as error:
            raise NotFoundError(f"no file {on!r} to fit on, and no task: {error}; or `demo`") from None
        loaded = load_tasks(data_dir, names, "senteval", offline=offline)
        if loaded.missing:
            raise NotFoundError(f"task {on} is not there: {loaded.missing[str(names[0])]}")
        pairs = loaded.tasks[0].pairs()
        return [*pairs.first, *pairs.second]
    path = DEMO if on == "demo" else Path(on)
    with open_source(path, Fields(text=text_field) if text_field else Fields()) as source:
        return [record.text for record in source]
