"""A score as the sum of the contributions of words."""

from collections.abc import Collection, Mapping

from promptcli.retrieval.ranking import Explanation

MAX_TERMS = 5  #: words, or pairs of words, in a line
#: A word is marked if its share is at least this part of the highest share.
_MIN_MARKED_PART = 0.2


def explain_as_sum(name: str, shares: Mapping[str, float], marked: Collection[str]) -> Explanation:
    """Return a score as a sum; the line names the words with the largest contributions.

    Args:
        name: Name of the score.
        shares: The contribution of each word, highest first.
        marked: The words of the hit to mark.
    """
    terms = [f"{word} {share:.4f}" for word, share in list(shares.items())[:MAX_TERMS]]
    others = list(shares.values())[MAX_TERMS:]
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


def strong_words(shares: Mapping[str, float]) -> list[str]:
    """Return the words with large contributions, up to ``MAX_TERMS``.

    The words are sorted by their contributions, highest first.
    """
    lowest = _MIN_MARKED_PART * max(shares.values(), default=0)
    return [word for word, share in shares.items() if share >= lowest > 0][:MAX_TERMS]
