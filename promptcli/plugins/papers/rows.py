"""The entries of this plug-in: its commands, and the tasks of mteb."""

from typing import TYPE_CHECKING, Any

from promptcli.cli.command_line import Command

if TYPE_CHECKING:
    from promptcli.data.task_table import TaskRow

REPRODUCE = Command(
    "reproduce",
    "promptcli.plugins.papers.command:reproduce",
    "Measure the papers' tables and figures again.",
)
COMPARE = Command(
    "compare",
    "promptcli.plugins.papers.seeds_command:compare",
    "Compare trained models over the seeds of their runs.",
)


def mteb(name: str) -> "TaskRow":
    """Return the row of ``mteb:NAME``."""
    from promptcli.data.task_table import TaskRow

    def make(*arguments: Any) -> Any:  # mteb is imported only when a task is made
        from promptcli.plugins.papers.mteb_tasks import MtebTask

        return MtebTask.of(*arguments)

    return TaskRow("mteb", lambda _: {}, text="as mteb has it", make=make)
