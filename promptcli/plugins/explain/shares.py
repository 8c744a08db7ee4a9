"""A score as the sum of the contributions of words."""

from collections.abc import Collection, Mapping

from promptcli.retrieval.ranking import Explanation

MOST = 5  #: words, or pairs of words, to show
#: Other words are marked from this share of the highest contribution.
_LEAST = 0.2


def as_sum(name: str, shares: Mapping[str, float], marked: Collection[str]) -> Explanation:
    """Return a score as a sum; its line names the words with the largest contributions.

    Args:
        name: Name of the score.
        shares: The contribution of each word, highest first.
        marked: The words of the hit to mark.
    """
    terms = [f"{word} {share:.4f}" for word, share in list(shares.items())[:MOST]]
    others = list(shares.values())[MOST:]
    if others:
        terms.append(f"{len(others)} others {sum(others):.4f}")
    line = f"{name} {sum(shares.values()):.4f}"
    if terms:
        line += f" = {' + '.join(terms)}"
    figures = [{"word": word, "share": share} for word, share in shares.items()]
    return Explanation(figures, line, marked)


def highest_first(shares: Mapping[str, float]) -> dict[str, float]:
    """Return words by contribution, highest first."""
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def strong(shares: Mapping[str, float]) -> list[str]:
    """Return the words with large contributions, up to ``MOST``, from words sorted highest
    first.
    """
    least = _LEAST * max(shares.values(), default=0)
    return [word for word, share in shares.items() if share >= least > 0][:MOST]
