"""The public interface of ``choose``: which model and ranking suit texts.

It imports nothing heavy, since the command line reads it: its function imports the work.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli import errors
from promptcli.index.found_files import list_of_names
from promptcli.jobs import Job, argument, function_of, option
from promptcli.recipe import Choice

if TYPE_CHECKING:
    from promptcli.models.loading import Model
    from promptcli.plugins.domain.comparison import Way
    from promptcli.plugins.domain.endpoint import Endpoint
    from promptcli.plugins.domain.synthetic_queries import SyntheticQueries

#: The shipped models, which are always compared.
SHIPPED = ("mini", "mini-static")
#: Most passages that are ranked: more make the figures lower and the work longer, and hardly change
#: the order.
MOST_PASSAGES = 5000


@dataclass(frozen=True)
class Chosen:
    """Ways of ranking, compared on queries made from texts."""

    ways: "Sequence[Way]"  #: words alone and two of each model, best first
    queries: "SyntheticQueries"

    @property
    def best(self) -> "Way":
        """The way with the highest nDCG@10."""
        return self.ways[0]

    @property
    def best_here(self) -> "Way":
        """The best one with which promptcli searches, which an endpoint's is not."""
        return next(way for way in self.ways if not way.is_elsewhere)


@dataclass(frozen=True)
class ChooseJob(Job[Chosen]):
    """Compare models and rankings on your own texts, without labels.

    Queries are made from the texts: a heading asks for the text below it, a title for its body,
    a first sentence for the rest. Each way of ranking is scored by how far up it puts the passage
    that a query was taken from (nDCG@10).

    Returns:
        The ways with their figures, the difference to the best, and the queries.

    Raises:
        UsageError: The texts give too few queries, or a model cannot be opened.
        NotFoundError: No such file or model.

    Example:
        >>> import promptcli as pc
        >>> chosen = pc.choose(["docs"])  # doctest: +SKIP
        >>> chosen.best.model, chosen.best.by  # doctest: +SKIP
        ('mini', 'both')
    """

    files: Sequence[str | Path] = argument(
        "Texts, tables (FILE:COLUMN names that of the text), globs, and folders.",
        metavar="FILE...",
        typed=list[str],
    )
    _: KW_ONLY
    models: "Sequence[Model]" = option(
        (),
        "A further model, or openai:URL#NAME, one of an endpoint of OpenAI's form; repeatable."
        " `mini` and `mini-static` are compared anyway.",
        names="model m",
        metavar="MODEL",
        typed=list[str],
        on_command_line="The endpoint's key is read from OPENAI_API_KEY.",
    )
    queries: int = option(500, "Most queries to make, drawn at random.", min=50)
    seed: int = option(0, "Random seed of the draws.", min=0)
    key: str | None = option(None, "Key of the endpoints; it is not kept.", hidden=True)
    computed: Choice = option(
        Choice(), "Device, precision and backend of the models that are named.", hidden=True
    )

    def run(self) -> Chosen:
        from promptcli import notes
        from promptcli.models import language_choice, loading
        from promptcli.plugins.domain.comparison import compare_ways
        from promptcli.plugins.domain.synthetic_queries import synthetic_queries

        models = self._further_models()
        made = synthetic_queries(
            list_of_names(self.files),
            most=self.queries,
            most_passages=MOST_PASSAGES,
            seed=self.seed,
        )
        notes.note(_what_was_made(made))
        shipped = [*SHIPPED]
        if language_choice.language_of(made.passages):
            shipped.append(loading.MULTILINGUAL)
        named: dict[str, Model | Endpoint] = {name: self._choice(name) for name in shipped}
        return Chosen(compare_ways(made.task, named | models), made)

    def _choice(self, name: str) -> Choice:
        return replace(self.computed, model=name)

    def _further_models(self) -> "dict[str, Model | Endpoint]":
        """Return the models that are asked for, by name; refuse those that do not exist."""
        from promptcli.models import loading
        from promptcli.plugins.domain.endpoint import PREFIX, Endpoint

        models: dict[str, Model | Endpoint] = {}
        for model in loading.as_list(self.models):
            if not isinstance(model, str):
                models[loading.entry_of(model).name] = model
            elif not model.startswith(PREFIX):
                loading.entry_of(self._choice(model))
                models[model] = self._choice(model)
            else:
                endpoint = Endpoint(model, self.key)
                endpoint.check()
                models[model] = endpoint
        return models


choose = function_of(ChooseJob, "choose")


def _what_was_made(made: "SyntheticQueries") -> str:
    """Return how many queries of each kind were made, and how many were drawn."""
    number = errors.counted(len(made.queries), "query", "queries")
    made_of = f"{number} made from {made.kinds_in_words}"
    if len(made.queries) < made.all_queries:
        made_of += f", drawn from {made.all_queries:,}"
    among = errors.counted(len(made.passages), "passage")
    if len(made.passages) < made.all_passages:
        among = f"{len(made.passages):,} of {errors.counted(made.all_passages, 'passage')}"
    return (
        f"{made_of}; answers are looked for among {among} of {errors.counted(made.files, 'file')}"
    )
