"""The public interface of ``adapt``: a model that has learned from texts, if it is better for them.

It imports nothing heavy, since the command line reads it: its function imports the work.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from promptcli.jobs import Job, function_of
from promptcli.plugins.domain.adapt_arguments import AdaptArguments

if TYPE_CHECKING:
    from promptcli.plugins.domain.adaptation import Adapted


@dataclass(frozen=True)
class AdaptJob(AdaptArguments, Job["Adapted"]):
    """Train a model on your own texts, without labels, and keep it if it finds more in them.

    Queries are made from the texts: a heading, a title or a first sentence, each with the passage
    that it was taken from. A part of the documents is held out. Several ways of learning are tried
    on the rest: on the queries with their passages, and the methods of the papers on the sentences
    alone. The model is saved if it finds more of the held-out passages than before, beyond chance,
    and knows other texts as well as before.

    Returns:
        The table of all ways, and whether a model was saved.

    Raises:
        UsageError: Too few texts, a name that is taken, or a model that cannot be trained further.
        NotFoundError: No such file or model.

    Example:
        >>> import promptcli as pc
        >>> adapted = pc.adapt(["docs"], name="mine")  # doctest: +SKIP
        >>> adapted.saved, adapted.reason  # doctest: +SKIP
    """

    def run(self) -> "Adapted":
        from promptcli.plugins.domain.adaptation import adapt_model

        return adapt_model(self)


adapt = function_of(AdaptJob, "adapt")
