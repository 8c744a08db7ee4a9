"""Loading graded pairs by the names of their tasks: from a SentEval folder, the hub, or the package."""

from collections.abc import Sequence
from pathlib import Path

from promptcli.data.demo import load_demo
from promptcli.data.senteval import load_folder
from promptcli.data.sts import DEMO, Loaded, TaskName


def load_tasks(data_dir: Path | None, names: Sequence[TaskName], protocol: str, *, offline: bool = False) -> Loaded:
    """Load tasks from a SentEval folder, or without one from the Hugging Face data sets; ``demo`` from the package."""
    demo = [load_demo(name.split, protocol) for name in names if name.task == DEMO]
    names = [name for name in names if name.task != DEMO]
    if not names:
        return Loaded(demo, {})
    if data_dir is not None:
        loaded = load_folder(data_dir, names, protocol)
    else:
        from promptcli.data.hub import load_hub  # slow to import, and a folder does not need it

        loaded = load_hub(names, protocol, offline=offline)
    return Loaded([*loaded.tasks, *demo], loaded.missing)
