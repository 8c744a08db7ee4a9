"""The greedy search of templates (PromptBERT, section 4.2). Knows neither backbone nor data: told how to score."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from promptcli.searching.template_scorer import ScoredTemplate
from promptcli.searching.template_space import GreedySpace

#: Scores templates, in their order; the second argument names the stage.
Score = Callable[[Sequence[str], str], list[ScoredTemplate]]

RELATION, PREFIX = "relation", "prefix"


@dataclass(frozen=True)
class GreedyResult:
    """What a greedy search found.

    Attributes:
        relations: First stage, in the order tried.
        prefixes: Second stage, in the order tried, all with the relation that won the first.
    """

    relations: list[ScoredTemplate]
    prefixes: list[ScoredTemplate]

    @property
    def ranked(self) -> list[ScoredTemplate]:
        """Return all templates, the best first; of equals the one tried first."""
        return sorted([*self.relations, *self.prefixes], key=lambda item: -item.value)


def search_greedily(score: Score, space: GreedySpace) -> GreedyResult:
    """Find a relation, then a prefix around the relation that really won.

    Args:
        score: How templates are scored.
        space: The candidates.
    """
    relations = score([space.template(space.start, relation) for relation in space.relations], RELATION)
    best = max(range(len(relations)), key=lambda number: relations[number].value)
    prefixes = score([space.template(prefix, space.relations[best]) for prefix in space.prefixes], PREFIX)
    return GreedyResult(relations, prefixes)
